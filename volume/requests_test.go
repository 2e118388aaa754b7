package volume_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// Every request is a round trip to a bucket, so each of these is a promise.
func TestRequestCounts(t *testing.T) {
	w := newWorld(t)
	m, trace := w.traced("a")
	src := written(t, m, "src", 'x')
	create(t, m, volume.CreateOptions{Name: "used"})
	ok(t, m.Delete(t.Context(), "used"))
	shot := must[volume.Checkpoint](t)(m.Snapshot(t.Context(), src.ID, volume.SnapshotOptions{}))
	count := func(what string, want int, do func()) {
		t.Helper()
		trace.Reset()
		do()
		if got := trace.Count(); got != want {
			t.Errorf("%s: %d requests, want %d: %v", what, got, want, trace.Calls())
		}
	}
	named := func(name string) func() {
		return func() { must[volume.Volume](t)(m.Fork(t.Context(), src.ID, volume.ForkOptions{Name: name})) }
	}
	count("fork", 6, named(""))
	count("fork under a name that was never used", 9, named("fresh"))
	count("fork under a name that was used before", 12, named("used"))
	count("snapshot", 6, func() { must[volume.Checkpoint](t)(m.Snapshot(t.Context(), src.ID, volume.SnapshotOptions{})) })
	count("restore", 6, func() { must[volume.Volume](t)(m.Restore(t.Context(), shot.ID, volume.ForkOptions{})) })
	count("create empty", 4, func() { create(t, m, volume.CreateOptions{}) })
	count("get", 2, func() { get(t, m, src.ID) })
	var s *volume.Session
	count("attach", 4, func() { s = attach(t, m, src.ID, "sb") })
	count("mounted", 2, func() { ok(t, s.Mounted(t.Context())) })
	count("publish without writes", 0, func() { publish(t, s) })
	write(t, s.Device(), 8192, 'y')
	count("publish", 3, func() { publish(t, s) })
	count("pause without writes", 2, func() { pause(t, s) })
	s = attach(t, m, src.ID, "sb")
	write(t, s.Device(), 8192, 'z')
	count("pause with writes", 3, func() { pause(t, s) })
	s = attach(t, m, src.ID, "sb")
	count("release without writes", 2, func() { release(t, s) })
	count("delete", 4, func() { ok(t, m.Delete(t.Context(), src.ID)) })
}

// Pruning runs in the background and in no request count; it never takes the newest generation.
func TestPruningIsInTheBackground(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := create(t, m, volume.CreateOptions{})
	for i := range 110 {
		labels := map[string]string{"n": fmt.Sprint(i)}
		must[volume.Volume](t)(m.Update(t.Context(), v.ID, volume.Update{Labels: &labels}))
	}
	kept := func() int { return len(keysBelow(t, w.st, volumePrefix(m, v.ID))) }
	for deadline := time.Now().Add(10 * time.Second); kept() >= 110 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // it has its own time
	}
	ok(t, m.Repository().Close())
	if n := kept(); n >= 110 {
		t.Errorf("%d generations are kept", n)
	}
	if got := get(t, w.node("b"), v.ID); got.Labels["n"] != "109" || got.Generation != 112 {
		t.Errorf("newest is %d, %v", got.Generation, got.Labels)
	}
}

// what copies costs the same whatever the volume holds: as many requests, in as many round trips, of the same
// kinds, and not one of them moves data.
func TestCostOfACopyDoesNotDependOnTheSize(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	w := newWorld(t)
	m, trace := w.traced("a")
	small, large := filled(t, m, 1), filled(t, m, 8)
	for name, duplicate := range copies {
		cost := func(v volume.Volume) map[storetest.Op]int {
			trace.Reset()
			duplicate(t, m, v.ID)
			ops := map[storetest.Op]int{"rounds": trace.Rounds()}
			for _, c := range trace.Calls() {
				ops[c.Op]++
			}
			return ops
		}
		one, other := cost(small), cost(large)
		if diff := cmp.Diff(one, other); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if one[storetest.OpPutBlob]+one[storetest.OpReadRange] > 0 {
			t.Errorf("%s moves data: %v", name, one)
		}
	}
}

// filled makes a volume with n MiB written into it.
func filled(t testing.TB, m *volume.Manager, n int) volume.Volume {
	t.Helper()
	ctx := t.Context()
	v, err := m.Create(ctx, volume.CreateOptions{Size: 8 * volume.GiB})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.Attach(ctx, v.ID, "writer")
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, volume.MiB)
	for i := range chunk {
		chunk[i] = byte(i * 7)
	}
	for i := range n {
		if _, err := s.Device().WriteAt(chunk, int64(i)*volume.MiB); err != nil {
			t.Fatal(err)
		}
	}
	c, err := s.Seal(ctx, volume.NewCut(volume.Clean, true))
	if err == nil {
		err = s.Release(ctx, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	if v, err = m.Get(ctx, v.ID); err != nil {
		t.Fatal(err)
	}
	return v
}
