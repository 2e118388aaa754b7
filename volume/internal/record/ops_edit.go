package record

import (
	"fmt"
	"maps"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

// Relabel replaces the labels.
func Relabel(labels map[string]string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "relabel", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status == StatusDeleted {
			return v, false, statusError(&v, "change labels")
		}
		if maps.Equal(v.Labels, labels) {
			return v, false, nil
		}
		v.Labels = maps.Clone(labels)
		return v, true, nil
	}}
}

// Grow changes the size of a free exclusive volume, in bytes. The epoch is the one under which the volume was free.
func Grow(epoch uint64, size int64) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "grow", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Status != StatusReady:
			return v, false, statusError(&v, "grow")
		case v.Mode != Exclusive:
			return v, false, fmt.Errorf("%w: the size of ro volume %s never changes", ErrUnsupported, v.ID)
		case v.Stack.VirtualSize == size:
			return v, false, nil
		case size < v.Stack.VirtualSize:
			return v, false, fmt.Errorf("%w: size %d: volume %s has %d bytes and can only grow",
				ErrInvalid, size, v.ID, v.Stack.VirtualSize)
		case v.Reservation.Phase != reservation.Free:
			return v, false, &InUseError{ID: v.ID, Op: "grow", Holders: v.holders()}
		case v.Reservation.Epoch != epoch:
			return v, false, fmt.Errorf("%w: volume %s was held since it was read", ErrConflict, v.ID)
		}
		v.Stack = v.Stack.Clone()
		v.Stack.VirtualSize = size
		return v, true, nil
	}}
}

// BeginRename announces a new name under a fresh claim id; the name's own log is appended next.
func BeginRename(name, claim string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "renaming", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Status != StatusReady:
			return v, false, statusError(&v, "rename")
		case v.Renaming != nil && v.Renaming.Claim == claim:
			return v, false, nil
		}
		v.Renaming = &Renaming{Name: name, Claim: claim}
		return v, true, nil
	}}
}

// EndRename makes the announced name the volume's name. It is refused unless the announcement is still the same one.
func EndRename(name, claim string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "rename", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Status == StatusDeleted:
			return v, false, statusError(&v, "rename")
		case v.Renaming == nil && v.Name == name:
			return v, false, nil
		case v.Renaming == nil || v.Renaming.Claim != claim:
			return v, false, fmt.Errorf("%w: volume %s was renamed by another request", ErrConflict, v.ID)
		}
		v.Name, v.Renaming = name, nil
		return v, true, nil
	}}
}

// CancelRename takes an announcement back after the name turned out to be taken.
func CancelRename(claim string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "rename-cancel", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status == StatusDeleted || v.Renaming == nil || v.Renaming.Claim != claim {
			return v, false, nil
		}
		v.Renaming = nil
		return v, true, nil
	}}
}
