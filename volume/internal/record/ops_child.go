package record

import (
	"fmt"
	"time"

	"github.com/sandvol/sandvol/volume/genlog"
)

// Ready makes an uploading record ready over the references that were checked again. It is refused on a record with other
// references: those were never checked, and a slow creator must not bless what a retry copied.
func Ready[S Record](checked Stack) genlog.Op[S] {
	return genlog.Op[S]{Name: "ready", Apply: func(s S) (S, bool, error) {
		h := HeadOf(&s)
		same := h.Stack.SameContent(checked)
		switch {
		case h.Status == StatusReady && same:
			return s, false, nil
		case h.Status != StatusUploading:
			return s, false, statusError(&s, "make ready")
		case !same:
			return s, false, fmt.Errorf("%w: %s %s was copied again by another request", ErrConflict, kindOf(&s), h.ID)
		}
		h.Status = StatusReady
		return s, true, nil
	}}
}

// Recopy replaces the references of an uploading record after its source moved on. old is what it had.
func Recopy[S Record](old Stack, origin Origin, stack Stack, content Content) genlog.Op[S] {
	return genlog.Op[S]{Name: "recopy", Apply: func(s S) (S, bool, error) {
		h := HeadOf(&s)
		switch {
		case h.Status != StatusUploading:
			return s, false, statusError(&s, "copy again")
		case h.Stack.SameContent(stack) && h.Origin.Generation == origin.Generation:
			return s, false, nil
		case !h.Stack.SameContent(old):
			return s, false, fmt.Errorf("%w: %s %s was copied again by another request", ErrConflict, kindOf(&s), h.ID)
		}
		h.Origin, h.Stack, h.Content = origin, stack.Clone(), content
		return s, true, nil
	}}
}

// CarryOn lets a repeated create take over an uploading or failed volume from the request that began it: the epoch rises
// and the declared keys are new, so that nothing of the earlier request can land any more.
func CarryOn(fromEpoch uint64, nonces []string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "carry-on", Apply: func(v Volume) (Volume, bool, error) {
		keys := layerKeys(v.ID, fromEpoch+1, nonces)
		switch {
		case v.Status != StatusUploading && v.Status != StatusFailed:
			return v, false, statusError(&v, "carry on its creation")
		case v.Reservation.Epoch == fromEpoch+1 && equalKeys(v.Keys, keys):
			return v, false, nil
		case v.Reservation.Epoch != fromEpoch:
			return v, false, fmt.Errorf("%w: creation of volume %s is carried on by another request", ErrConflict, v.ID)
		}
		v.Status, v.Keys = StatusUploading, keys
		v.Reservation.Epoch++
		return v, true, nil
	}}
}

func equalKeys(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// FirstContent puts the first uploaded layers into an uploading volume. It is for volumes whose content is made and not
// copied: an empty file system, an imported image. Each layer's key is a declared one.
func FirstContent(epoch uint64, layers []Layer, content Content) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "content", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Status != StatusUploading && v.Status != StatusReady:
			return v, false, statusError(&v, "add content")
		case v.holdsAll(layers):
			return v, false, nil
		case v.Status == StatusReady || v.Reservation.Epoch != epoch:
			return v, false, fmt.Errorf("%w: creation of volume %s was carried on by another request", ErrFenced, v.ID)
		}
		if err := v.push(layers, nil); err != nil {
			return v, false, err
		}
		v.Content = content
		return v, true, nil
	}}
}

// Abandon tombstones an uploading or failed record: its creator gave up, or somebody cleans up behind it. It is refused once
// another request carries the creation on, which raised the epoch.
func Abandon[S Record](epoch uint64, at time.Time) genlog.Op[S] {
	return genlog.Op[S]{Name: "abandon", Apply: func(s S) (S, bool, error) {
		h := HeadOf(&s)
		switch h.Status {
		case StatusDeleted:
			return s, false, nil
		case StatusUploading, StatusFailed:
			if v, ok := any(&s).(*Volume); ok && v.Reservation.Epoch != epoch {
				return s, false, fmt.Errorf("%w: creation of volume %s is carried on by another request", ErrConflict, h.ID)
			}
			tombstone(&s, at)
			return s, true, nil
		}
		return s, false, statusError(&s, "abandon its creation")
	}}
}

// tombstone turns a state into its last one. Its references stay until the collector lets them go; the declared keys do
// not: an upload that is still under way becomes garbage.
func tombstone[S Record](s *S, at time.Time) {
	h := HeadOf(s)
	h.Status, h.DeletedAt = StatusDeleted, at
	if v, ok := any(s).(*Volume); ok {
		v.Keys, v.Renaming = nil, nil
	}
}
