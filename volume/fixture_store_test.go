package volume_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// on opens a node that sees the store through a decorator.
func (w *world) on(st store.Store, name string) *volume.Manager {
	w.t.Helper()
	plain := w.st
	w.st = st
	defer func() { w.st = plain }()
	return w.node(name)
}

// traced opens a node whose requests are counted.
func (w *world) traced(name string) (*volume.Manager, *storetest.TracedStore) {
	w.t.Helper()
	st := storetest.Trace(w.st)
	return w.on(st, name), st
}

// restart opens a node again on the same directory, as after a crash: nothing that the first one did not write is left.
func (w *world) restart(m *volume.Manager) *volume.Manager {
	w.t.Helper()
	r := m.Repository()
	ok(w.t, r.Close())
	return w.nodeAt(r.Node(), r.Dir())
}

// faulty opens a node whose faults are set, and taken away, while it works.
func (w *world) faulty(name string) (*volume.Manager, *faults) {
	w.t.Helper()
	f := &faults{}
	f.st = storetest.Faulty(w.st, func(c storetest.Call) storetest.Fault {
		if f.plan == nil {
			return storetest.None
		}
		return f.plan(c)
	})
	return w.on(f.st, name), f
}

type faults struct {
	st   *storetest.FaultyStore
	plan storetest.Plan
}

// hooked opens a node that calls a function before each of its requests. The function works through other nodes.
func (w *world) hooked(name string) (*volume.Manager, *hook) {
	w.t.Helper()
	h := &hook{}
	st := storetest.Faulty(w.st, func(c storetest.Call) storetest.Fault {
		h.before(c)
		return storetest.None
	})
	return w.on(st, name), h
}

// hook runs a function once, before the at-th request from now.
type hook struct {
	at, n int
	do    func()
}

func (h *hook) arm(at int, do func()) { h.at, h.n, h.do = at, 0, do }

// fired reports whether the function was run, and disarms.
func (h *hook) fired() bool {
	fired := h.do != nil && h.n >= h.at
	h.do = nil
	return fired
}

func (h *hook) before(storetest.Call) {
	if h.do == nil {
		return
	}
	if h.n++; h.n == h.at {
		h.do()
	}
}

// keysBelow lists the store's keys.
func keysBelow(t *testing.T, st store.Store, prefix string) []string {
	t.Helper()
	var keys []string
	for e, err := range st.List(context.Background(), prefix, "", 0) {
		ok(t, err)
		keys = append(keys, e.Key)
	}
	return keys
}

// newestBody returns the newest generation below a prefix, byte by byte.
func newestBody(t *testing.T, st store.Store, prefix string) string {
	t.Helper()
	keys := keysBelow(t, st, prefix)
	if len(keys) == 0 {
		t.Fatalf("nothing below %s", prefix)
	}
	return string(must[[]byte](t)(st.Get(t.Context(), keys[0])))
}

func volumePrefix(m *volume.Manager, id string) string {
	return "v1/volumes/" + m.Name() + "/" + id + "/"
}

// newestRecord decodes the newest generation of a volume.
func newestRecord(t *testing.T, st store.Store, m *volume.Manager, id string) record.Volume {
	t.Helper()
	var g struct {
		State record.Volume `json:"state"`
	}
	ok(t, json.Unmarshal([]byte(newestBody(t, st, volumePrefix(m, id))), &g))
	return g.State
}

// liveVolumes returns the tenant's volumes by id.
func liveVolumes(t *testing.T, m *volume.Manager) map[string]volume.Volume {
	t.Helper()
	all := map[string]volume.Volume{}
	for v, err := range m.List(t.Context(), volume.ListOptions{}) {
		ok(t, err)
		all[v.ID] = v
	}
	return all
}

// puts returns the keys that were written.
func puts(st *storetest.TracedStore) []string {
	var keys []string
	for _, c := range st.Calls() {
		if c.Op == storetest.OpPutIfAbsent || c.Op == storetest.OpPutBlob {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// readStack opens a published stack as another node would: from the store alone.
func readStack(t *testing.T, st store.Store, stack overlaybd.Stack) *overlaybd.ReadOnly {
	t.Helper()
	e := must[*overlaybd.Engine](t)(overlaybd.New(overlaybd.Config{
		Open: func(ctx context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
			b, err := st.OpenBlob(ctx, l.Key)
			return blobSource{b, l.Size}, err
		},
	}))
	dev := must[*overlaybd.ReadOnly](t)(e.OpenReadOnly(t.Context(), stack))
	t.Cleanup(func() { ok(t, dev.Close()) })
	return dev
}

type blobSource struct {
	store.Blob
	size int64
}

func (b blobSource) Size() int64 { return b.size }

func (b blobSource) ReadAt(p []byte, off int64) (int, error) {
	n, err := b.ReadRange(context.Background(), p, off)
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// reads checks what a volume holds, sector by sector, from what is published.
func reads(t *testing.T, st store.Store, v volume.Volume, want map[int64]byte) {
	t.Helper()
	dev := readStack(t, st, v.Stack)
	for off, b := range want {
		if got := at(t, dev, off); got != b {
			t.Fatalf("volume %s reads %q at %d, want %q", v.ID, got, off, b)
		}
	}
}

// written makes an exclusive volume that holds b at 8192, published and free.
func written(t *testing.T, m *volume.Manager, name string, b byte) volume.Volume {
	t.Helper()
	v := create(t, m, volume.CreateOptions{Name: name})
	s := attach(t, m, v.ID, "writer")
	write(t, s.Device(), 8192, b)
	release(t, s)
	return get(t, m, v.ID)
}

// readOnly makes an ro copy of a fresh volume that holds b at 8192.
func readOnly(t *testing.T, m *volume.Manager, b byte) volume.Volume {
	t.Helper()
	return create(t, m, volume.CreateOptions{Mode: volume.ReadOnly, Source: volume.FromVolume(written(t, m, "", b).ID)})
}

func get(t *testing.T, m *volume.Manager, ref string) volume.Volume {
	t.Helper()
	return must[volume.Volume](t)(m.Get(t.Context(), ref))
}

func fork(t *testing.T, m *volume.Manager, ref string) volume.Volume {
	t.Helper()
	return must[volume.Volume](t)(m.Fork(t.Context(), ref, volume.ForkOptions{}))
}

// collect runs the collector without grace for people.
func collect(t *testing.T, m *volume.Manager, o volume.CollectOptions) volume.CollectReport {
	t.Helper()
	o.MinAge = new(time.Duration)
	return must[volume.CollectReport](t)(m.Repository().Collect(t.Context(), o))
}

// drives returns the directories of drives that a node has on its disk.
func drives(t *testing.T, m *volume.Manager) []string {
	t.Helper()
	return must[[]string](t)(filepath.Glob(filepath.Join(m.Repository().Dir(), "drives", "*", "*")))
}

func contains(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// edit appends a generation that no operation makes yet: what a takeover, another version or a failed import leaves.
func (w *world) edit(m *volume.Manager, id string, change func(*record.Volume)) {
	w.t.Helper()
	log := genlog.New[record.Volume](w.st, volumePrefix(m, id))
	_, err := log.Append(w.t.Context(), genlog.Op[record.Volume]{Name: "edit",
		Apply: func(v record.Volume) (record.Volume, bool, error) { change(&v); return v, true, nil }})
	ok(w.t, err)
}

// replace changes a stored object, which no store can.
func (w *world) replace(key string, body []byte) {
	w.t.Helper()
	ok(w.t, w.st.Delete(w.t.Context(), key))
	ok(w.t, w.st.PutIfAbsent(w.t.Context(), key, body))
}

// timeless runs a subtest in which the waits between retries take no time.
func timeless(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// digestOf hashes a blob as it is stored.
func digestOf(t *testing.T, st store.Store, key string) (string, int64) {
	t.Helper()
	blob := must[store.Blob](t)(st.OpenBlob(t.Context(), key))
	defer blob.Close()
	body := make([]byte, must[int64](t)(blob.Size(t.Context())))
	if _, err := blob.ReadRange(t.Context(), body, 0); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(body)), int64(len(body))
}

// copy returns a world with the same objects in a store of its own: scenes that are raced again and again are set up once.
func (w *world) copy(t *testing.T) *world {
	t.Helper()
	st := memstore.New()
	for _, key := range keysBelow(t, w.st, "") {
		ok(t, st.PutIfAbsent(t.Context(), key, must[[]byte](t)(w.st.Get(t.Context(), key))))
	}
	c := &world{t: t, st: st, clock: w.clock}
	c.opts = []volume.Option{volume.Quiet, volume.WithFormatter(marker{}), volume.WithClock(func() time.Time { return c.clock })}
	return c
}

// stalled is a store whose ranged reads wait until their context ends.
type stalled struct {
	store.Store
	begun func()
	reads atomic.Int32
}

func (s *stalled) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	b, err := s.Store.OpenBlob(ctx, key)
	return stalledBlob{b, s}, err
}

type stalledBlob struct {
	store.Blob
	s *stalled
}

func (b stalledBlob) ReadRange(ctx context.Context, _ []byte, _ int64) (int, error) {
	b.s.reads.Add(1)
	defer b.s.reads.Add(-1)
	b.s.begun()
	<-ctx.Done()
	return 0, ctx.Err()
}
