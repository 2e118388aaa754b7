package record

import (
	"errors"
	"testing"

	"github.com/sandvol/sandvol/reservation"
)

func takeOver(epoch uint64, id string) TakeOver {
	return TakeOver{Epoch: epoch, Grant: reservation.Grant{ID: id, Owner: "sb2", Node: "n2", At: t0}, Reason: "node lost",
		Nonces: []string{"fresh"}}
}

// a takeover raises the epoch, replaces the upload keys and keeps the stack that it took, in one generation.
func TestTakeOverKeepsTheStackAndReplacesTheKeys(t *testing.T) {
	before := held(reservation.Mounted)
	after, changed, err := apply(t, takeOver(before.Reservation.Epoch, "g9").Op(), before)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	f := after.Fenced[0]
	if len(after.Fenced) != 1 || f.Epoch != before.Reservation.Epoch || !f.Stack.SameContent(before.Stack) ||
		f.Owner != before.Reservation.Grant.Owner || f.Node != before.Reservation.Grant.Node || f.At != t0 {
		t.Errorf("kept %+v", after.Fenced)
	}
	if after.Reservation.Epoch != before.Reservation.Epoch+1 || after.Reservation.Phase != reservation.Preparing {
		t.Errorf("reservation %+v", after.Reservation)
	}
	if len(after.Keys) != 1 || after.Keys[0] != LayerKey(before.ID, after.Reservation.Epoch, "fresh") {
		t.Errorf("keys %v", after.Keys)
	}
	if _, changed, err := apply(t, takeOver(before.Reservation.Epoch, "g9").Op(), after); changed || err != nil {
		t.Errorf("again: changed %t, %v", changed, err)
	}
	if _, _, err := apply(t, takeOver(before.Reservation.Epoch, "g10").Op(), after); !errors.Is(err, ErrConflict) {
		t.Errorf("a second one from the same epoch: %v", err)
	}
}

// Paused implies published: nothing can be missing, and nobody would settle the entry.
func TestTakeOverFromPausedKeepsNothing(t *testing.T) {
	v, changed, err := apply(t, takeOver(3, "g9").Op(), held(reservation.Paused))
	if err != nil || !changed || len(v.Fenced) > 0 {
		t.Errorf("changed %t, %v, fenced %+v", changed, err, v.Fenced)
	}
}

// A fenced stack goes to leaving, on a tombstone too, and a run that has read another entry of the same layers does not take
// it along.
func TestUnfencedLayersLeaveUnderTheirOwnEpoch(t *testing.T) {
	v := held(reservation.Free)
	v.Fenced = []Fenced{{Epoch: 1, Stack: stack("z")}, {Epoch: 2, Stack: stack("z")}}
	v, _, _ = apply(t, Delete(t0), v)
	v, changed, err := apply(t, Unfence("salvaged", 1), v)
	if err != nil || !changed || len(v.Fenced) != 1 || len(v.Leaving) != 1 {
		t.Fatalf("changed %t, %v: %+v", changed, err, v)
	}
	read := v.Leaving
	if _, changed, _ := apply(t, Unfence("salvaged", 1), v); changed {
		t.Error("done twice")
	}
	v, _, _ = apply(t, Unfence("salvaged", 2), v)
	v, _, _ = apply(t, SettleVolume(read, true), v)
	if len(v.Leaving) != 1 || v.Leaving[0].Fenced != 2 {
		t.Errorf("leaving %+v", v.Leaving)
	}
}

func TestMaySalvageOnlyOnTheKeptStack(t *testing.T) {
	v := Volume{Fenced: []Fenced{{Epoch: 4, Stack: stack("a", "b")}}}
	own := func(l Layer) bool { return l.Key == "own" }
	for _, c := range []struct {
		epoch uint64
		s     Stack
		want  bool
	}{
		{4, stack("a", "b", "own"), true},
		{4, stack("a", "c", "own"), false},
		{5, stack("a", "b"), false},
	} {
		if got := v.MaySalvage(c.epoch, c.s, own); got != c.want {
			t.Errorf("epoch %d, %v: %t", c.epoch, c.s.Layers, got)
		}
	}
}
