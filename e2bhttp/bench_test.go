package e2bhttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// BenchmarkGet loads GET /volumes/{id} over a POSIX store, and a handler that answers a constant, with clients that send one
// request after another. The two take turns in short rounds, so that a machine with other work slows both alike:
// of-constant is the rate of the first as a part of the second's, and cpu-of-constant the same by the processor time that
// client and server take, which is what decides on a machine that has nothing else to do and is not waiting either.
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
	volumes := load(b, e2bhttp.NewHandler(e2bhttp.ForRepository(repo), apiKeys(b)), v.ID)
	constant := load(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}), v.ID)
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			var ours, theirs spent
			b.ReportAllocs()
			for b.Loop() {
				theirs.add(func() { constant(clients) })
				ours.add(func() { volumes(clients) })
			}
			b.ReportMetric(float64(ours.wall.Nanoseconds())/float64(b.N*clients*perClient), "ns/get")
			b.ReportMetric(float64(theirs.wall)/float64(ours.wall), "of-constant")
			b.ReportMetric(float64(theirs.cpu)/float64(ours.cpu), "cpu-of-constant")
		})
	}
}

// perClient is how many requests a client sends in one round.
const perClient = 16

// spent is the time that rounds took.
type spent struct{ wall, cpu time.Duration }

func (s *spent) add(round func()) {
	began, cpu := time.Now(), cpuTime()
	round()
	s.wall += time.Since(began)
	s.cpu += cpuTime() - cpu
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// load returns a function that runs one round of GETs over loopback, of several clients at once.
func load(b *testing.B, h http.Handler, id string) func(clients int) {
	srv := httptest.NewServer(h)
	b.Cleanup(srv.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	b.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	get := func() {
		req, err := http.NewRequest("GET", srv.URL+"/volumes/"+id, nil)
		if err != nil {
			b.Error(err)
			return
		}
		req.Header.Set("X-API-Key", redKey)
		res, err := client.Do(req)
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			b.Error(res.Status)
		}
	}
	return func(clients int) {
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for range perClient {
					get()
				}
			})
		}
		wg.Wait()
	}
}

// BenchmarkListTenThousand lists ten thousand volumes of a repository. peak-MiB is how much more was in use in the middle of
// the answer than before it.
func BenchmarkListTenThousand(b *testing.B) {
	repo := openRepository(b, memstore.New(), "node-1")
	m, err := repo.Tenant(red)
	if err != nil {
		b.Fatal(err)
	}
	const n = 10_000
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error {
			_, err := m.Create(context.Background(), volume.CreateOptions{Name: fmt.Sprintf("v%05d", i), Size: volume.MinSize})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), apiKeys(b))
	r := httptest.NewRequest("GET", "/volumes", nil)
	r.Header.Set("X-API-Key", redKey)
	before, during := heap(), uint64(0)
	h.ServeHTTP(&sink{header: http.Header{}, at: func(sent int) {
		if during == 0 && sent > 1<<20 {
			during = heap()
		}
	}}, r)
	b.ReportAllocs()
	for b.Loop() {
		w := &sink{header: http.Header{}}
		h.ServeHTTP(w, r)
		b.SetBytes(int64(w.bytes))
	}
	b.ReportMetric(float64(int64(during)-int64(before))/(1<<20), "peak-MiB")
}
