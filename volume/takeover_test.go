package volume_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

func takeOver(t *testing.T, m *volume.Manager, id string, epoch uint64, sandbox string) *volume.Session {
	t.Helper()
	return must[*volume.Session](t)(m.TakeOver(t.Context(), id,
		volume.TakeOverOptions{Epoch: epoch, Sandbox: sandbox, Reason: "node lost"}))
}

// torn makes a volume that sandbox sb holds on the node: x is published, y is not.
func torn(t *testing.T, m *volume.Manager) (volume.Volume, *volume.Session) {
	t.Helper()
	v := create(t, m, volume.CreateOptions{Name: "torn"})
	s := attach(t, m, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	publish(t, s)
	write(t, s.Device(), 8192, 'y')
	ok(t, s.Device().Flush())
	return v, s
}

// salvage has the node keep what it lost, and returns the one volume that this makes.
func salvage(t *testing.T, m *volume.Manager) volume.Volume {
	t.Helper()
	all := m.Repository().Salvage(t.Context())
	if len(all) != 1 || all[0].Err != nil || all[0].Salvage == "" {
		t.Fatalf("salvaged %+v", all)
	}
	return get(t, m, all[0].Salvage)
}

// a volume is taken over from a node that lives. The new owner has what was published, the old drive fails, and
// what it had not published becomes a volume of its own.
func TestTakeOverFencesTheHolderAndItsWritesAreKept(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, old := torn(t, a)
	s := takeOver(t, b, v.ID, 1, "sb2")
	if got := at(t, s.Device(), 8192); got != 'x' || s.Epoch() != 2 || s.Sandbox() != "sb2" {
		t.Errorf("taken over: reads %q, epoch %d, sandbox %s", got, s.Epoch(), s.Sandbox())
	}
	write(t, old.Device(), 4096, 'z') // a fenced node that has not heard of it yet
	_, err := old.Seal(t.Context(), volume.NewCut(volume.Crash, false))
	ok(t, err)
	wantErr(t, old.Mounted(t.Context()), volume.ErrFenced)
	<-old.Lost()
	if _, err := old.Device().WriteAt(sector('n'), 0); err == nil {
		t.Error("a fenced drive took a write")
	}
	kept := salvage(t, a)
	reads(t, w.st, kept, map[int64]byte{8192: 'y', 4096: 'z'})
	if got := at(t, old.Device(), 8192); got != 'y' {
		t.Errorf("the lost drive is open still and reads %q", got)
	}
	wantLineage := volume.Lineage{Volume: v.ID, Generation: kept.Lineage.Generation, Fenced: 1}
	if kept.Lineage != wantLineage || kept.Labels[volume.LabelSalvageSandbox] != "sb" {
		t.Errorf("lineage %+v, labels %v", kept.Lineage, kept.Labels)
	}
	if f := must[[]volume.Fenced](t)(b.Fenced(t.Context(), v.ID)); len(f) > 0 {
		t.Errorf("still kept: %+v", f)
	}
	ok(t, old.Close())
	if left := drives(t, a); len(left) > 0 {
		t.Errorf("local layers are left: %v", left)
	}
	if p, _ := a.Repository().Journal(); len(p) > 0 {
		t.Errorf("the journal has %+v", p)
	}
	// The new owner's work is untouched by all of this.
	write(t, s.Device(), 4096, 'w')
	release(t, s)
	reads(t, w.st, get(t, b, v.ID), map[int64]byte{8192: 'x', 4096: 'w'})
	ok(t, b.Delete(t.Context(), v.ID))
	for range 3 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	reads(t, w.st, kept, map[int64]byte{8192: 'y', 4096: 'z'})
}

// A takeover names what it takes: of two who have seen the same epoch, one wins, and a volume that nobody holds is acquired.
func TestTakeOverIsRefusedUnlessTheEpochIsTheCurrentOne(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, _ := torn(t, a)
	o := volume.TakeOverOptions{Epoch: 1, Reason: "node lost"}
	for name, change := range map[string]func(*volume.TakeOverOptions){
		"no epoch":  func(o *volume.TakeOverOptions) { o.Epoch = 0 },
		"no reason": func(o *volume.TakeOverOptions) { o.Reason = "" },
		"long":      func(o *volume.TakeOverOptions) { o.Reason = strings.Repeat("x", reservation.MaxReason+1) },
		"sandbox":   func(o *volume.TakeOverOptions) { o.Sandbox = "no/name" },
	} {
		bad := o
		change(&bad)
		_, err := b.TakeOver(t.Context(), v.ID, bad)
		if wantErr(t, err, volume.ErrInvalid); err == nil {
			t.Error(name)
		}
	}
	s := must[*volume.Session](t)(b.TakeOver(t.Context(), v.ID, o))
	if s.Sandbox() != "sb" {
		t.Errorf("owner %s", s.Sandbox())
	}
	_, err := w.node("c").TakeOver(t.Context(), v.ID, o)
	wantErr(t, err, volume.ErrConflict)
	release(t, s)
	_, err = b.TakeOver(t.Context(), v.ID, volume.TakeOverOptions{Epoch: 2, Reason: "node lost"})
	wantErr(t, err, volume.ErrConflict)
}

// a takeover may be repeated after a lost reply, on the open session and after a restart.
func TestTakeOverMayBeRepeated(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, _ := torn(t, a)
	first := takeOver(t, b, v.ID, 1, "")
	if again := takeOver(t, b, v.ID, 1, ""); again != first {
		t.Error("another session")
	}
	write(t, first.Device(), 4096, 'w')
	b = w.restart(b)
	again := takeOver(t, b, v.ID, 1, "sb")
	if again.Epoch() != 2 || at(t, again.Device(), 4096) != 'w' {
		t.Errorf("epoch %d", again.Epoch())
	}
	if got := get(t, b, v.ID).Generation; got != 5 {
		t.Errorf("generation %d: a repeated takeover appends nothing", got)
	}
}

// The holder may be on the very node that takes over: a sandbox that is stuck here makes room for another.
func TestTakeOverOnTheHoldersOwnNode(t *testing.T) {
	for _, sandbox := range []string{"sb", "sb2"} {
		w := newWorld(t)
		a := w.node("a")
		v, old := torn(t, a)
		s := takeOver(t, a, v.ID, 1, sandbox)
		<-old.Lost()
		if got := at(t, s.Device(), 8192); got != 'x' {
			t.Errorf("reads %q", got)
		}
		kept := salvage(t, a)
		reads(t, w.st, kept, map[int64]byte{8192: 'y'})
		ok(t, old.Close())
		write(t, s.Device(), 4096, 'w')
		release(t, s)
		if left := drives(t, a); len(left) > 0 {
			t.Errorf("local layers are left: %v", left)
		}
	}
}

// the node was down when its volume was taken over and deleted; it comes back, and nothing that it had flushed is lost.
func TestSalvageAfterARestartOfADeletedVolume(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, _ := torn(t, a)
	dir := a.Repository().Dir()
	ok(t, a.Repository().Close())
	release(t, takeOver(t, b, v.ID, 1, "sb2"))
	ok(t, b.Delete(t.Context(), v.ID))
	for range 3 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	a = w.nodeAt("a", dir)
	if s, err := a.Reopen(t.Context(), v.ID, "sb"); s != nil || err != nil {
		t.Fatalf("reopened %v, %v", s, err)
	}
	kept := salvage(t, a)
	reads(t, w.st, kept, map[int64]byte{8192: 'y'})
	if left := drives(t, a); len(left) > 0 {
		t.Errorf("local layers are left: %v", left)
	}
	for range 3 {
		collect(t, b, volume.CollectOptions{DropUnusedBases: true})
	}
	reads(t, w.st, kept, map[int64]byte{8192: 'y'})
	for _, key := range keysBelow(t, w.st, "v1/fenced/") {
		t.Errorf("notice left: %s", key)
	}
}

// A node that has everything published when it is fenced leaves no volume behind, and no stack is kept for it.
func TestNothingUnpublishedLeavesNoSalvage(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := create(t, a, volume.CreateOptions{})
	s := attach(t, a, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	publish(t, s)
	takeOver(t, b, v.ID, 1, "")
	ok(t, a.Repository().Beat(t.Context()))
	all := a.Repository().Salvage(t.Context())
	if len(all) != 1 || all[0].Err != nil || all[0].Salvage != "" {
		t.Errorf("salvaged %+v", all)
	}
	if f := must[[]volume.Fenced](t)(b.Fenced(t.Context(), v.ID)); len(f) > 0 || len(liveVolumes(t, b)) != 1 {
		t.Errorf("kept %+v, volumes %d", f, len(liveVolumes(t, b)))
	}
}

// A node learns from its notices that a volume is gone, without sending anything of its own.
func TestFencedNodeLearnsFromItsNotice(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, old := torn(t, a)
	takeOver(t, b, v.ID, 1, "")
	want := []string{"v1/fenced/a/" + v.ID + "-1"}
	if diff := cmp.Diff(want, keysBelow(t, w.st, "v1/fenced/")); diff != "" {
		t.Fatal(diff)
	}
	ok(t, a.Repository().Beat(t.Context()))
	<-old.Lost()
	wantErr(t, old.Err(), volume.ErrFenced)
	reads(t, w.st, salvage(t, a), map[int64]byte{8192: 'y'})
	if left := keysBelow(t, w.st, "v1/fenced/"); len(left) > 0 {
		t.Errorf("notices left: %v", left)
	}
}

// A notice is advice: one that the record does not agree with ends nothing.
func TestNoticeWithoutATakeoverIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v, s := torn(t, a)
	for _, epoch := range []uint64{1, 7} {
		ok(t, w.st.PutIfAbsent(t.Context(), "v1/fenced/a/"+v.ID+"-"+strconv.FormatUint(epoch, 10), []byte("{}")))
	}
	ok(t, w.st.PutIfAbsent(t.Context(), "v1/fenced/a/something-else", nil))
	ok(t, a.Repository().Beat(t.Context()))
	ok(t, s.Err())
	write(t, s.Device(), 0, 'n')
	if left := keysBelow(t, w.st, "v1/fenced/"); len(left) != 1 {
		t.Errorf("notices left: %v", left)
	}
	release(t, s)
}

// An operator may give up what a fenced node holds; the node does not throw its files away for that.
func TestDiscardFencedLetsGoOfTheStack(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, old := torn(t, a)
	release(t, takeOver(t, b, v.ID, 1, "sb2"))
	f := must[[]volume.Fenced](t)(b.Fenced(t.Context(), v.ID))
	if len(f) != 1 || f[0].Epoch != 1 || f[0].Sandbox != "sb" || f[0].Node != "a" {
		t.Errorf("kept %+v", f)
	}
	wantErr(t, b.DiscardFenced(t.Context(), v.ID, 1, ""), volume.ErrInvalid)
	for range 2 {
		ok(t, b.DiscardFenced(t.Context(), v.ID, 1, "the machine burnt down"))
	}
	if f := must[[]volume.Fenced](t)(b.Fenced(t.Context(), v.ID)); len(f) > 0 {
		t.Errorf("kept %+v", f)
	}
	ok(t, a.Repository().Beat(t.Context()))
	<-old.Lost()
	all := a.Repository().Salvage(t.Context())
	if len(all) != 1 {
		t.Fatalf("salvaged %+v", all)
	}
	wantErr(t, all[0].Err, volume.ErrNotFound)
	if left := drives(t, a); len(left) != 1 {
		t.Errorf("drives %v", left)
	}
}

// Taken over twice, each holder's writes are kept on the stack that each had.
func TestEachFencedHolderIsSalvagedOnItsOwnStack(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.node("a"), w.node("b"), w.node("c")
	v, _ := torn(t, a)
	second := takeOver(t, b, v.ID, 1, "sb2")
	write(t, second.Device(), 8192, 'p')
	publish(t, second)
	write(t, second.Device(), 8192, 'q')
	third := takeOver(t, c, v.ID, 2, "sb3")
	for node, want := range map[*volume.Manager]byte{a: 'y', b: 'q'} {
		ok(t, node.Repository().Beat(t.Context()))
		reads(t, w.st, salvage(t, node), map[int64]byte{8192: want})
	}
	if got := at(t, third.Device(), 8192); got != 'p' {
		t.Errorf("the third reads %q", got)
	}
}

// A drive that does not know yet that its volume is gone may stand beside the next one of the volume on the same node. It is
// found and ended all the same.
func TestFencedDriveBesideAnotherOfTheSameVolume(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v, old := torn(t, a)
	release(t, takeOver(t, b, v.ID, 1, "sb2"))
	next := attach(t, a, v.ID, "sb3")
	write(t, old.Device(), 4096, 'z')
	ok(t, a.Repository().Beat(t.Context()))
	<-old.Lost()
	ok(t, next.Err())
	reads(t, w.st, salvage(t, a), map[int64]byte{8192: 'y', 4096: 'z'})
	ok(t, old.Close())
	release(t, next)
}
