package e2bhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/volume"
)

// many is a list of n volumes. It waits for went before the last one.
type many struct {
	e2bhttp.Volumes
	n    int
	last error
	went chan struct{}
	at   func(i int) // called before each, if not nil
}

func (m many) List(ctx context.Context, _ volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return func(yield func(volume.Volume, error) bool) {
		for i := range m.n {
			if m.at != nil {
				m.at(i)
			}
			if i == m.n-1 && m.went != nil {
				select {
				case <-m.went:
				case <-ctx.Done():
					yield(volume.Volume{}, ctx.Err())
					return
				}
			}
			if !yield(volume.Volume{ID: fmt.Sprintf("id-%d", i), Name: "n", Status: volume.StatusReady}, nil) {
				return
			}
		}
		if m.last != nil {
			yield(volume.Volume{}, m.last)
		}
	}
}

// a list of ten thousand is sent while it is read: the first ones are with the client before the last one was found.
func TestLongListsAreStreamed(t *testing.T) {
	list := many{n: 10_000, went: make(chan struct{})}
	a := serve(t, func(context.Context, string) (e2bhttp.Volumes, error) { return list, nil })
	req, err := http.NewRequest("GET", a.url+"/volumes", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", redKey)
	res, err := a.http.Transport.(*validator).next.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	if first, err := body.ReadString('}'); err != nil || !strings.Contains(first, `"id-0"`) {
		t.Fatalf("%q, %v", first, err)
	}
	close(list.went)
	rest, err := io.ReadAll(body)
	if err != nil || strings.Count(string(rest), "volumeID") != 9_999 || !strings.HasSuffix(string(rest), "]") {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

// An error in the middle of a list must not look like the end of it; one before anything was sent is answered as such.
func TestListsThatFailAreNotTakenForWhole(t *testing.T) {
	fault := errors.New("disk")
	for n, partial := range map[int]bool{0: false, 3: false, 5_000: true} {
		a := serve(t, func(context.Context, string) (e2bhttp.Volumes, error) { return many{n: n, last: fault}, nil })
		req, err := http.NewRequest("GET", a.url+"/volumes", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", redKey)
		res, err := a.http.Transport.(*validator).next.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if partial && (res.StatusCode != 200 || err == nil || json.Valid(body)) {
			t.Errorf("%d items: %d, %d bytes, error %v", n, res.StatusCode, len(body), err)
		}
		if !partial && (res.StatusCode != 503 || err != nil) {
			t.Errorf("%d items: %d %s, error %v", n, res.StatusCode, body, err)
		}
	}
}

// A client that takes nothing of a long list is cut off, and others are served meanwhile.
func TestSlowReadersAreCutOff(t *testing.T) {
	ended := make(chan struct{})
	list := many{n: 200_000}
	h := e2bhttp.NewHandler(func(context.Context, string) (e2bhttp.Volumes, error) { return list, nil }, apiKeys(t),
		e2bhttp.WithTimeout(300*time.Millisecond))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("status") {
			defer close(ended)
		}
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "GET /volumes?status=ready HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n\r\n", redKey)
	if w := recordBody(h, "OPTIONS", "/volumes", ""); w.Code != 204 {
		t.Errorf("another request: %d", w.Code)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the handler still waits for its client")
	}
}

// heap is what the garbage collector leaves, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A list's length does not matter to memory: at the end of a hundred thousand volumes there is no more in use than at its
// beginning, with the answer whole on the other side.
func TestLongListsTakeNoMemory(t *testing.T) {
	const n = 100_000
	var first, last uint64
	list := many{n: n, at: func(i int) {
		switch i {
		case 1_000:
			first = heap()
		case n - 1:
			last = heap()
		}
	}}
	h := e2bhttp.NewHandler(func(context.Context, string) (e2bhttp.Volumes, error) { return list, nil }, apiKeys(t))
	w := &sink{header: http.Header{}}
	r := httptest.NewRequest("GET", "/volumes", nil)
	r.Header.Set("X-API-Key", redKey)
	h.ServeHTTP(w, r)
	if w.bytes < 50*n {
		t.Fatalf("%d bytes were sent", w.bytes)
	}
	// Half a MiB is for what else goes on; the answer has 8.
	if grown := int64(last) - int64(first); grown > 512<<10 {
		t.Errorf("%d bytes more are in use at the end of an answer of %d", grown, w.bytes)
	}
}

// sink is an answer that nobody keeps.
type sink struct {
	header http.Header
	bytes  int
	at     func(bytes int) // called after each part, if not nil
}

func (c *sink) Header() http.Header { return c.header }
func (c *sink) WriteHeader(int)     {}

func (c *sink) Write(p []byte) (int, error) {
	c.bytes += len(p)
	if c.at != nil {
		c.at(c.bytes)
	}
	return len(p), nil
}

// letters reads as the same letter for ever.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Clients that send a byte and then nothing, and clients that send 10 MB, hurt nobody: others are served meanwhile, no more
// of a body is read than may be in one, and what they make the server keep is bounded.
func TestSlowAndLargeBodiesHurtNobody(t *testing.T) {
	a := newAPI(t)
	a.create("v")
	host := strings.TrimPrefix(a.url, "http://")
	before := heap()
	const slow, large = 200, 20
	for range slow {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST /volumes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 10485760\r\n\r\n{", redKey)
	}
	var wg sync.WaitGroup
	for range large {
		wg.Go(func() {
			body := io.MultiReader(strings.NewReader(`{"name":"`), io.LimitReader(letters{}, 10<<20), strings.NewReader(`"}`))
			req, err := http.NewRequest("POST", a.url+"/volumes", body)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-API-Key", redKey)
			res, err := a.http.Transport.(*validator).next.RoundTrip(req)
			if err != nil {
				return // the server stopped reading, and the client was still sending
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("10 MB: %s", res.Status)
			}
		})
	}
	for i := range 50 {
		a.do("GET", "/volumes/v", "").is(200)
		a.create(fmt.Sprintf("v%d", i))
	}
	kept := int64(heap()) - int64(before)
	wg.Wait()
	// Two hundred bodies of 10 MB would be 2 GB. What is kept is the connections' own buffers and twenty bodies of 1 MiB.
	if kept > 200<<20 {
		t.Errorf("%d MiB are in use", kept>>20)
	}
}
