package volume_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// Everything that copies, by name.
var copies = map[string]func(*testing.T, *volume.Manager, string) volume.Volume{
	"fork":        fork,
	"create from": func(t *testing.T, m *volume.Manager, ref string) volume.Volume { return copyOf(t, m, ref, "") },
	"ro from": func(t *testing.T, m *volume.Manager, ref string) volume.Volume {
		return copyOf(t, m, ref, volume.ReadOnly)
	},
	"restore": func(t *testing.T, m *volume.Manager, ref string) volume.Volume {
		c := must[volume.Checkpoint](t)(m.Snapshot(t.Context(), ref, volume.SnapshotOptions{}))
		return must[volume.Volume](t)(m.Restore(t.Context(), c.ID, volume.ForkOptions{}))
	},
}

func copyOf(t *testing.T, m *volume.Manager, ref string, mode volume.Mode) volume.Volume {
	t.Helper()
	return create(t, m, volume.CreateOptions{Source: volume.FromVolume(ref), Mode: mode})
}

// I6, A-008, A-010, A-044, A-046, A-057: a copy shares the source's layers, moves no data, and leaves every byte of the
// source's record as it was, whoever holds the source.
func TestCopyingNeverTouchesTheSource(t *testing.T) {
	for name, duplicate := range copies {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.node("a")
			b, trace := w.traced("b")
			src := written(t, a, "src", 'x')
			s := attach(t, a, "src", "sb")
			write(t, s.Device(), 12288, 'y')
			publish(t, s)
			write(t, s.Device(), 16384, 'z') // not published: not in the copy
			before := newestBody(t, w.st, volumePrefix(a, src.ID))
			trace.Reset()
			child := duplicate(t, b, "src")
			if n := trace.Count(storetest.OpPutBlob, storetest.OpReadRange); n > 0 {
				t.Errorf("%d requests move data", n)
			}
			if diff := cmp.Diff(before, newestBody(t, w.st, volumePrefix(a, src.ID))); diff != "" {
				t.Errorf("the source's record changed: %s", diff)
			}
			now := get(t, b, src.ID)
			if diff := cmp.Diff(now.Stack, child.Stack); diff != "" {
				t.Errorf("the copy's layers: %s", diff)
			}
			if child.ID == src.ID || child.Lineage.Volume != src.ID || child.Reservation.Epoch != 0 {
				t.Errorf("child is %+v", child)
			}
			reads(t, w.st, child, map[int64]byte{4096: 'F', 8192: 'x', 12288: 'y', 16384: 0})
			release(t, s)
		})
	}
}

// what parent and child write afterwards, neither sees of the other.
func TestParentAndChildAreIndependent(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	parent := written(t, a, "parent", 'x')
	child, frozen := fork(t, b, "parent"), copyOf(t, b, "parent", volume.ReadOnly)
	for ref, letter := range map[string]byte{parent.ID: 'p', child.ID: 'c'} {
		s := attach(t, b, ref, "sb-"+ref)
		write(t, s.Device(), 8192, letter)
		release(t, s)
	}
	reads(t, w.st, get(t, a, parent.ID), map[int64]byte{8192: 'p'})
	reads(t, w.st, get(t, a, child.ID), map[int64]byte{8192: 'c'})
	reads(t, w.st, get(t, a, frozen.ID), map[int64]byte{8192: 'x'})
	if diff := cmp.Diff(frozen, get(t, a, frozen.ID)); diff != "" {
		t.Errorf("the ro copy changed: %s", diff)
	}
}

// A-034, D-09: a volume that somebody holds is copied from its last published generation, and the copy says which one.
func TestForkOfAHeldVolumeSaysWhichGenerationItHolds(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "", 'x')
	for _, held := range []string{"mounted", "paused"} {
		s := attach(t, a, v.ID, "sb")
		ok(t, s.Mounted(t.Context()))
		write(t, s.Device(), 8192, 'y')
		if held == "paused" {
			pause(t, s)
		}
		now, child := get(t, b, v.ID), fork(t, b, v.ID)
		if child.Lineage != (volume.Lineage{Volume: v.ID, Generation: now.Generation}) {
			t.Errorf("%s: lineage %+v, the source is at %d", held, child.Lineage, now.Generation)
		}
		want := byte('x')
		if held == "paused" {
			want = 'y'
		}
		reads(t, w.st, child, map[int64]byte{8192: want})
		_, err := b.Attach(t.Context(), v.ID, "other")
		wantErr(t, err, volume.ErrConflict)
		release(t, attach(t, b, child.ID, "other")) // the escape that is always open
		if held == "mounted" {
			pause(t, s)
		}
	}
}

// A-048, D-09: with flush the holder publishes first, if it is here; elsewhere the answer names its node.
func TestFlushPublishesHereAndNamesTheNodeElsewhere(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "", 'x')
	s := attach(t, a, v.ID, "sb")
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 8192, 'y')
	published := get(t, a, v.ID).Generation

	_, err := b.Fork(t.Context(), v.ID, volume.ForkOptions{Flush: true})
	var elsewhere *volume.FlushUnavailableError
	if !errors.As(err, &elsewhere) || *elsewhere != (volume.FlushUnavailableError{Volume: v.ID, Sandbox: "sb", Node: "a"}) {
		t.Fatalf("error is %v", err)
	}
	wantErr(t, err, volume.ErrNotReady)
	_, err = b.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{Flush: true})
	wantErr(t, err, volume.ErrNotReady)
	if n := get(t, a, v.ID).Generation; n != published {
		t.Fatal("a refused flush published")
	}

	child := must[volume.Volume](t)(a.Fork(t.Context(), v.ID, volume.ForkOptions{Flush: true}))
	reads(t, w.st, child, map[int64]byte{8192: 'y'})
	write(t, s.Device(), 8192, 'z')
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{Flush: true}))
	if shot.Consistency != volume.Crash || shot.Generation != get(t, a, v.ID).Generation {
		t.Errorf("checkpoint %+v", shot)
	}
	reads(t, w.st, must[volume.Volume](t)(b.Restore(t.Context(), shot.ID, volume.ForkOptions{})), map[int64]byte{8192: 'z'})
	pause(t, s)
	must[volume.Volume](t)(b.Fork(t.Context(), v.ID, volume.ForkOptions{Flush: true})) // paused: all is published
}

// restoring makes a new exclusive volume each time, and its lineage names the checkpoint.
func TestRestoreTwiceMakesTwoVolumes(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "src", 'x')
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "src", volume.SnapshotOptions{Name: "nightly"}))
	s := attach(t, a, "src", "sb")
	write(t, s.Device(), 8192, '!')
	release(t, s)
	one := must[volume.Volume](t)(b.Restore(t.Context(), shot.ID, volume.ForkOptions{Name: "again"}))
	two := must[volume.Volume](t)(b.Restore(t.Context(), shot.ID, volume.ForkOptions{}))
	if one.ID == two.ID || one.ID == v.ID || one.Mode != volume.Exclusive || one.Name != "again" {
		t.Errorf("restored %+v and %+v", one, two)
	}
	for _, r := range []volume.Volume{one, two} {
		if r.Lineage.Checkpoint != shot.ID || r.Lineage.Volume != v.ID {
			t.Errorf("lineage %+v", r.Lineage)
		}
		reads(t, w.st, r, map[int64]byte{8192: 'x'})
	}
	reads(t, w.st, get(t, b, "src"), map[int64]byte{8192: '!'}) // nothing is restored in place
}

// copies and checkpoints have their own references. The source can be deleted and collected.
func TestCopiesOutliveTheirSource(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "src", 'x')
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "src", volume.SnapshotOptions{}))
	child, frozen := fork(t, a, "src"), copyOf(t, a, "src", volume.ReadOnly)
	ok(t, a.Delete(t.Context(), "src"))
	for range 3 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	_, err := b.Get(t.Context(), v.ID)
	wantErr(t, err, volume.ErrNotFound)
	restored := must[volume.Volume](t)(b.Restore(t.Context(), shot.ID, volume.ForkOptions{}))
	for _, c := range []volume.Volume{child, frozen, restored} {
		reads(t, w.st, get(t, b, c.ID), map[int64]byte{4096: 'F', 8192: 'x'})
	}
	// A copy of a copy does not need the first.
	grandchild := fork(t, b, child.ID)
	ok(t, b.Delete(t.Context(), child.ID))
	ok(t, b.DeleteCheckpoint(t.Context(), shot.ID))
	for range 3 {
		collect(t, a, volume.CollectOptions{})
	}
	reads(t, w.st, get(t, a, grandchild.ID), map[int64]byte{8192: 'x'})
	_, err = a.Restore(t.Context(), shot.ID, volume.ForkOptions{})
	wantErr(t, err, volume.ErrNotFound)
}

// an ro volume is made from a clean generation only, and the answer names the one that is not.
func TestReadOnlyNeedsACleanGeneration(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v := written(t, a, "src", 'x')
	s := attach(t, a, "src", "sb")
	write(t, s.Device(), 8192, 'y')
	crashed := must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut("", false)))
	ok(t, s.Publish(t.Context(), crashed))
	shot := must[volume.Checkpoint](t)(s.Checkpoint(t.Context(), crashed, volume.SnapshotOptions{}))
	for _, from := range []volume.Source{volume.FromVolume("src"), volume.FromCheckpoint(shot.ID)} {
		_, err := a.Create(t.Context(), volume.CreateOptions{Mode: volume.ReadOnly, Source: from})
		var dirty *volume.NotCleanError
		if !errors.As(err, &dirty) || dirty.Generation == 0 || !errors.Is(err, volume.ErrNotReady) {
			t.Errorf("ro from a crash state: %v", err)
		}
	}
	fork(t, a, v.ID) // an exclusive child repairs itself when it is mounted
	// The same bytes cut again at rest are clean.
	pause(t, s)
	copyOf(t, a, "src", volume.ReadOnly)
}

// checkpoints are listed by volume, read by id, and belong to their cut.
func TestCheckpointsAreListedByVolume(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	x, y := written(t, a, "x", 'x'), written(t, a, "y", 'y')
	var ids []string
	for _, id := range []string{x.ID + "_-first", x.ID + "_Z", x.ID + "_a"} {
		c := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "x", volume.SnapshotOptions{ID: id}))
		ids = append(ids, c.ID)
	}
	must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "y", volume.SnapshotOptions{}))
	got := must[[]volume.Checkpoint](t)(storetest.Collect(b.Checkpoints(t.Context(), volume.ListOptions{Volume: x.ID})))
	var listed []string
	for _, c := range got {
		listed = append(listed, c.ID)
		if diff := cmp.Diff(c, must[volume.Checkpoint](t)(b.Checkpoint(t.Context(), c.ID))); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff(ids, listed); diff != "" {
		t.Error(diff)
	}
	rest := must[[]volume.Checkpoint](t)(storetest.Collect(b.Checkpoints(t.Context(), volume.ListOptions{After: ids[2]})))
	if len(rest) != 1 || rest[0].Volume != y.ID {
		t.Errorf("after the last of x: %+v", rest)
	}
}
