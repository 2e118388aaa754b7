package record

import (
	"slices"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

// TakeOver is what an operator or scheduler asks for when a volume is to change hands without its holder's help.
type TakeOver struct {
	// Epoch is the one that the volume is taken from.
	Epoch  uint64
	Grant  reservation.Grant
	Reason string
	Nonces []string
}

// Op returns the operation. It raises the epoch, so that whatever the former holder still sends is refused, and replaces the
// upload keys, so that whatever it still uploads is never part of this volume. The stack that it worked on is kept: what it
// has written and not published stands on exactly that, and can only be kept together with it.
func (t TakeOver) Op() genlog.Op[Volume] { return genlog.Op[Volume]{Name: "takeover", Apply: t.apply} }

func (t TakeOver) apply(v Volume) (Volume, bool, error) {
	if v.Status != StatusReady {
		return v, false, statusError(&v, "take over")
	}
	was := v.Reservation
	res, changed, err := was.TakeOver(t.Epoch, t.Grant, t.Reason)
	if err != nil || !changed {
		return v, false, err
	}
	// Paused implies published: there is nothing to salvage, and nobody who would ever settle the entry.
	if was.Phase != reservation.Paused {
		v.Fenced = append(slices.Clone(v.Fenced), Fenced{Epoch: was.Epoch, Stack: v.Stack.Clone(),
			Grant: was.Grant.ID, Owner: was.Grant.Owner, Node: was.Grant.Node, At: t.Grant.At})
	}
	v.Reservation = res
	v.Keys = layerKeys(v.ID, res.Epoch, t.Nonces)
	return v, true, nil
}

// Unfence lets go of the stack that was kept for the holder of an epoch: its salvage is ready, or somebody has decided that
// there is to be none. It goes to leaving and not away at once: a collector run that has passed the salvage before it was
// there must still find the layers referred to here. It works on a tombstone too. Name says what it was done for.
func Unfence(name string, epoch uint64) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: name, Apply: func(v Volume) (Volume, bool, error) {
		at := v.fencedAt(epoch)
		if at < 0 {
			return v, false, nil
		}
		v.Leaving = slices.Clone(v.Leaving)
		for _, l := range v.Fenced[at].Stack.Layers {
			v.Leaving = append(v.Leaving, Left{Layer: l, Fenced: epoch})
		}
		var rest []Fenced
		rest = append(append(rest, v.Fenced[:at]...), v.Fenced[at+1:]...)
		v.Fenced = rest
		return v, true, nil
	}}
}

// FencedAt returns the stack kept for the holder of an epoch.
func (v Volume) FencedAt(epoch uint64) (Fenced, bool) {
	if i := v.fencedAt(epoch); i >= 0 {
		return v.Fenced[i], true
	}
	return Fenced{}, false
}

// FencedGrant returns the epoch of a grant that was taken over, if its stack is still kept. Such a grant has landed once, and
// is never to be used again.
func (v Volume) FencedGrant(id string) (epoch uint64, ok bool) {
	i := slices.IndexFunc(v.Fenced, func(f Fenced) bool { return f.Grant == id })
	if i < 0 {
		return 0, false
	}
	return v.Fenced[i].Epoch, true
}

func (v Volume) fencedAt(epoch uint64) int {
	return slices.IndexFunc(v.Fenced, func(f Fenced) bool { return f.Epoch == epoch })
}

// MaySalvage reports whether the salvage of an epoch's holder may refer to the stack: the layers that are not the salvage's
// own are all in the stack kept for that epoch. Whether the volume is deleted does not matter.
func (v Volume) MaySalvage(epoch uint64, s Stack, own func(Layer) bool) bool {
	kept, ok := v.FencedAt(epoch)
	return ok && !slices.ContainsFunc(s.Layers, func(l Layer) bool { return !own(l) && !kept.Stack.Contains(l.Key) })
}
