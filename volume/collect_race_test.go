package volume_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sandvol/sandvol/volume"
)

// The two ways to a child, without a test to fail: what they return is judged afterwards.
var makers = map[string]func(context.Context, *volume.Manager, string) (volume.Volume, error){
	"fork": func(ctx context.Context, m *volume.Manager, ref string) (volume.Volume, error) {
		return m.Fork(ctx, ref, volume.ForkOptions{Name: "child"})
	},
	"restore": func(ctx context.Context, m *volume.Manager, ref string) (volume.Volume, error) {
		c, err := m.Snapshot(ctx, ref, volume.SnapshotOptions{})
		if err != nil {
			return volume.Volume{}, err
		}
		return m.Restore(ctx, c.ID, volume.ForkOptions{})
	},
}

// deleteAndCollect deletes the source and runs the collector until nothing is left to do, with no grace for anybody.
func deleteAndCollect(m *volume.Manager, id string, runs int) error {
	ctx := context.Background()
	if err := m.Delete(ctx, id); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	for range runs {
		o := volume.CollectOptions{MinAge: new(time.Duration), DropUnusedBases: true, TakeOver: true}
		if _, err := m.Repository().Collect(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// checkChild is I4 and I7 for a child that raced with the deletion of its source.
func checkChild(t *testing.T, w *world, m *volume.Manager, child volume.Volume, err error) {
	t.Helper()
	if err != nil {
		if !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("the child is refused: %v", err)
		}
		return
	}
	got := get(t, m, child.ID)
	checkLayers(t, w, got.Stack)
	reads(t, w.st, got, map[int64]byte{4096: 'F', 8192: 'x'})
}

// 5.7, the child rule: the source of a child is deleted and collected at every request of its creation. The child is whole,
// or it does not exist.
func TestDeleteAndCollectAtEveryStepOfAChild(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	scene := newWorld(t)
	src := written(t, scene.node("first"), "src", 'x')
	for name, make := range makers {
		for runs := range 3 {
			t.Run(fmt.Sprint(name, " runs ", runs), func(t *testing.T) {
				for at, more := 1, true; more && !t.Failed(); at++ {
					w := scene.copy(t)
					a, h := w.hooked("a")
					b := w.node("b")
					var raced error
					h.arm(at, func() { raced = deleteAndCollect(b, src.ID, runs) })
					child, err := make(t.Context(), a, src.ID)
					more = h.fired()
					ok(t, raced)
					ok(t, deleteAndCollect(b, src.ID, 3))
					checkChild(t, w, b, child, err)
				}
			})
		}
	}
}

// The other way round: a child is made, and its source deleted, at every request of a run; two more runs follow.
func TestChildAtEveryStepOfACollectorRun(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	scene := newWorld(t)
	src := written(t, scene.node("first"), "src", 'x')
	for runs := range 2 { // with another run in between, the one that is under way is void
		for name, make := range makers {
			t.Run(fmt.Sprint(name, " runs ", runs), func(t *testing.T) {
				for at, more := 1, true; more && !t.Failed(); at++ {
					w := scene.copy(t)
					a, h := w.hooked("a")
					b := w.node("b")
					child, err := volume.Volume{}, volume.ErrNotFound
					var raced error
					h.arm(at, func() {
						child, err = make(context.Background(), b, src.ID)
						raced = deleteAndCollect(b, src.ID, runs)
					})
					o := volume.CollectOptions{MinAge: new(time.Duration), DropUnusedBases: true}
					if _, err := a.Repository().Collect(t.Context(), o); err != nil && runs == 0 {
						t.Error(err)
					}
					more = h.fired()
					ok(t, raced)
					ok(t, deleteAndCollect(b, src.ID, 3))
					checkChild(t, w, b, child, err)
				}
			})
		}
	}
}

// An empty volume is made although the hidden one that it starts from is dropped at any of its requests.
func TestBaseIsDroppedAtEveryStepOfACreate(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld(t)
		a, h := w.hooked("a")
		b := w.node("b")
		ok(t, a.Delete(t.Context(), create(t, a, volume.CreateOptions{}).ID)) // a remembers the hidden volume
		var raced error
		h.arm(at, func() { raced = deleteAndCollect(b, "none", 3) })
		v, err := a.Create(t.Context(), volume.CreateOptions{Name: "data", Size: volume.MinSize})
		if !h.fired() {
			break
		}
		ok(t, raced)
		ok(t, err)
		ok(t, deleteAndCollect(b, "none", 3))
		checkLayers(t, w, get(t, b, v.ID).Stack)
		reads(t, w.st, get(t, b, "data"), map[int64]byte{4096: 'F'})
		if n := len(liveVolumes(t, b)); n != 1 {
			t.Errorf("request %d: %d volumes", at, n)
		}
	}
}

// What is uploaded while a run is under way is not taken for garbage: neither the content of a volume that did not exist
// when the run began, nor layers under keys that were declared since.
func TestUploadAtEveryStepOfACollectorRun(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	scene := newWorld(t)
	v := create(t, scene.node("first"), volume.CreateOptions{})
	for at, more := 1, true; more && !t.Failed(); at++ {
		w := scene.copy(t)
		a, h := w.hooked("a")
		b := w.node("b")
		s := attach(t, b, v.ID, "sb")
		write(t, s.Device(), 8192, 'x')
		seal(t, s, false)
		write(t, s.Device(), 12288, 'y')
		var first volume.Volume
		var err error
		h.arm(at, func() {
			publish(t, s)
			first, err = b.Create(context.Background(), volume.CreateOptions{Size: volume.GiB})
		})
		collect(t, a, volume.CollectOptions{})
		more = h.fired()
		ok(t, err)
		checkLayers(t, w, first.Stack)
		checkLayers(t, w, get(t, b, v.ID).Stack)
		release(t, s)
		reads(t, w.st, get(t, b, v.ID), map[int64]byte{4096: 'F', 8192: 'x', 12288: 'y'})
	}
}
