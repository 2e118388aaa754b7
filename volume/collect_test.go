package volume_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func layerKeys(t *testing.T, w *world) []string {
	t.Helper()
	return keysBelow(t, w.st, "v1/layers/")
}

// 5.7: the first run after a deletion lets go, the second one deletes. Then nothing is left of anything.
func TestTwoRunsRemoveWhatADeletionFreed(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "data", 'x')
	frozen := readOnly(t, a, 'y')
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{}))
	if r := collect(t, b, volume.CollectOptions{DropUnusedBases: true}); len(r.Candidates)+r.Settled+r.Dropped > 0 {
		t.Fatalf("a run without garbage: %+v", r)
	}
	for id := range liveVolumes(t, a) {
		ok(t, a.Delete(t.Context(), id))
	}
	ok(t, a.DeleteCheckpoint(t.Context(), shot.ID))
	all := layerKeys(t, w)
	one := collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	// Three volumes, the checkpoint and the hidden volume.
	if one.Settled != 5 || one.Dropped != 1 || len(one.Candidates) > 0 || one.Layers != len(all) || one.Bytes == 0 {
		t.Errorf("first run %+v", one)
	}
	if diff := cmp.Diff(all, layerKeys(t, w)); diff != "" {
		t.Errorf("the first run deleted layers: %s", diff)
	}
	two := collect(t, a, volume.CollectOptions{DropUnusedBases: true})
	if diff := cmp.Diff(all, two.Candidates); diff != "" || two.CandidateBytes != one.Bytes {
		t.Errorf("second run: %s", diff)
	}
	if left := layerKeys(t, w); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	if r := collect(t, a, volume.CollectOptions{DropUnusedBases: true}); r.Settled+r.Layers+r.Dropped > 0 {
		t.Errorf("third run %+v", r)
	}
	_, err := a.Pin(t.Context(), frozen.ID, "sb")
	wantErr(t, err, volume.ErrNotFound)
	release(t, attach(t, a, create(t, a, volume.CreateOptions{}).ID, "sb")) // from a new hidden volume
}

// I7: whatever is alive stays: held, paused and pinned volumes, uploads under way, copies of the deleted, checkpoints.
func TestCollectNeverDeletesAnythingAlive(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	mounted, paused := written(t, a, "mounted", 'm'), written(t, a, "paused", 'p')
	pinned, gone := readOnly(t, a, 'r'), written(t, a, "gone", 'g')
	child := fork(t, a, "gone")
	s := attach(t, a, "mounted", "one")
	pause(t, attach(t, a, "paused", "two"))
	r := pin(t, b, pinned.ID, "three")
	ok(t, a.Delete(t.Context(), "gone"))
	write(t, s.Device(), 12288, 'n')
	c := seal(t, s, false)
	for range 3 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	ok(t, s.Publish(t.Context(), c))
	collect(t, b, volume.CollectOptions{})
	for id, want := range map[string]map[int64]byte{
		mounted.ID: {4096: 'F', 8192: 'm', 12288: 'n'}, paused.ID: {8192: 'p'}, pinned.ID: {8192: 'r'}, child.ID: {8192: 'g'},
	} {
		v := get(t, b, id)
		checkLayers(t, w, v.Stack)
		reads(t, w.st, v, want)
	}
	ok(t, r.Release(t.Context()))
	release(t, s)
	_ = gone
}

// An upload that was abandoned is garbage from the moment its key is no longer declared; a key that is declared protects
// what is there already.
func TestAbandonedUploadIsCollectedOnceItsKeyIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, f := w.faulty("a")
		v := create(t, m, volume.CreateOptions{})
		s := attach(t, m, v.ID, "sb")
		write(t, s.Device(), 8192, 'x')
		c := seal(t, s, true)
		f.plan = stopAfter(storetest.OpPutIfAbsent, "", storetest.ErrorBefore)
		if err := s.Publish(t.Context(), c); err == nil {
			t.Fatal("published")
		}
		f.plan = nil
		if r := collect(t, m, volume.CollectOptions{}); len(r.Candidates) > 0 || len(layerKeys(t, w)) != 2 {
			t.Fatalf("an upload under way is a candidate: %+v", r)
		}
		ok(t, s.Close())
		w.edit(m, v.ID, func(r *record.Volume) { r.Reservation.Epoch++; r.Keys = nil }) // what a takeover leaves
		if r := collect(t, m, volume.CollectOptions{}); len(r.Candidates) != 1 || len(layerKeys(t, w)) != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// People have time to undo: a deleted volume is whole for MinAge.
func TestMinAgeKeepsWhatWasDeleted(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := written(t, m, "", 'x')
	ok(t, m.Delete(t.Context(), v.ID))
	run := func(o volume.CollectOptions) volume.CollectReport {
		return must[volume.CollectReport](t)(m.Repository().Collect(t.Context(), o))
	}
	for range 3 {
		if r := run(volume.CollectOptions{}); r.Settled+len(r.Candidates) > 0 {
			t.Fatalf("within a day: %+v", r)
		}
	}
	w.clock = w.clock.Add(volume.DefaultMinAge)
	if r := run(volume.CollectOptions{}); r.Settled != 1 {
		t.Errorf("after a day: %+v", r)
	}
	if r := run(volume.CollectOptions{}); len(r.Candidates) != 1 {
		t.Errorf("the run after: %+v", r)
	}
	_, err := m.Repository().Collect(t.Context(), volume.CollectOptions{MinAge: new(-time.Second)})
	wantErr(t, err, volume.ErrInvalid)
}

func TestDryRunDeletesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := written(t, m, "", 'x')
	ok(t, m.Delete(t.Context(), v.ID))
	dry := volume.CollectOptions{DryRun: true, DropUnusedBases: true}
	if r := collect(t, m, dry); r.Settled+r.Dropped > 0 {
		t.Errorf("a dry run settled: %+v", r)
	}
	collect(t, m, volume.CollectOptions{})
	before := layerKeys(t, w)
	if r := collect(t, m, dry); len(r.Candidates) != 1 || r.CandidateBytes == 0 {
		t.Errorf("dry run %+v", r)
	}
	if diff := cmp.Diff(before, layerKeys(t, w)); diff != "" {
		t.Error(diff)
	}
	if r := collect(t, m, volume.CollectOptions{}); len(r.Candidates) != 1 {
		t.Errorf("run %+v", r)
	}
}

// A creation that died is cleaned up after a day: record, name, and a hidden volume to which its name does not point.
func TestUnfinishedCreationsAreRemovedAfterADay(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	var v volume.Volume
	synctest.Test(t, func(t *testing.T) {
		inner := *w
		inner.t = t
		v = inner.unfinished(inner.node("b"), "data", volume.StatusUploading)
	})
	if r := collect(t, m, volume.CollectOptions{}); r.Abandoned > 0 {
		t.Fatal("removed at once")
	}
	w.clock = w.clock.Add(24 * time.Hour)
	if r := collect(t, m, volume.CollectOptions{}); r.Abandoned != 1 {
		t.Errorf("%+v", r)
	}
	_, err := m.Get(t.Context(), v.ID)
	wantErr(t, err, volume.ErrNotFound)
	create(t, m, volume.CreateOptions{Name: "data"})
}

func TestNamelessHiddenVolumeIsDroppedAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, f := w.faulty("a")
		f.plan = storetest.Match(storetest.OpPutIfAbsent, "v1/names/_/", storetest.ErrorBefore)
		if _, err := m.Create(t.Context(), volume.CreateOptions{}); err == nil {
			t.Fatal("created")
		}
		f.plan = nil
		create(t, m, volume.CreateOptions{})
		w.clock = w.clock.Add(24 * time.Hour)
		if r := collect(t, m, volume.CollectOptions{}); r.Dropped != 1 {
			t.Errorf("%+v", r)
		}
		for range 2 {
			collect(t, m, volume.CollectOptions{})
		}
		if n := len(layerKeys(t, w)); n != 1 {
			t.Errorf("%d hidden layers", n)
		}
	})
}

// Each begun voids the run before it: the first of two at once deletes nothing and says so.
func TestOfTwoCollectorsTheFirstDeletesNothing(t *testing.T) {
	scene := newWorld(t)
	first := scene.node("first")
	ok(t, first.Delete(t.Context(), written(t, first, "", 'x').ID))
	collect(t, first, volume.CollectOptions{})
	for at := 1; ; at++ {
		w := scene.copy(t)
		a, h := w.hooked("a")
		b := w.node("b")
		deleted := 0
		h.arm(at, func() {
			second := collect(t, b, volume.CollectOptions{TakeOver: true})
			deleted = len(second.Candidates)
		})
		r, err := a.Repository().Collect(t.Context(), volume.CollectOptions{MinAge: new(time.Duration)})
		if !h.fired() {
			break
		}
		if err != nil && !errors.Is(err, volume.ErrConflict) {
			t.Errorf("request %d: %v", at, err)
		}
		if n := len(layerKeys(t, w)); n != 1 || (deleted == 0 && (err != nil || len(r.Candidates) == 0)) {
			t.Errorf("request %d: %d layers are left; the second deleted %d, the first: %v", at, n, deleted, err)
		}
		collect(t, b, volume.CollectOptions{}) // neither is in the way of the next
	}
}

// A run that died is begun again: after a day, or at once by whoever knows that it is dead. One that ended by itself, for
// whatever reason, is in nobody's way.
func TestRunThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.node("a")
		v := written(t, m, "", 'x')
		ok(t, m.Delete(t.Context(), v.ID))
		dying := w.on(storetest.StopAt(w.st, 2, false), "dying") // begun, and then ended
		_, err := dying.Repository().Collect(t.Context(), volume.CollectOptions{})
		wantErr(t, err, volume.ErrConflict)
		_, err = m.Repository().Collect(t.Context(), volume.CollectOptions{})
		wantErr(t, err, volume.ErrInUse)
		if !contains(err.Error(), "node dying", "2026-11-01T00:00:00Z") {
			t.Errorf("message %q", err)
		}
		collect(t, m, volume.CollectOptions{TakeOver: true})
		dying = w.on(storetest.StopAt(w.st, 2, true), "dying2") // its end is written, its deletions are not
		_, err = dying.Repository().Collect(t.Context(), volume.CollectOptions{})
		wantErr(t, err, volume.ErrConflict)
		if r := collect(t, m, volume.CollectOptions{}); len(r.Candidates) != 1 {
			t.Errorf("%+v", r)
		}
		dying = w.on(storetest.StopAt(w.st, 2, false), "dying3")
		_ = second(dying.Repository().Collect(t.Context(), volume.CollectOptions{}))
		w.clock = w.clock.Add(24 * time.Hour)
		collect(t, m, volume.CollectOptions{})
	})
}

// a record that cannot be read, newer or damaged, is listed as unreadable, is not changed, and stops a run until an
// operator names it. Then what was uploaded for it stays all the same.
func TestUnreadableRecordStopsTheCollector(t *testing.T) {
	for name, body := range map[string]string{
		"damaged": `{"format":1,`,
		"newer":   `{"format":9,"minReader":9,"state":7}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.node("a")
			v := written(t, a, "data", 'x')
			shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{}))
			garbage := written(t, a, "", 'g')
			ok(t, a.Delete(t.Context(), garbage.ID))
			collect(t, a, volume.CollectOptions{})
			key := keysBelow(t, w.st, volumePrefix(a, v.ID))[0]
			w.replace(key, []byte(body))
			checkUnreadable(t, w, a, v)

			var stopped *volume.UnreadableRecordError
			_, err := a.Repository().Collect(t.Context(), volume.CollectOptions{MinAge: new(time.Duration)})
			if !errors.As(err, &stopped) || stopped.ID != v.ID || !errors.Is(err, volume.ErrUnreadable) {
				t.Fatalf("collector: %v", err)
			}
			before := must[[]byte](t)(w.st.Get(t.Context(), key))
			r := collect(t, a, volume.CollectOptions{Skip: []string{v.ID}})
			if len(r.Candidates) != 1 || !cmp.Equal(r.Skipped, []string{v.ID}) {
				t.Errorf("%+v", r)
			}
			ok(t, a.DeleteCheckpoint(t.Context(), shot.ID))
			for range 3 {
				collect(t, a, volume.CollectOptions{Skip: []string{v.ID}})
			}
			checkLayers(t, w, v.Stack)
			if after := must[[]byte](t)(w.st.Get(t.Context(), key)); string(after) != string(before) {
				t.Error("the record was changed")
			}
		})
	}
}

func checkUnreadable(t *testing.T, w *world, m *volume.Manager, v volume.Volume) {
	t.Helper()
	if got := liveVolumes(t, m)[v.ID]; got.Status != volume.StatusUnreadable {
		t.Errorf("listed as %q", got.Status)
	}
	ctx, before := t.Context(), keysBelow(t, w.st, volumePrefix(m, v.ID))
	for what, err := range map[string]error{
		"get":    second(m.Get(ctx, "data")),
		"attach": second(m.Attach(ctx, v.ID, "sb")),
		"fork":   second(m.Fork(ctx, "data", volume.ForkOptions{})),
		"update": second(m.Update(ctx, v.ID, volume.Update{Name: new("other")})),
		"delete": m.Delete(ctx, v.ID),
		"name":   second(m.Create(ctx, volume.CreateOptions{Name: "data", Size: volume.MinSize})),
	} {
		if !errors.Is(err, volume.ErrUnreadable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if diff := cmp.Diff(before, keysBelow(t, w.st, volumePrefix(m, v.ID))); diff != "" {
		t.Error(diff)
	}
}

// Hidden volumes that something is a copy of stay, and one that is dropped under a creation is made again.
func TestUnusedBasesAreDroppedAndMadeAgain(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	small := create(t, a, volume.CreateOptions{})
	large := create(t, a, volume.CreateOptions{Size: volume.GiB})
	ok(t, a.Delete(t.Context(), large.ID))
	for range 2 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	if n := len(layerKeys(t, w)); n != 1 {
		t.Errorf("%d hidden layers", n)
	}
	reads(t, w.st, small, map[int64]byte{4096: 'F'})
	reads(t, w.st, create(t, a, volume.CreateOptions{Size: volume.GiB}), map[int64]byte{4096: 'F'}) // a remembers the old one
}
