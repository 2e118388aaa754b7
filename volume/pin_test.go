package volume_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func pin(t *testing.T, m *volume.Manager, ref, sandbox string) *volume.Reader {
	t.Helper()
	return must[*volume.Reader](t)(m.Pin(t.Context(), ref, sandbox))
}

func pinKeys(t *testing.T, w *world, v volume.Volume) []string {
	t.Helper()
	return keysBelow(t, w.st, "v1/pins/"+v.ID+"/")
}

// any number of sandboxes on any node read an ro volume at once. None of them writes its
// record, or anything else of it.
func TestManyReadersShareAReadOnlyVolume(t *testing.T) { manyReaders(t, newWorld(t)) }

func manyReaders(t *testing.T, w *world) {
	t.Helper()
	nodes := []*volume.Manager{w.node("a"), w.node("b")}
	v := readOnly(t, nodes[0], 'x')
	before := newestBody(t, w.st, volumePrefix(nodes[0], v.ID))
	var open []*volume.Reader
	for i := range 12 {
		r := pin(t, nodes[i%2], v.ID, fmt.Sprint("sb", i))
		if at(t, r.Device(), 8192) != 'x' || r.Device().Size() != v.Size || r.Volume().ID != v.ID {
			t.Fatalf("reader %d", i)
		}
		_, err := r.Device().WriteAt(sector('!'), 8192)
		wantErr(t, err, overlaybd.ErrReadOnly)
		wantErr(t, r.Device().Discard(0, 512), overlaybd.ErrReadOnly)
		open = append(open, r)
	}
	if n := len(pinKeys(t, w, v)); n != 12 {
		t.Errorf("%d pins", n)
	}
	_, err := nodes[0].Attach(t.Context(), v.ID, "writer")
	wantErr(t, err, volume.ErrUnsupported)
	for _, r := range open {
		ok(t, r.Release(t.Context()))
	}
	if got := newestBody(t, w.st, volumePrefix(nodes[0], v.ID)); got != before {
		t.Error("the record changed")
	}
	if n := len(pinKeys(t, w, v)); n != 0 {
		t.Errorf("%d pins are left", n)
	}
	ok(t, nodes[1].Delete(t.Context(), v.ID))
}

func TestDeleteOfAPinnedVolumeNamesItsReaders(t *testing.T) { namesItsReaders(t, newWorld(t)) }

func namesItsReaders(t *testing.T, w *world) {
	t.Helper()
	a, b := w.node("a"), w.node("b")
	v := readOnly(t, a, 'x')
	r1, r2 := pin(t, a, v.ID, "one"), pin(t, b, v.ID, "two")
	err := b.Delete(t.Context(), v.ID)
	var held *volume.InUseError
	want := &volume.InUseError{ID: v.ID, Op: "delete",
		Holders: []volume.Holder{{Sandbox: "one", Node: "a"}, {Sandbox: "two", Node: "b"}}}
	if !errors.As(err, &held) || !cmp.Equal(want, held) {
		t.Fatalf("error is %v", err)
	}
	if got := get(t, a, v.ID).Status; got != volume.StatusReady {
		t.Errorf("the volume is %s", got)
	}
	ok(t, r1.Release(t.Context()))
	wantErr(t, a.Delete(t.Context(), v.ID), volume.ErrInUse)
	ok(t, r2.Release(t.Context()))
	ok(t, a.Delete(t.Context(), v.ID))
	_, err = b.Pin(t.Context(), v.ID, "three")
	wantErr(t, err, volume.ErrNotFound)
}

// 5.5: a delete and a reader that meet, at each step of the one or the other: the reader has the volume, or the volume is
// gone and so is the pin. Never both, never neither.
func TestDeleteAndPinNeverBothSucceed(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	scene := newWorld(t)
	v := readOnly(t, scene.node("first"), 'x')
	for _, order := range []string{"pin within delete", "delete within pin"} {
		for at := 1; ; at++ {
			w := scene.copy(t)
			a, h := w.hooked("a")
			b := w.node("b")
			var r *volume.Reader
			var pinErr, deleteErr error
			if order == "pin within delete" {
				h.arm(at, func() { r, pinErr = b.Pin(context.Background(), v.ID, "sb") })
				deleteErr = a.Delete(t.Context(), v.ID)
			} else {
				h.arm(at, func() { deleteErr = b.Delete(context.Background(), v.ID) })
				r, pinErr = a.Pin(t.Context(), v.ID, "sb")
			}
			if !h.fired() {
				if r != nil {
					ok(t, r.Release(t.Context()))
				}
				break
			}
			checkPinOrGone(t, w, b, v, r, pinErr, deleteErr)
			if t.Failed() {
				t.Fatalf("%s, request %d", order, at)
			}
		}
	}
}

func checkPinOrGone(t *testing.T, w *world, m *volume.Manager, v volume.Volume, r *volume.Reader, pinErr, deleteErr error) {
	t.Helper()
	switch {
	case pinErr == nil && errors.Is(deleteErr, volume.ErrInUse):
		if get(t, m, v.ID).Status != volume.StatusReady || at(t, r.Device(), 8192) != 'x' {
			t.Errorf("pinned, and the volume is %s", get(t, m, v.ID).Status)
		}
		ok(t, r.Release(t.Context()))
		ok(t, m.Delete(t.Context(), v.ID))
	case errors.Is(pinErr, volume.ErrNotFound) && deleteErr == nil:
	default:
		t.Errorf("pin: %v, delete: %v", pinErr, deleteErr)
	}
	if left := pinKeys(t, w, v); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// Whoever finds a deletion that was left half way carries on with it, and a reader takes it back.
func TestInterruptedDeleteOfAReadOnlyVolume(t *testing.T) {
	for _, next := range []string{"delete", "pin", "fork"} {
		timeless(t, next, func(t *testing.T) {
			w := newWorld(t)
			m := w.node("a")
			v := readOnly(t, m, 'x')
			dying := w.on(storetest.StopAt(w.st, 2, false), "dying")
			if err := dying.Delete(t.Context(), v.ID); err == nil {
				t.Fatal("the deleter did not die")
			}
			if got := get(t, m, v.ID).Status; got != volume.StatusDeleting {
				t.Fatalf("the volume is %s", got)
			}
			switch next {
			case "delete":
				ok(t, m.Delete(t.Context(), v.ID))
				_, err := m.Get(t.Context(), v.ID)
				wantErr(t, err, volume.ErrNotFound)
			case "pin":
				r := pin(t, m, v.ID, "sb")
				if got := get(t, m, v.ID).Status; got != volume.StatusReady {
					t.Errorf("the volume is %s", got)
				}
				ok(t, r.Release(t.Context()))
			case "fork":
				reads(t, w.st, fork(t, m, v.ID), map[int64]byte{8192: 'x'})
			}
		})
	}
}

// A pin is of the sandbox, not of the process: it outlives a restart and the next mount uses it. One that is handed to the
// drive set outlives the node, and goes by its nonce when the sandbox runs elsewhere.
func TestPinOutlivesTheNode(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := readOnly(t, a, 'x')
	r := pin(t, a, v.ID, "sb")
	ok(t, r.Close())
	a = w.restart(a)
	wantErr(t, b.Delete(t.Context(), v.ID), volume.ErrInUse)
	pending, _ := a.Repository().Journal()
	if len(pending) != 1 || pending[0].Pin != r.Pin() || pending[0].Mode != volume.ReadOnly {
		t.Fatalf("journal %+v", pending)
	}
	again := pin(t, a, v.ID, "sb")
	if again.Pin() != r.Pin() || len(pinKeys(t, w, v)) != 1 {
		t.Errorf("a second pin: %q", pinKeys(t, w, v))
	}
	ok(t, again.Leave()) // the sandbox pauses
	if pending, _ := a.Repository().Journal(); len(pending) > 0 {
		t.Errorf("journal %+v", pending)
	}
	wantErr(t, b.Delete(t.Context(), v.ID), volume.ErrInUse)
	elsewhere := pin(t, b, v.ID, "sb")
	ok(t, b.RemovePin(t.Context(), v.ID, "sb", again.Pin()))
	ok(t, b.RemovePin(t.Context(), v.ID, "sb", again.Pin()))
	if keys := pinKeys(t, w, v); len(keys) != 1 || !contains(keys[0], elsewhere.Pin()) {
		t.Errorf("pins %q", keys)
	}
	ok(t, elsewhere.Close())
	ok(t, b.Undo(t.Context(), v.ID, "sb")) // the sandbox is gone
	ok(t, b.Delete(t.Context(), v.ID))
}

// Mounts of one sandbox share its pin, which stays until the last is released, and a mount that fails leaves it alone.
func TestPinStaysUntilTheLastReaderOfTheSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, f := w.faulty("a")
		v := readOnly(t, m, 'x')
		one, two := pin(t, m, v.ID, "sb"), pin(t, m, v.ID, "sb")
		if one.Pin() != two.Pin() {
			t.Error("two pins of one sandbox")
		}
		f.plan = storetest.Match(storetest.OpList, volumePrefix(m, v.ID), storetest.ErrorBefore)
		f.plan = afterPut("v1/pins/", f.plan)
		if _, err := m.Pin(t.Context(), v.ID, "sb"); err == nil {
			t.Fatal("mounted without having read the record")
		}
		f.plan = nil
		ok(t, one.Release(t.Context()))
		ok(t, one.Release(t.Context()))
		wantErr(t, m.Delete(t.Context(), v.ID), volume.ErrInUse)
		ok(t, two.Release(t.Context()))
		ok(t, m.Delete(t.Context(), v.ID))
	})
}

// afterPut makes a plan that begins after the first put below a prefix.
func afterPut(prefix string, plan storetest.Plan) storetest.Plan {
	put := storetest.Match(storetest.OpPutIfAbsent, prefix, storetest.Slow)
	begun := false
	return func(c storetest.Call) storetest.Fault {
		if begun {
			return plan(c)
		}
		begun = put(c) != storetest.None
		return storetest.None
	}
}

// A mount of a volume that cannot be read leaves no pin.
func TestFailedPinLeavesNothing(t *testing.T) {
	w := newWorld(t)
	m, f := w.faulty("a")
	v := readOnly(t, w.node("b"), 'x')
	f.plan = storetest.Match(storetest.OpReadRange, "", storetest.ErrorBefore)
	_, err := m.Pin(t.Context(), v.ID, "sb")
	wantErr(t, err, volume.ErrUnavailable)
	if pending, _ := m.Repository().Journal(); len(pending)+len(pinKeys(t, w, v)) > 0 {
		t.Errorf("left %v %q", pending, pinKeys(t, w, v))
	}
}

// A-025, I5: nothing changes the content or size of an ro volume once it is ready.
func TestReadOnlyVolumeNeverChanges(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := readOnly(t, m, 'x')
	ctx := t.Context()
	must[volume.Volume](t)(m.Update(ctx, v.ID, volume.Update{Name: new("data"), Labels: &map[string]string{"a": "b"}}))
	for _, o := range []func() error{
		func() error { return second(m.Update(ctx, "data", volume.Update{Size: new(volume.GiB)})) },
		func() error { return second(m.Attach(ctx, "data", "sb")) },
	} {
		wantErr(t, o(), volume.ErrUnsupported)
	}
	ok(t, pin(t, m, "data", "sb").Release(ctx))
	fork(t, m, "data")
	must[volume.Checkpoint](t)(m.Snapshot(ctx, "data", volume.SnapshotOptions{Flush: true}))
	collect(t, m, volume.CollectOptions{DropUnusedBases: true})
	got := get(t, m, "data")
	if diff := cmp.Diff(v.Stack, got.Stack); diff != "" || got.Size != v.Size || got.Mode != volume.ReadOnly {
		t.Errorf("the volume changed: %s", diff)
	}
}
