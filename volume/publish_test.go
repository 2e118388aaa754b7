package volume_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func seal(t *testing.T, s *volume.Session, final bool) *volume.Sealed {
	t.Helper()
	return must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Clean, final)))
}

// idea 6: the layer is durable, then the record says so, pause or release with it: there is no moment in
// which the volume is given up and its last write is not in the repository.
func TestLayerIsDurableBeforeTheRecordNamesIt(t *testing.T) {
	for _, end := range []string{"pause", "release"} {
		t.Run(end, func(t *testing.T) {
			w := newWorld(t)
			m, trace := w.traced("a")
			v := create(t, m, volume.CreateOptions{})
			s := attach(t, m, v.ID, "sb")
			write(t, s.Device(), 8192, 'x')
			trace.Reset()
			c := seal(t, s, true)
			if n := trace.Count(); n > 0 {
				t.Errorf("a seal sent %d requests", n)
			}
			before := get(t, m, v.ID)
			trace.Reset()
			if end == "pause" {
				ok(t, s.Pause(t.Context(), c))
			} else {
				ok(t, s.Release(t.Context(), c))
			}
			after := get(t, m, v.ID)
			top := after.Stack.Layers[len(after.Stack.Layers)-1]
			sent := puts(trace)
			if len(sent) != 2 || sent[0] != top.Key || !strings.HasPrefix(sent[1], volumePrefix(m, v.ID)) {
				t.Fatalf("order of writes: %q", sent)
			}
			if after.Generation != before.Generation+1 || after.Cut != c.ID() {
				t.Errorf("stack and phase are not one generation: %+v", after)
			}
		})
	}
}

// a release whose upload fails keeps the volume, and everything, until it is repeated.
func TestFailedPublishGivesNothingUp(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter} {
		for _, op := range []storetest.Op{storetest.OpPutBlob, storetest.OpPutIfAbsent} {
			timeless(t, fmt.Sprint(op, " ", fault), func(t *testing.T) {
				w := newWorld(t)
				m, f := w.faulty("a")
				v := create(t, m, volume.CreateOptions{})
				s := attach(t, m, v.ID, "sb")
				write(t, s.Device(), 8192, 'x')
				c := seal(t, s, true)
				f.plan = stopAfter(op, "", fault)
				if err := s.Release(t.Context(), c); err == nil {
					t.Fatal("released although the store failed")
				}
				f.plan = nil
				if got := get(t, m, v.ID); got.Reservation.Phase == reservation.Free && len(got.Stack.Layers) == 1 {
					t.Fatal("free, and the last write is not published")
				}
				ok(t, s.Release(t.Context(), c)) // the same bytes under the same key, the effect once
				got := get(t, m, v.ID)
				if len(got.Stack.Layers) != 2 || got.Reservation.Phase != reservation.Free {
					t.Errorf("released volume is %+v", got)
				}
				reads(t, w.st, got, map[int64]byte{8192: 'x'})
				if n := len(keysBelow(t, w.st, "v1/layers/"+v.ID+"/")); n != 1 {
					t.Errorf("%d objects for one layer", n)
				}
			})
		}
	}
}

// stopAfter gives the first request of a kind the fault and has every later request fail.
func stopAfter(op storetest.Op, prefix string, fault storetest.Fault) storetest.Plan {
	first, stopped := storetest.Match(op, prefix, fault), false
	return func(c storetest.Call) storetest.Fault {
		if stopped {
			return storetest.ErrorBefore
		}
		hit := first(c)
		stopped = hit != storetest.None
		return hit
	}
}

// I3, A-169: a publish of unknown outcome, whether it has landed, lands late or never does, is no obstacle to what comes
// after it: neither to more writes nor to a pause without any.
func TestPublishOfUnknownOutcomeDoesNotBlockTheNextOne(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
		for _, more := range []bool{true, false} {
			timeless(t, fmt.Sprint(fault, " more ", more), func(t *testing.T) {
				w := newWorld(t)
				m, f := w.faulty("a")
				v := create(t, m, volume.CreateOptions{})
				s := attach(t, m, v.ID, "sb")
				ok(t, s.Mounted(t.Context()))
				write(t, s.Device(), 8192, 'x')
				c := seal(t, s, false)
				f.plan = stopAfter(storetest.OpPutIfAbsent, "", fault)
				if err := s.Publish(t.Context(), c); err == nil {
					t.Fatal("published although every reply was lost")
				}
				f.plan = nil
				f.st.Land(t.Context())
				if more {
					write(t, s.Device(), 12288, 'y')
					publish(t, s)
					write(t, s.Device(), 16384, 'z')
				}
				pause(t, s)
				got := get(t, m, v.ID)
				if got.Reservation.Phase != reservation.Paused {
					t.Errorf("paused volume is %s", got.Reservation.Phase)
				}
				want := map[int64]byte{8192: 'x'}
				if more {
					want[12288], want[16384] = 'y', 'z'
				}
				reads(t, w.st, got, want)
			})
		}
	}
}

// A pause that was given up after its reply was lost cannot land under a sandbox that goes on: either it is found to have
// landed, or it never will.
func TestThawSettlesAPauseOfUnknownOutcome(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
		timeless(t, fault.String(), func(t *testing.T) {
			w := newWorld(t)
			m, f := w.faulty("a")
			v := create(t, m, volume.CreateOptions{})
			s := attach(t, m, v.ID, "sb")
			ok(t, s.Mounted(t.Context()))
			write(t, s.Device(), 8192, 'x')
			c := seal(t, s, true)
			f.plan = stopAfter(storetest.OpPutIfAbsent, "", fault)
			if err := s.Pause(t.Context(), c); err == nil {
				t.Fatal("paused although every reply was lost")
			}
			f.plan = nil
			err := s.Thaw(t.Context())
			f.st.Land(t.Context())
			if fault == storetest.ErrorAfter {
				wantErr(t, err, volume.ErrConflict)
				s = attach(t, m, v.ID, "sb") // the session has ended as by the pause, and the sandbox may go on
				if got := at(t, s.Device(), 8192); got != 'x' {
					t.Errorf("after the pause reads %q", got)
				}
				release(t, s)
				return
			}
			ok(t, err)
			if got := get(t, m, v.ID).Reservation.Phase; got != reservation.Mounted {
				t.Errorf("the sandbox runs and its volume is %s", got)
			}
			write(t, s.Device(), 12288, 'y')
			if err := s.Pause(t.Context(), c); err == nil {
				t.Fatal("paused with a cut that is not the last word")
			}
			pause(t, s)
			reads(t, w.st, get(t, m, v.ID), map[int64]byte{8192: 'x', 12288: 'y'})
		})
	}
}

// I4: a key that was sent under is never used for other bytes, in whichever order cuts are published and uploads fail.
func TestUploadKeyIsNeverUsedForOtherBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, f := w.faulty("a")
		v := create(t, m, volume.CreateOptions{})
		s := attach(t, m, v.ID, "sb")
		write(t, s.Device(), 8192, '1')
		one := seal(t, s, false)
		write(t, s.Device(), 12288, '2')
		two := seal(t, s, false)
		f.plan = storetest.Nth(storetest.OpPutBlob, 3, storetest.ErrorAfter) // the hidden volume's, one's, two's
		wantErr(t, s.Publish(t.Context(), two), volume.ErrUnavailable)
		ok(t, s.Publish(t.Context(), one))
		write(t, s.Device(), 16384, '3')
		publish(t, s)
		release(t, s)
		got := get(t, m, v.ID)
		checkLayers(t, w, got.Stack)
		reads(t, w.st, got, map[int64]byte{8192: '1', 12288: '2', 16384: '3'})
	})
}

// checkLayers is I4: every layer is there with the recorded size and digest. A fresh node checks them as it fetches them.
func checkLayers(t *testing.T, w *world, stack overlaybd.Stack) {
	t.Helper()
	seen := map[string]bool{}
	for _, l := range stack.Layers {
		if seen[l.Key] {
			t.Errorf("layer %s is twice in the stack", l.Key)
		}
		seen[l.Key] = true
		if digest, size := digestOf(t, w.st, l.Key); digest != l.Digest || size != l.Size {
			t.Errorf("layer %s is %d bytes %s, recorded %d bytes %s", l.Key, size, digest, l.Size, l.Digest)
		}
	}
}

// a checkpoint or fork is of exactly one cut, a point in time. A cut that a later one has overtaken is no
// generation's stack.
func TestCheckpointIsOfItsCut(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	s := attach(t, m, create(t, m, volume.CreateOptions{}).ID, "sb")
	ctx := t.Context()
	write(t, s.Device(), 8192, '1')
	one := seal(t, s, false)
	_, err := s.Checkpoint(ctx, one, volume.SnapshotOptions{})
	wantErr(t, err, volume.ErrNotReady)
	ok(t, s.Publish(ctx, one))
	write(t, s.Device(), 8192, '2')
	two := seal(t, s, false)
	write(t, s.Device(), 8192, '3')
	three := seal(t, s, false)
	ok(t, s.Publish(ctx, three))
	ok(t, s.Publish(ctx, two)) // in the repository, but not a state of its own
	_, err = s.Fork(ctx, two, must[string](t)(volume.NewID()), volume.ForkOptions{})
	wantErr(t, err, volume.ErrNotReady)

	first := must[volume.Checkpoint](t)(s.Checkpoint(ctx, one, volume.SnapshotOptions{}))
	id := must[string](t)(volume.NewID())
	last := must[volume.Volume](t)(s.Fork(ctx, three, id, volume.ForkOptions{}))
	again := must[volume.Volume](t)(s.Fork(ctx, three, id, volume.ForkOptions{}))
	if first.Cut != one.ID() || last.Cut != three.ID() || last.ID != id || again.Generation != last.Generation {
		t.Errorf("checkpoint of %q, fork of %q", first.Cut, last.Cut)
	}
	reads(t, w.st, must[volume.Volume](t)(m.Restore(ctx, first.ID, volume.ForkOptions{})), map[int64]byte{8192: '1'})
	reads(t, w.st, last, map[int64]byte{8192: '3'})
	release(t, s)
}

// A session whose epoch is over publishes nothing. It hears of it at its next append, its device takes no more writes, and
// its layers stay on the node.
func TestFencedSessionPublishesNothingAndKeepsItsLayers(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := create(t, m, volume.CreateOptions{})
	s := attach(t, m, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	w.edit(m, v.ID, func(r *record.Volume) { // what a takeover leaves
		r.Reservation.Epoch++
		r.Reservation.Grant = reservation.Grant{ID: "g2", Owner: "other", Node: "b", At: w.clock}
		r.Keys = []string{record.LayerKey(v.ID, 2, "n")}
	})
	before := newestBody(t, w.st, volumePrefix(m, v.ID))
	c := seal(t, s, false)
	wantErr(t, s.Publish(t.Context(), c), volume.ErrFenced)
	<-s.Lost()
	wantErr(t, s.Err(), volume.ErrFenced)
	_, err := s.Device().WriteAt(sector('y'), 8192)
	wantErr(t, err, volume.ErrFenced)
	wantErr(t, s.Device().Discard(0, 512), volume.ErrFenced)
	if got := newestBody(t, w.st, volumePrefix(m, v.ID)); got != before {
		t.Error("a fenced session changed the record")
	}
	_, err = m.Fork(t.Context(), v.ID, volume.ForkOptions{Flush: true})
	wantErr(t, err, volume.ErrNotReady) // the newest writes are on node b
	ok(t, s.Close())
	m = w.restart(m)
	if s, err := m.Reopen(t.Context(), v.ID, "sb"); s != nil || err != nil {
		t.Fatalf("reopened a lost volume: %v", err)
	}
	pending, _ := m.Repository().Journal()
	if len(pending) != 1 || !contains(pending[0].Lost, "other", "epoch 2") || len(drives(t, m)) != 1 {
		t.Errorf("journal %+v, drives %v", pending, drives(t, m))
	}
}

// What is sealed and not yet published survives a crash, and the pause is finished with the very same cut.
func TestPauseIsFinishedAfterARestart(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := create(t, m, volume.CreateOptions{})
	s := attach(t, m, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	c := seal(t, s, true)
	m = w.restart(m)
	if pending, _ := m.Repository().Journal(); len(pending) != 1 || !pending[0].Sealed {
		t.Fatalf("journal %+v", pending)
	}
	s = must[*volume.Session](t)(m.Reopen(t.Context(), v.ID, "sb"))
	again := must[*volume.Sealed](t)(s.Pending(t.Context()))
	if again.ID() != c.ID() || again.Consistency() != volume.Clean || again.Empty() {
		t.Errorf("pending cut %+v", again)
	}
	ok(t, s.Pause(t.Context(), again))
	got := get(t, m, v.ID)
	if got.Cut != c.ID() || got.Reservation.Phase != reservation.Paused {
		t.Errorf("volume %+v", got)
	}
	reads(t, w.st, got, map[int64]byte{8192: 'x'})
}

// A device that seals by itself publishes several layers at once.
func TestPublishTakesSeveralLayers(t *testing.T) {
	w := newWorld(t)
	w.opts = append(w.opts, volume.WithEngine(overlaybd.WithSealAt(4)))
	m, trace := w.traced("a")
	v := create(t, m, volume.CreateOptions{})
	s := attach(t, m, v.ID, "sb")
	want := map[int64]byte{}
	for i := range int64(20) {
		off, b := 1<<20+i*8192, byte('a'+i)
		write(t, s.Device(), off, b)
		want[off] = b
	}
	trace.Reset()
	release(t, s)
	got := get(t, m, v.ID)
	if len(got.Stack.Layers) < 3 {
		t.Fatalf("%d layers", len(got.Stack.Layers))
	}
	checkLayers(t, w, got.Stack)
	reads(t, w.st, got, want)
	if blobs := trace.Count(storetest.OpPutBlob); blobs != len(got.Stack.Layers)-1 {
		t.Errorf("%d uploads", blobs)
	}
	keys := newestRecord(t, w.st, m, v.ID).Keys
	if slices.ContainsFunc(got.Stack.Layers, func(l overlaybd.Layer) bool { return slices.Contains(keys, l.Key) }) {
		t.Error("a key is declared and in the stack")
	}
}
