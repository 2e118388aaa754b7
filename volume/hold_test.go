package volume_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// I1, A-006, A-031, A-032, A-059, A-074: of any number that attach at once on two nodes, one holds the volume, and each
// other one is told the same.
func TestOneOfManySandboxesHoldsTheVolume(t *testing.T) {
	w := newWorld(t)
	nodes := []*volume.Manager{w.node("a"), w.node("b")}
	v := create(t, nodes[0], volume.CreateOptions{})
	var group sync.WaitGroup
	sessions, conflicts := make(chan *volume.Session, 16), make(chan *volume.ConflictError, 16)
	for i := range 16 {
		group.Go(func() {
			s, err := nodes[i%2].Attach(t.Context(), v.ID, fmt.Sprint("sb", i))
			var conflict *volume.ConflictError
			switch {
			case err == nil:
				sessions <- s
			case errors.As(err, &conflict):
				conflicts <- conflict
			default:
				t.Errorf("a loser is told: %v", err)
			}
		})
	}
	group.Wait()
	close(sessions)
	close(conflicts)
	s := <-sessions
	if s == nil || len(sessions) > 0 {
		t.Fatal("not exactly one holder")
	}
	res := get(t, nodes[0], v.ID).Reservation
	if res.Epoch != 1 || res.Grant.Owner != s.Sandbox() {
		t.Errorf("reservation %+v", res)
	}
	want := &volume.ConflictError{Op: "acquire", Owner: s.Sandbox(), Node: res.Grant.Node,
		Phase: reservation.Preparing, Epoch: 1, Since: res.Since}
	for c := range conflicts {
		if diff := cmp.Diff(want, c); diff != "" {
			t.Errorf("a conflict differs: %s", diff)
		}
	}
	release(t, s)
	for _, m := range nodes {
		if pending, bad := m.Repository().Journal(); len(pending)+len(bad) > 0 {
			t.Errorf("losers leave %v %v in the journal", pending, bad)
		}
	}
}

// I9: a pause keeps the reservation, across restarts of every node and any length of time.
// Only the owner resumes, on whichever node, and finds the volume as it left it.
func TestPausedVolumeStaysItsOwners(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := create(t, a, volume.CreateOptions{Name: "data"})
	s := attach(t, a, "data", "sb")
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 8192, 'x')
	pause(t, s)
	paused := get(t, a, v.ID)
	if paused.Reservation.Phase != reservation.Paused || paused.Status != volume.StatusReady {
		t.Fatalf("paused volume is %+v", paused)
	}
	a, b = w.restart(a), w.restart(b)
	w.clock = w.clock.AddDate(10, 0, 0)
	collect(t, b, volume.CollectOptions{})
	_, err := a.Attach(t.Context(), "data", "other")
	wantErr(t, err, volume.ErrConflict)
	wantErr(t, b.Delete(t.Context(), "data"), volume.ErrInUse)
	ok(t, b.Free(t.Context(), "data", "other")) // not its own: nothing happens
	if diff := cmp.Diff(paused, get(t, b, v.ID)); diff != "" {
		t.Fatalf("the paused volume changed: %s", diff)
	}
	s = attach(t, b, v.ID, "sb")
	if s.Epoch() != 2 || s.From() != reservation.Paused || s.Volume() != v.ID || at(t, s.Device(), 8192) != 'x' {
		t.Errorf("resumed with epoch %d from %s", s.Epoch(), s.From())
	}
	_, err = a.Attach(t.Context(), "data", "sb") // it runs elsewhere: that would be a takeover
	wantErr(t, err, volume.ErrConflict)
	wantErr(t, a.Free(t.Context(), "data", "sb"), volume.ErrInUse)
	pause(t, s)
	ok(t, a.Free(t.Context(), "data", "sb"))
	ok(t, a.Free(t.Context(), "data", "sb"))
	release(t, attach(t, a, "data", "other"))
}

// the end of a sandbox frees its volume and deletes nothing.
func TestReleaseFreesTheVolumeAndKeepsIt(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "", 'x')
	for range 2 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	if v = get(t, b, v.ID); v.Reservation.Phase != reservation.Free || v.Status != volume.StatusReady {
		t.Errorf("released volume is %+v", v)
	}
	s := attach(t, b, v.ID, "next")
	if s.Epoch() != 2 || at(t, s.Device(), 8192) != 'x' {
		t.Errorf("epoch %d", s.Epoch())
	}
	release(t, s)
}

// what is not ready is not mounted, and the error says what it is.
func TestOnlyAReadyVolumeIsMounted(t *testing.T) {
	for _, status := range []volume.Status{volume.StatusUploading, volume.StatusFailed} {
		timeless(t, string(status), func(t *testing.T) {
			w := newWorld(t)
			m := w.node("a")
			v := w.unfinished(m, "data", status)
			for name, err := range map[string]error{
				"attach":   second(m.Attach(t.Context(), v.ID, "sb")),
				"fork":     second(m.Fork(t.Context(), v.ID, volume.ForkOptions{})),
				"snapshot": second(m.Snapshot(t.Context(), "data", volume.SnapshotOptions{})),
				"grow":     second(m.Update(t.Context(), v.ID, volume.Update{Size: new(volume.GiB)})),
			} {
				var why *volume.StatusError
				if !errors.As(err, &why) || why.Status != status || !errors.Is(err, volume.ErrNotReady) {
					t.Errorf("%s of a volume that is %s: %v", name, status, err)
				}
			}
			if pending, _ := m.Repository().Journal(); len(pending) > 0 {
				t.Errorf("the journal holds %v", pending)
			}
		})
	}
}

// The same sandbox attaches again: it gets its session, once.
func TestRepeatedAttachGivesTheSameSession(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := create(t, m, volume.CreateOptions{})
	one, two := attach(t, m, v.ID, "sb"), attach(t, m, v.ID, "sb")
	if one != two || one.Epoch() != 1 {
		t.Fatal("two sessions of one sandbox")
	}
	release(t, one)
	again := attach(t, m, v.ID, "sb")
	if again == one || again.Epoch() != 2 {
		t.Fatal("a released session is handed out")
	}
	release(t, again)
}

// I13: a node that dies without a word finds its volume again, with the same epoch and every write that was flushed.
func TestRestartedNodeGoesOnWithItsVolume(t *testing.T) {
	w := newWorld(t)
	m, trace := w.traced("a")
	v := create(t, m, volume.CreateOptions{})
	s := attach(t, m, v.ID, "sb")
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 8192, 'x')
	ok(t, s.Device().Flush())
	before := get(t, m, v.ID)

	w.st = trace
	m = w.restart(m)
	pending, bad := m.Repository().Journal()
	want := []volume.Pending{{Tenant: "team", Sandbox: "sb", Volume: v.ID, Mode: volume.Exclusive, Acquired: true}}
	if diff := cmp.Diff(want, pending, cmpopts.IgnoreFields(volume.Pending{}, "Dir")); diff != "" || len(bad) > 0 {
		t.Fatalf("journal %s %v", diff, bad)
	}
	wantErr(t, m.Undo(t.Context(), v.ID, "sb"), volume.ErrInUse)
	trace.Reset()
	s = must[*volume.Session](t)(m.Reopen(t.Context(), v.ID, "sb"))
	if len(puts(trace)) > 0 {
		t.Errorf("reopening wrote %q", puts(trace))
	}
	if s.Epoch() != before.Reservation.Epoch || at(t, s.Device(), 8192) != 'x' {
		t.Errorf("epoch %d", s.Epoch())
	}
	if got := must[*volume.Sealed](t)(s.Pending(t.Context())); got != nil {
		t.Errorf("a cut that nobody made: %+v", got)
	}
	release(t, s)
	if s, err := m.Reopen(t.Context(), v.ID, "sb"); s != nil || err != nil {
		t.Errorf("a volume that was given back is reopened: %v", err)
	}
}

// An attach whose reply is lost has landed or not. Undo settles it either way: the volume is back where it came from, a
// late put changes nothing, and undo may be repeated.
func TestUndoSettlesAnAttachOfUnknownOutcome(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
		for _, from := range []reservation.Phase{reservation.Free, reservation.Paused} {
			timeless(t, fmt.Sprint(fault, " from ", from), func(t *testing.T) {
				w := newWorld(t)
				m, f := w.faulty("a")
				v := create(t, m, volume.CreateOptions{})
				if from == reservation.Paused {
					pause(t, attach(t, m, v.ID, "sb"))
				}
				f.plan = stopAfterPut(volumePrefix(m, v.ID), fault)
				_, err := m.Attach(t.Context(), v.ID, "sb")
				if err == nil {
					t.Fatal("attached although every reply was lost")
				}
				f.plan = nil
				ok(t, m.Undo(t.Context(), v.ID, "sb"))
				f.st.Land(t.Context())
				ok(t, m.Undo(t.Context(), v.ID, "sb"))
				if got := get(t, m, v.ID).Reservation.Phase; got != from {
					t.Errorf("the volume is %s, was %s", got, from)
				}
				if pending, _ := m.Repository().Journal(); len(pending) > 0 {
					t.Errorf("the journal holds %v", pending)
				}
				s := attach(t, m, v.ID, "sb")
				ok(t, s.Mounted(t.Context()))
				release(t, s)
			})
		}
	}
}

// stopAfterPut gives the first put below prefix the fault and has every later request fail: the caller never learns.
func stopAfterPut(prefix string, fault storetest.Fault) storetest.Plan {
	first := storetest.Match(storetest.OpPutIfAbsent, prefix, fault)
	stopped := false
	return func(c storetest.Call) storetest.Fault {
		if stopped {
			return storetest.ErrorBefore
		}
		hit := first(c)
		stopped = hit != storetest.None
		return hit
	}
}

// An undo whose own reply is lost is over or not. It is settled before the volume is attached again, so that it cannot land
// under a running sandbox.
func TestUndoThatMayLandLateIsSettledBeforeTheNextAttach(t *testing.T) {
	for _, from := range []reservation.Phase{reservation.Free, reservation.Paused} {
		for _, fault := range []storetest.Fault{storetest.ErrorAfter, storetest.Late} {
			timeless(t, fmt.Sprint(fault, " from ", from), func(t *testing.T) {
				w := newWorld(t)
				m, f := w.faulty("a")
				v := create(t, m, volume.CreateOptions{})
				if from == reservation.Paused {
					pause(t, attach(t, m, v.ID, "sb"))
				}
				f.plan = stopAfterPut(volumePrefix(m, v.ID), storetest.ErrorAfter)
				if _, err := m.Attach(t.Context(), v.ID, "sb"); err == nil {
					t.Fatal("attached")
				}
				f.plan = stopAfterPut(volumePrefix(m, v.ID), fault)
				if err := m.Undo(t.Context(), v.ID, "sb"); err == nil {
					t.Fatal("undone although every reply was lost")
				}
				f.plan = nil
				s := attach(t, m, v.ID, "sb")
				f.st.Land(t.Context())
				ok(t, s.Mounted(t.Context()))
				if got := get(t, m, v.ID).Reservation; got.Phase != reservation.Mounted || got.Epoch != s.Epoch() {
					t.Errorf("the sandbox runs and its volume is %+v", got)
				}
				release(t, s)
			})
		}
	}
}

// I9: an acquire that began on a stale reading, and whose reply is lost, does not make an undo free what the sandbox has
// paused meanwhile.
func TestUndoNeverFreesAVolumeThatWasPausedMeanwhile(t *testing.T) {
	for at := 1; at <= 3; at++ { // before the listing, the get and the put of the attach
		timeless(t, fmt.Sprint("request ", at), func(t *testing.T) { undoAfterPauseMeanwhile(t, at) })
	}
}

func undoAfterPauseMeanwhile(t *testing.T, at int) {
	w := newWorld(t)
	b := w.node("b")
	v := create(t, b, volume.CreateOptions{})
	a, f := w.faulty("a")
	h := &hook{}
	h.arm(at, func() { pause(t, attach(t, b, v.ID, "sb")) })
	dead := false
	f.plan = func(c storetest.Call) storetest.Fault {
		h.before(c)
		if dead {
			return storetest.ErrorBefore
		}
		if _, err := w.st.Get(t.Context(), c.Key); c.Op == storetest.OpPutIfAbsent && err != nil {
			dead = true
			return storetest.ErrorAfter
		}
		return storetest.None
	}
	if _, err := a.Attach(t.Context(), v.ID, "sb"); err == nil || !h.fired() {
		t.Fatalf("request %d: attached although the reply was lost", at)
	}
	f.plan = nil
	if got := get(t, b, v.ID).Reservation; got.Epoch != 2 || got.Phase != reservation.Preparing {
		t.Fatalf("request %d: the acquire did not land: %+v", at, got)
	}
	ok(t, a.Undo(t.Context(), v.ID, "sb"))
	if got := get(t, b, v.ID).Reservation.Phase; got != reservation.Paused {
		t.Errorf("request %d: the volume is %s", at, got)
	}
}

// A drive that cannot be opened does not keep the volume.
func TestAttachThatCannotOpenGivesTheVolumeBack(t *testing.T) {
	w := newWorld(t)
	a, f := w.faulty("a")
	v := written(t, w.node("b"), "", 'x')
	f.plan = storetest.Match(storetest.OpReadRange, "v1/layers/", storetest.ErrorBefore)
	_, err := a.Attach(t.Context(), v.ID, "sb")
	wantErr(t, err, volume.ErrUnavailable)
	if got := get(t, a, v.ID).Reservation.Phase; got != reservation.Free {
		t.Errorf("the volume is %s", got)
	}
	if pending, _ := a.Repository().Journal(); len(pending) > 0 || len(drives(t, a)) > 0 {
		t.Errorf("left %v %v", pending, drives(t, a))
	}
	f.plan = nil
	release(t, attach(t, a, v.ID, "sb"))
}
