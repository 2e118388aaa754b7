package mount_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// swap is a store that can be exchanged under a running process.
type swap struct{ atomic.Pointer[store.Store] }

func (s *swap) set(st store.Store) { s.Store(&st) }

// swapped forwards to whatever is in the swap.
func swapped(s *swap) store.Store { return &forward{s} }

// operation is one thing that a host does, from a state that prepare makes.
type operation struct {
	prepare func(*host)
	run     func(context.Context, *host) error
}

const one, two = "one", "two"

var both = []mount.Mount{{Path: "/1", Volume: one}, {Path: "/2", Volume: two}, {Path: "/ro", Volume: "ro"}}

// running makes sandbox s with three drives and something written that is not published.
func running(h *host) {
	h.drives(h.Create(h.t.Context(), box("s"), both))
	h.write("s", h.id(one), 4096, 'x')
	h.write("s", h.id(two), 4096, 'y')
	for _, v := range []string{one, two} {
		h.ok(h.device("s", h.id(v)).Flush())
	}
}

func paused(h *host) {
	running(h)
	h.ok(h.Pause(h.t.Context(), box("s")))
}

func (h *host) id(name string) string {
	h.t.Helper()
	return h.made(h.m.Get(h.t.Context(), name)).ID
}

var operations = map[string]operation{
	"create": {func(*host) {}, func(ctx context.Context, h *host) error {
		_, err := h.Create(ctx, box("s"), both)
		return err
	}},
	"pause":  {running, func(ctx context.Context, h *host) error { return h.Pause(ctx, box("s")) }},
	"delete": {running, func(ctx context.Context, h *host) error { return h.Delete(ctx, box("s")) }},
	"resume": {paused, func(ctx context.Context, h *host) error {
		_, err := h.Resume(ctx, box("s"))
		return err
	}},
	"expire": {running, func(ctx context.Context, h *host) error {
		_, err := h.Expire(ctx, box("s"), nil)
		return err
	}},
	"expire paused": {paused, func(ctx context.Context, h *host) error {
		_, err := h.Expire(ctx, box("s"), nil)
		return err
	}},
	"delete paused": {paused, func(ctx context.Context, h *host) error { return h.Delete(ctx, box("s")) }},
	"fork": {running, func(ctx context.Context, h *host) error {
		_, err := h.Fork(ctx, box("s"), []string{"c1", "c2"})
		return err
	}},
	"fork paused": {paused, func(ctx context.Context, h *host) error {
		_, err := h.Fork(ctx, box("s"), []string{"c1"})
		return err
	}},
	"snapshot": {running, func(ctx context.Context, h *host) error {
		_, _, err := h.Snapshot(ctx, box("s"))
		return err
	}},
}

// the host process loses the store at every request of every operation, dies, and starts again
// on the same directory. What was flushed is there, whatever was half done is done or undone, nothing is left behind, and
// the operation succeeds when it is asked for again.
func TestEveryStoreRequestMayBeTheLast(t *testing.T) {
	for name, op := range operations {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/applied=%t", name, applied), func(t *testing.T) {
				t.Parallel() // most of the time a store that is down is asked again
				for n := 1; stopAndRecover(t, op, n, applied); n++ {
				}
			})
		}
	}
}

// stopAndRecover reports whether the operation makes as many as n requests that change something.
func stopAndRecover(t *testing.T, op operation, n int, applied bool) (more bool) {
	c := &crew{t: t, st: memstore.New()}
	dir := filepath.Join(memoryDir(t), "node")
	s := &swap{}
	s.set(c.st)
	h := c.hostAt("a", dir, swapped(s))
	h.volume(one)
	h.volume(two)
	h.ready("ro", 'r')
	op.prepare(h)

	stopped := storetest.StopAt(c.st, n, applied)
	s.set(stopped)
	err := op.run(t.Context(), h)
	if stopped.Mutations() < n {
		h.ok(err)
		h.ok(h.repo.Close())
		return false
	}
	where := fmt.Sprintf("request %d, applied %t, answer %v", n, applied, err)
	h.ok(h.repo.Close())

	h = c.hostAt("a", dir, c.st)
	recovered, rerr := h.Recover(t.Context())
	h.ok(rerr)
	for _, r := range recovered {
		if r.Err != nil || len(r.Lost) > 0 {
			t.Fatalf("%s: recovered %+v", where, r)
		}
	}
	if again, _ := h.Recover(t.Context()); len(again) > len(recovered) {
		t.Errorf("%s: recovering again found more: %+v", where, again)
	}
	h.checkWhole(where, err)
	return true
}

// checkWhole brings every sandbox to its end and checks that what was written is there and nothing else is.
func (h *host) checkWhole(where string, answer error) {
	h.t.Helper()
	ctx := h.t.Context()
	phase := h.phase("s")
	switch phase {
	case mount.Paused, mount.Running:
		h.drives(h.Resume(ctx, box("s")))
		h.ok(h.Delete(ctx, box("s")))
	case mount.Creating: // written, and then nothing more: whoever finds it removes it
		h.ok(h.Delete(ctx, box("s")))
	case mount.Expiring:
		if _, err := h.Resume(ctx, box("s")); !errors.Is(err, mount.ErrConflict) {
			h.t.Errorf("%s: resume of a claimed sandbox: %v", where, err)
		}
		_, err := h.Expire(ctx, box("s"), nil)
		h.ok(err)
	case mount.Deleted:
	default:
		h.t.Fatalf("%s: sandbox is left %s", where, phase)
	}
	for _, child := range []string{"c1", "c2"} {
		p := h.phase(child)
		if p == mount.Deleted {
			continue
		}
		if p != mount.Paused {
			h.t.Errorf("%s: child %s is left %s", where, child, p)
		}
		for _, d := range h.drives(h.Resume(ctx, box(child))) {
			if d.Path == "/1" && h.read(child, d.Volume, 4096) != 'x' {
				h.t.Errorf("%s: child %s lacks what was written", where, child)
			}
		}
		h.ok(h.Delete(ctx, box(child)))
	}
	h.checkVolumes(where)
	h.removeKept()
	h.empty()
	if h.t.Failed() {
		h.t.Fatalf("%s: see above", where)
	}
	_ = answer
}

// checkVolumes attaches each exclusive volume to a new sandbox: it must be free, and hold what was flushed, if anything was.
func (h *host) checkVolumes(where string) {
	h.t.Helper()
	ctx := h.t.Context()
	h.drives(h.Create(ctx, box("check"), both))
	x, y := h.read("check", h.id(one), 4096), h.read("check", h.id(two), 4096)
	if (x != 'x' || y != 'y') && (x != 0 || y != 0) {
		h.t.Errorf("%s: volumes hold %q %q", where, x, y)
	}
	h.ok(h.Delete(ctx, box("check")))
}

// removeKept deletes every snapshot that there is.
func (h *host) removeKept() {
	h.t.Helper()
	for c, err := range h.m.Checkpoints(h.t.Context(), volume.ListOptions{}) {
		h.ok(err)
		if err := h.m.DeleteCheckpoint(h.t.Context(), c.ID); !errors.Is(err, mount.ErrNotFound) {
			h.ok(err)
		}
	}
}
