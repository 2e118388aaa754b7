package volume_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func rename(t *testing.T, m *volume.Manager, ref, name string) error {
	t.Helper()
	v, err := m.Update(t.Context(), ref, volume.Update{Name: &name})
	if err == nil && v.Name != name {
		t.Fatalf("renamed to %q and is called %q", name, v.Name)
	}
	return err
}

// I8: whoever asks at once for one name, one gets it, and the others leave only tombstones.
func TestOneOf64ConcurrentCreatorsGetsTheName(t *testing.T) {
	w := newWorld(t)
	nodes := []*volume.Manager{w.node("a"), w.node("b")}
	create(t, nodes[0], volume.CreateOptions{})
	var group sync.WaitGroup
	won := make(chan volume.Volume, 64)
	for i := range 64 {
		group.Go(func() {
			v, err := nodes[i%2].Create(t.Context(), volume.CreateOptions{Name: "data", Size: volume.MinSize})
			switch {
			case err == nil:
				won <- v
			case !errors.Is(err, volume.ErrExists):
				t.Errorf("a loser is told: %v", err)
			}
		})
	}
	group.Wait()
	close(won)
	winner, more := <-won, <-won
	if winner.ID == "" || more.ID != "" {
		t.Fatalf("winners: %q and %q", winner.ID, more.ID)
	}
	for _, m := range nodes {
		if got := get(t, m, "data").ID; got != winner.ID {
			t.Errorf("the name points to %s, created was %s", got, winner.ID)
		}
		if n := len(liveVolumes(t, m)); n != 2 {
			t.Errorf("%d volumes are listed, want the winner and the first", n)
		}
	}
}

func TestNameIsFreeAfterDeleteOnEveryNode(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	first := create(t, a, volume.CreateOptions{Name: "data"})
	_, err := b.Create(t.Context(), volume.CreateOptions{Name: "data", Size: volume.MinSize})
	wantErr(t, err, volume.ErrExists)
	if !contains(err.Error(), "data", first.ID, "ready") {
		t.Errorf("message %q", err)
	}
	ok(t, b.Delete(t.Context(), "data"))
	second := create(t, b, volume.CreateOptions{Name: "data"})
	if got := get(t, a, "data").ID; got != second.ID || got == first.ID {
		t.Errorf("name points to %s", got)
	}
}

// Another tenant's names and ids do not exist.
func TestTenantsDoNotSeeEachOther(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	other := w.tenant(a.Repository(), "other")
	mine := create(t, a, volume.CreateOptions{Name: "data"})
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "data", volume.SnapshotOptions{}))
	theirs := create(t, other, volume.CreateOptions{Name: "data"})
	if theirs.ID == mine.ID || len(liveVolumes(t, other)) != 1 {
		t.Fatalf("other tenant sees %v", liveVolumes(t, other))
	}
	ctx := t.Context()
	for name, err := range map[string]error{
		"get":        second(other.Get(ctx, mine.ID)),
		"attach":     second(other.Attach(ctx, mine.ID, "sb")),
		"pin":        second(other.Pin(ctx, mine.ID, "sb")),
		"fork":       second(other.Fork(ctx, mine.ID, volume.ForkOptions{})),
		"snapshot":   second(other.Snapshot(ctx, mine.ID, volume.SnapshotOptions{})),
		"restore":    second(other.Restore(ctx, shot.ID, volume.ForkOptions{})),
		"checkpoint": second(other.Checkpoint(ctx, shot.ID)),
		"update":     second(other.Update(ctx, mine.ID, volume.Update{Name: new("x")})),
		"delete":     other.Delete(ctx, mine.ID),
	} {
		if !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("%s of a foreign id: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A volume whose creation has failed, or is not complete, holds its name until it is deleted.
func TestUnfinishedVolumeHoldsItsName(t *testing.T) {
	for _, status := range []volume.Status{volume.StatusUploading, volume.StatusFailed} {
		timeless(t, string(status), func(t *testing.T) {
			w := newWorld(t)
			m := w.node("a")
			v := w.unfinished(m, "data", status)
			_, err := m.Create(t.Context(), volume.CreateOptions{Name: "data", Size: volume.MinSize})
			wantErr(t, err, volume.ErrExists)
			wantErr(t, rename(t, m, create(t, m, volume.CreateOptions{}).ID, "data"), volume.ErrExists)
			if got := get(t, m, "data"); got.ID != v.ID || got.Status != status {
				t.Errorf("the name points to %s, %s", got.ID, got.Status)
			}
			ok(t, m.Delete(t.Context(), "data"))
			create(t, m, volume.CreateOptions{Name: "data"})
		})
	}
}

// unfinished leaves a named volume whose creator died before it was ready, and gives it a status.
func (w *world) unfinished(m *volume.Manager, name string, status volume.Status) volume.Volume {
	w.t.Helper()
	create(w.t, m, volume.CreateOptions{}) // so that the puts are those of one creation
	st := storetest.StopAt(w.st, 3, false) // record, name, and then ready
	dying := w.on(st, "dying-"+string(status))
	if _, err := dying.Create(w.t.Context(), volume.CreateOptions{Name: name, Size: volume.MinSize}); err == nil {
		w.t.Fatal("the creator did not die")
	}
	for id, v := range liveVolumes(w.t, m) {
		if v.Name == name {
			if status != volume.StatusUploading {
				w.edit(m, id, func(r *record.Volume) { r.Status = status })
			}
			return get(w.t, m, id)
		}
	}
	w.t.Fatal("nothing was left")
	return volume.Volume{}
}

func TestRenameMovesTheNameAndOnlyThat(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "old", 'x')
	ok(t, rename(t, b, "old", "new"))
	got := get(t, a, "new")
	if got.ID != v.ID || got.Name != "new" {
		t.Fatalf("renamed volume is %+v", got)
	}
	_, err := a.Get(t.Context(), "old")
	wantErr(t, err, volume.ErrNotFound)
	create(t, a, volume.CreateOptions{Name: "old"})
	wantErr(t, rename(t, a, "new", "old"), volume.ErrExists)
	if r := newestRecord(t, w.st, a, v.ID); r.Name != "new" || r.Renaming != nil {
		t.Errorf("a refused rename leaves %+v", r.Renaming)
	}
	// Back and forth: older claims of the same volume do not count.
	ok(t, a.Delete(t.Context(), "old"))
	for _, name := range []string{"old", "new", "old"} {
		ok(t, rename(t, b, v.ID, name))
	}
	reads(t, w.st, get(t, a, "old"), map[int64]byte{8192: 'x'})
	// A volume without a name gets one the same way.
	ok(t, rename(t, a, create(t, a, volume.CreateOptions{}).ID, "new"))
}

// 5.4: wherever a rename stops, the old name is in force, the new one points to nobody else, and a repeated rename, a
// rename back or a delete settles it.
func TestRenameInterruptedAtEachStepLeavesTheOldNameInForce(t *testing.T) {
	for stop := 1; stop <= 3; stop++ {
		for _, applied := range []bool{false, true} {
			timeless(t, fmt.Sprintf("put %d applied %v", stop, applied), func(t *testing.T) {
				w := newWorld(t)
				m := w.node("a")
				v := create(t, m, volume.CreateOptions{Name: "old"})
				dying := w.on(storetest.StopAt(w.st, stop, applied), "dying")
				if err := rename(t, dying, "old", "new"); err == nil {
					t.Fatal("the renamer did not die")
				}
				now := "old"
				if stop == 3 && applied {
					now = "new"
				}
				if got := get(t, m, now); got.ID != v.ID {
					t.Fatalf("%s points to %s", now, got.ID)
				}
				if now == "old" {
					_, err := m.Get(t.Context(), "new")
					wantErr(t, err, volume.ErrNotFound)
				}
				_, err := m.Create(t.Context(), volume.CreateOptions{Name: now, Size: volume.MinSize})
				wantErr(t, err, volume.ErrExists)
				settleRename(t, m, v.ID, now)
			})
		}
	}
}

func settleRename(t *testing.T, m *volume.Manager, id, now string) {
	t.Helper()
	if now == "old" { // give the rename up: the new name is free again
		ok(t, rename(t, m, id, "old"))
		ok(t, m.Delete(t.Context(), create(t, m, volume.CreateOptions{Name: "new"}).ID))
	}
	ok(t, rename(t, m, id, "new"))
	ok(t, m.Delete(t.Context(), create(t, m, volume.CreateOptions{Name: "old"}).ID))
	ok(t, m.Delete(t.Context(), id))
	create(t, m, volume.CreateOptions{Name: "new"})
}

// A renamer that stalls does not take the name away from whoever got it meanwhile, at any of its steps.
func TestStalledRenameLosesToWhoeverWasFaster(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	for at := 1; ; at++ {
		w := newWorld(t)
		a, h := w.hooked("a")
		b := w.node("b")
		v := create(t, b, volume.CreateOptions{Name: "old"})
		create(t, b, volume.CreateOptions{Name: "other"})
		got := error(nil)
		h.arm(at, func() {
			_, got = b.Create(context.Background(), volume.CreateOptions{Name: "new", Size: volume.MinSize})
		})
		err := rename(t, a, "old", "new")
		if !h.fired() {
			break
		}
		holder, mine := get(t, b, "new").ID, get(t, b, v.ID).Name
		switch {
		case err == nil && errors.Is(got, volume.ErrExists) && holder == v.ID && mine == "new":
		case errors.Is(err, volume.ErrExists) && got == nil && holder != v.ID && mine == "old":
		default:
			t.Fatalf("request %d: rename %v, create %v, new points to %s, renamed is called %s", at, err, got, holder, mine)
		}
	}
}

// Two renames of one volume, and two volumes renamed to one name: one wins each time, whatever the interleaving.
func TestConcurrentRenamesLeaveOneHolderOfEachName(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	for at := 1; ; at++ {
		w := newWorld(t)
		a, h := w.hooked("a")
		b := w.node("b")
		x, y := create(t, b, volume.CreateOptions{Name: "x"}), create(t, b, volume.CreateOptions{Name: "y"})
		h.arm(at, func() {
			// One of them or both may be refused; what counts is what the records say after it.
			_ = second(b.Update(context.Background(), y.ID, volume.Update{Name: new("new")}))
			_ = second(b.Update(context.Background(), x.ID, volume.Update{Name: new("z")}))
		})
		err := rename(t, a, x.ID, "new")
		if !h.fired() {
			break
		}
		holders := map[string][]string{}
		for id, v := range liveVolumes(t, b) {
			holders[v.Name] = append(holders[v.Name], id)
			if got := get(t, a, v.Name).ID; got != id {
				t.Fatalf("request %d, rename %v: %s is the name of %s and points to %s", at, err, v.Name, id, got)
			}
		}
		for name, ids := range holders {
			if len(ids) > 1 {
				t.Fatalf("request %d, rename %v: %s is the name of %s", at, err, name, strings.Join(ids, " and "))
			}
		}
	}
}
