package record

import (
	"fmt"
	"slices"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

// MovedError says that a volume is not in the phase any more from which it was to be acquired. It is ErrConflict; reading
// again tells whether it can be acquired from the present one.
type MovedError struct{ From, Now reservation.Phase }

func (e *MovedError) Error() string {
	return fmt.Sprintf("the volume was %s and is %s now", e.From, e.Now)
}

// Is reports ErrConflict.
func (e *MovedError) Is(target error) bool { return target == ErrConflict }

// Acquire gives an exclusive volume to the grant's owner and raises the epoch. The upload keys of earlier epochs are
// replaced: what their holders still upload will never be part of this volume. The phase that it is acquired from is what an
// undo goes back to, so the op is refused in any other.
func Acquire(g reservation.Grant, from reservation.Phase, nonces []string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "acquire", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status != StatusReady {
			return v, false, statusError(&v, "mount")
		}
		if v.Mode != Exclusive {
			return v, false, fmt.Errorf("%w: volume %s has mode %s and is mounted by pins, not by a reservation",
				ErrUnsupported, v.ID, v.Mode)
		}
		res, changed, err := v.Reservation.Acquire(g)
		if err != nil || !changed {
			return v, false, err
		}
		if now := v.Reservation.Phase; now != from {
			return v, false, &MovedError{From: from, Now: now}
		}
		v.Reservation = res
		v.Keys = layerKeys(v.ID, res.Epoch, nonces)
		return v, true, nil
	}}
}

// Mounted records that the holder has the volume in use.
func Mounted(epoch uint64, owner string) genlog.Op[Volume] {
	return hold("mounted", func(v *Volume) (reservation.State, bool, error) {
		return v.Reservation.Mounted(epoch, owner)
	})
}

// Expire claims an expired sandbox's volume for the reaper: same epoch, same owner, until it is released.
func Expire(epoch uint64, owner string, at time.Time) genlog.Op[Volume] {
	return hold("expire", func(v *Volume) (reservation.State, bool, error) {
		return v.Reservation.Expire(epoch, owner, at)
	})
}

func hold(name string, change func(*Volume) (reservation.State, bool, error)) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: name, Apply: func(v Volume) (Volume, bool, error) {
		if v.Status != StatusReady {
			return v, false, statusError(&v, name)
		}
		res, changed, err := change(&v)
		if err != nil || !changed {
			return v, false, err
		}
		v.Reservation = res
		return v, true, nil
	}}
}

// Touch appends a generation that changes nothing, so that a late put into the same slot fails. It is refused once the
// grant has landed.
func Touch(grant string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "touch", Apply: func(v Volume) (Volume, bool, error) {
		if v.Reservation.Grant.ID == grant {
			return v, false, fmt.Errorf("%w: grant %s of volume %s has landed", ErrConflict, grant, v.ID)
		}
		return v, true, nil
	}}
}

// Stay is Touch for a holder that gives up a pause or release of unknown outcome: whatever of it is under way finds its slot
// taken. It is refused once that has landed.
func Stay(epoch uint64, owner string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "touch", Apply: func(v Volume) (Volume, bool, error) {
		res := v.Reservation
		if res.Epoch == epoch && (res.Phase == reservation.Paused || res.Phase == reservation.Free) {
			return v, false, fmt.Errorf("%w: the pause or release of volume %s has landed", ErrConflict, v.ID)
		}
		err := res.Check(epoch, owner)
		return v, err == nil, err
	}}
}

// Then is what a publish does to the reservation in the same generation.
type Then string

// Keep leaves the phase; Pause and Release change it. Paused implies published, because they are one append.
const (
	Keep    Then = ""
	Pause   Then = "pause"
	Release Then = "release"
)

// Publish is what a holder asks for when it has uploaded sealed layers.
type Publish struct {
	Epoch  uint64
	Owner  string
	Layers []Layer // bottom first; each Key is the declared key it was uploaded under
	Nonces []string
	// Content is the cut that the layers complete. Without layers it is not used: nothing was written since.
	Content Content
	Then    Then
	At      time.Time
}

// Op returns the operation: layers, declared keys, cut and phase change in one generation.
func (p Publish) Op() genlog.Op[Volume] {
	name := "publish"
	if p.Then != Keep {
		name = string(p.Then)
	}
	return genlog.Op[Volume]{Name: name, Apply: p.apply}
}

func (p Publish) apply(v Volume) (Volume, bool, error) {
	if v.Status != StatusReady {
		return v, false, statusError(&v, "publish")
	}
	layers := p.missing(v)
	if len(p.Layers) > 0 && len(layers) == 0 && p.over(v.Reservation) {
		return v, false, nil
	}
	res, phaseChanged, err := p.phase(v.Reservation)
	if err != nil {
		return v, false, err
	}
	if len(layers) == 0 && !phaseChanged {
		return v, false, nil
	}
	if err := v.push(layers, layerKeys(v.ID, p.Epoch, p.Nonces[:len(layers)])); err != nil {
		return v, false, err
	}
	// The same bytes, cut again with the file systems at rest, are clean: there was nothing left to write.
	if len(layers) > 0 || (p.Content.Consistency == Clean && v.Content.Consistency == Crash) {
		v.Content = p.Content
	}
	v.Reservation = res
	return v, true, nil
}

// missing are the layers that the volume has not. An earlier publish whose reply was lost may have brought in the lower
// ones; its layers are here again, because its caller could not know.
func (p Publish) missing(v Volume) []Layer {
	layers := p.Layers
	for len(layers) > 0 && v.Stack.Contains(layers[0].Key) {
		layers = layers[1:]
	}
	return layers
}

// over reports whether a publish whose layers are all there is done, whatever has happened since. The layers alone do not
// say that the phase has changed: a publish that was to keep it may have brought them in. But a volume that went on to
// another grant, or was freed, had been paused or released before.
func (p Publish) over(s reservation.State) bool {
	return p.Then == Keep || s.Epoch > p.Epoch || s.Phase == reservation.Free
}

func (p Publish) phase(s reservation.State) (reservation.State, bool, error) {
	switch p.Then {
	case Pause:
		return s.Pause(p.Epoch, p.Owner, p.At)
	case Release:
		return s.Release(p.Epoch, p.Owner, p.At)
	}
	return s, false, s.Check(p.Epoch, p.Owner)
}

// Declare adds upload keys for the holder, for uploads beyond those already declared.
func Declare(epoch uint64, owner string, nonces []string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "declare", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status != StatusReady {
			return v, false, statusError(&v, "declare uploads")
		}
		if err := v.Reservation.Check(epoch, owner); err != nil {
			return v, false, err
		}
		keys := layerKeys(v.ID, epoch, nonces)
		if !slices.ContainsFunc(keys, func(k string) bool { return !slices.Contains(v.Keys, k) }) {
			return v, false, nil
		}
		v.Keys = append(slices.Clone(v.Keys), keys...)
		return v, true, nil
	}}
}

func (v Volume) holdsAll(layers []Layer) bool {
	for _, l := range layers {
		if !v.Stack.Contains(l.Key) {
			return false
		}
	}
	return len(layers) > 0
}

// push moves layers from the declared keys into the stack and declares new keys in their place.
func (v *Volume) push(layers []Layer, declare []string) error {
	keys := slices.Clone(v.Keys)
	stack := v.Stack.Clone()
	for _, l := range layers {
		i := slices.Index(keys, l.Key)
		if i < 0 {
			return fmt.Errorf("%w: upload key %s of volume %s is not declared", ErrConflict, l.Key, v.ID)
		}
		keys = slices.Delete(keys, i, i+1)
		stack.Layers = append(stack.Layers, l)
	}
	v.Keys, v.Stack = append(keys, declare...), stack
	return nil
}
