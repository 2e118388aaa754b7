package volume_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// stores are those that nodes share, besides the one in memory.
var stores = map[string]func(*testing.T) store.Store{
	"posix": func(t *testing.T) store.Store {
		return must[*posixstore.Store](t)(posixstore.New(filepath.Join(t.TempDir(), "shared")))
	},
	"s3": func(t *testing.T) store.Store { return s3test.New(t).Open(t, "repo/") },
	"versitygw": func(t *testing.T) store.Store {
		v := s3test.StartVersitygw(t)
		v.CreateBucket(t, "bucket")
		return v.Open(t, "bucket", "repo/")
	},
}

// newWorldOn is newWorld with nodes that share another store.
func newWorldOn(t *testing.T, st store.Store) *world {
	w := newWorld(t)
	w.st = st
	return w
}

// nothing that volumes guarantee depends on which store their nodes share.
func TestVolumesOnEveryStore(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for servers and a disk
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			for scene, run := range map[string]func(*testing.T, *world){
				"outlives its sandbox":       outlivesItsSandbox,
				"seen by every node":         everyNodeSeesEveryChange,
				"many readers":               manyReaders,
				"cold mount":                 coldMount,
				"child of a deleted one":     childOfACollectedParent,
				"deleted while it is pinned": namesItsReaders,
			} {
				t.Run(scene, func(t *testing.T) { run(t, newWorldOn(t, open(t))) })
			}
		})
	}
}

// I12: one life on two nodes leaves the same objects with the same bytes on every store, but for what is
// random: ids, nonces and the digests of layers, which have an id in them.
func TestOneLifeLeavesTheSameRecordsOnEveryStore(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for servers and a disk
	life := func(t *testing.T, w *world) string {
		wholeLife(t, w)
		return transcript(t, w.st)
	}
	want := life(t, newWorld(t))
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, life(t, newWorldOn(t, open(t)))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// wholeLife is what can happen to volumes, each step on the other node than the one before.
func wholeLife(t *testing.T, w *world) {
	t.Helper()
	a, b := w.node("a"), w.node("b")
	create(t, a, volume.CreateOptions{Name: "data", Labels: map[string]string{"for": "life"}})
	s := attach(t, a, "data", "sb")
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 8192, 'x')
	pause(t, s)
	wantErr(t, second(b.Attach(t.Context(), "data", "other")), volume.ErrConflict)
	s = attach(t, b, "data", "sb")
	write(t, s.Device(), 12288, 'y')
	publish(t, s)
	child := must[volume.Volume](t)(a.Fork(t.Context(), "data", volume.ForkOptions{Name: "child"}))
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "data", volume.SnapshotOptions{Name: "shot"}))
	write(t, s.Device(), 8192, 'z')
	release(t, s)
	back := must[volume.Volume](t)(b.Restore(t.Context(), shot.ID, volume.ForkOptions{Name: "back"}))
	frozen := create(t, a, volume.CreateOptions{Name: "frozen", Mode: volume.ReadOnly, Source: volume.FromVolume("data")})
	r, q := pin(t, a, "frozen", "r1"), pin(t, b, "frozen", "r2")
	wantErr(t, b.Delete(t.Context(), "frozen"), volume.ErrInUse)
	for _, dev := range []overlaybd.Device{r.Device(), q.Device()} {
		if x, y := at(t, dev, 8192), at(t, dev, 12288); x != 'z' || y != 'y' {
			t.Errorf("a reader sees %q %q", x, y)
		}
	}
	ok(t, r.Release(t.Context()))
	ok(t, q.Release(t.Context()))
	must[volume.Volume](t)(b.Update(t.Context(), "child", volume.Update{Name: new("moved"), Size: new(volume.GiB)}))
	ok(t, a.Delete(t.Context(), "data"))
	ok(t, b.Delete(t.Context(), "frozen"))
	wantErr(t, second(a.Get(t.Context(), frozen.ID)), volume.ErrNotFound)
	deleted := 0
	for range 3 {
		deleted += len(collect(t, b, volume.CollectOptions{}).Candidates)
	}
	if deleted != 1 { // the layer with z, which only what was deleted has
		t.Errorf("the collector deleted %d layers", deleted)
	}
	for _, v := range []volume.Volume{get(t, b, child.ID), get(t, a, back.ID)} {
		reads(t, w.st, v, map[int64]byte{4096: 'F', 8192: 'x', 12288: 'y'})
	}
	report := must[volume.VerifyReport](t)(a.Repository().Verify(t.Context(), volume.VerifyOptions{Data: true}))
	if len(report.Problems)+len(report.Orphans) > 0 {
		t.Errorf("%+v", report)
	}
}

// random finds ids, nonces, digests and sizes of layers, which differ by the few bytes of an id.
var random = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64}|[0-9a-f]{32}|[A-Z2-7]{26}|` +
	`"(size|tail)":[0-9]+`)

// transcript returns every key and record of a store with what is random replaced by a number, in the order in which it
// first appears.
func transcript(t *testing.T, st store.Store) string {
	t.Helper()
	names := map[string]string{}
	plain := func(text string) string {
		return random.ReplaceAllStringFunc(text, func(s string) string {
			if strings.HasPrefix(s, `"`) {
				return `"size":#`
			}
			if names[s] == "" {
				names[s] = fmt.Sprint("#", len(names))
			}
			return names[s]
		})
	}
	var records, layers []string
	for _, key := range keysBelow(t, st, "") {
		if strings.HasPrefix(key, "v1/layers/") {
			layers = append(layers, key)
			continue
		}
		body := must[[]byte](t)(st.Get(t.Context(), key))
		records = append(records, plain(key+"\n\t"+string(body)))
	}
	// Layers come after the records that give them their numbers: the order of their own keys is random.
	for i, key := range layers {
		layers[i] = plain(key)
	}
	slices.Sort(layers)
	return strings.Join(append(records, layers...), "\n")
}

// requests counts what is sent to a bucket.
type requests struct {
	next http.RoundTripper
	n    atomic.Int64
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	r.n.Add(1)
	return r.next.RoundTrip(q)
}

// over S3 each operation takes as many HTTP requests as are promised, and those follow each other in as many round
// trips.
func TestRequestCountsOverS3(t *testing.T) {
	srv := s3test.New(t)
	// Requests that are sent side by side are seen to be only while none has come back before the next is sent.
	http := &requests{next: srv.Latency(20 * time.Millisecond)}
	w := newWorldOn(t, srv.Open(t, "repo/", s3store.WithTransport(http)))
	m, trace := w.traced("a")
	src := written(t, m, "src", 'x')
	create(t, m, volume.CreateOptions{Name: "used"})
	ok(t, m.Delete(t.Context(), "used"))
	count := func(what string, want, rounds int, do func()) {
		t.Helper()
		trace.Reset()
		before := http.n.Load()
		do()
		if got := int(http.n.Load() - before); got != want || trace.Rounds() > rounds {
			t.Errorf("%s: %d HTTP requests, want %d, in %d rounds, want %d: %v", what, got, want, trace.Rounds(), rounds,
				trace.Calls())
		}
	}
	named := func(name string) func() {
		return func() { must[volume.Volume](t)(m.Fork(t.Context(), src.ID, volume.ForkOptions{Name: name})) }
	}
	count("fork", 6, 6, named(""))
	count("fork under a name that was never used", 9, 7, named("fresh"))
	count("fork under a name that was used before", 12, 9, named("used"))
	var s *volume.Session
	count("attach", 4, 4, func() { s = attach(t, m, src.ID, "sb") })
	write(t, s.Device(), 8192, 'y')
	count("publish", 3, 3, func() { publish(t, s) })
	count("pause without writes", 2, 2, func() { pause(t, s) })
	s = attach(t, m, src.ID, "sb")
	write(t, s.Device(), 8192, 'z')
	count("pause", 3, 3, func() { pause(t, s) })
	layers := len(get(t, m, src.ID).Stack.Layers)
	cold, coldTrace := w.traced("b")
	trace = coldTrace
	count("attach on a node that has nothing", 4+layers, 5, func() { s = attach(t, cold, src.ID, "sb") })
	if n := trace.Count(storetest.OpReadRange); n != layers {
		t.Errorf("%d ranges of %d layers", n, layers)
	}
	pause(t, s)
}
