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
	"strings"
	"testing"
	"time"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// many is a list of n volumes. It waits for went before the last one.
type many struct {
	e2bhttp.Volumes
	n    int
	last error
	went chan struct{}
}

func (m many) List(ctx context.Context, _ volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return func(yield func(volume.Volume, error) bool) {
		for i := range m.n {
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

// BenchmarkGet compares GET /volumes/{id} over a POSIX store with a handler that answers a constant.
func BenchmarkGet(b *testing.B) {
	st, err := posixstore.New(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	repo := openRepository(b, st, "node-1")
	m, err := repo.Tenant(red)
	if err != nil {
		b.Fatal(err)
	}
	v, err := m.Create(context.Background(), volume.CreateOptions{Name: "v", Size: volume.MinSize})
	if err != nil {
		b.Fatal(err)
	}
	body, err := json.Marshal(wire.VolumeAndToken{Volume: e2bhttp.ViewVolume(v)})
	if err != nil {
		b.Fatal(err)
	}
	for name, h := range map[string]http.Handler{
		"handler=volumes": e2bhttp.NewHandler(e2bhttp.ForRepository(repo), apiKeys(b)),
		"handler=constant": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
		}),
	} {
		b.Run(name, func(b *testing.B) {
			srv := httptest.NewServer(h)
			defer srv.Close()
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequest("GET", srv.URL+"/volumes/"+v.ID, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("X-API-Key", redKey)
				res, err := srv.Client().Do(req)
				if err != nil || res.StatusCode != 200 {
					b.Fatal(res, err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
}
