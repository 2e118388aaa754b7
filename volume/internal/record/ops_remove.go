package record

import (
	"fmt"
	"slices"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

// Delete tombstones a free exclusive volume, or one whose creation did not finish. An ro volume goes by BeginDelete.
func Delete(at time.Time) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "delete", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Status == StatusDeleted:
			return v, false, nil
		case v.Mode == ReadOnly && (v.Status == StatusReady || v.Status == StatusDeleting):
			return v, false, fmt.Errorf("%w: ro volume %s is deleted by way of its pins", ErrUnsupported, v.ID)
		case v.Reservation.Phase != reservation.Free:
			return v, false, &InUseError{ID: v.ID, Op: "delete", Holders: v.holders()}
		}
		tombstone(&v, at)
		return v, true, nil
	}}
}

// DeleteUnused is Delete of a volume that nobody has ever held.
func DeleteUnused(at time.Time) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "discard", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status != StatusDeleted && v.Reservation.Epoch > 0 {
			return v, false, fmt.Errorf("%w: volume %s was acquired since it was planned", ErrInUse, v.ID)
		}
		return Delete(at).Apply(v)
	}}
}

// BeginDelete announces that a ready ro volume is to go, so that a reader that comes now is seen.
func BeginDelete() genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "deleting", Apply: func(v Volume) (Volume, bool, error) {
		switch {
		case v.Mode != ReadOnly:
			return v, false, fmt.Errorf("%w: only ro volumes are deleted by way of their pins", ErrUnsupported)
		case v.Status == StatusDeleting:
			return v, false, nil
		case v.Status != StatusReady:
			return v, false, statusError(&v, "delete")
		}
		v.Status = StatusDeleting
		return v, true, nil
	}}
}

// FinishDelete tombstones a volume that is deleting. It is appended only as the direct successor of the `deleting`
// generation after which no pin was listed.
func FinishDelete(at time.Time) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "deleted", Apply: func(v Volume) (Volume, bool, error) {
		switch v.Status {
		case StatusDeleted:
			return v, false, nil
		case StatusDeleting:
			tombstone(&v, at)
			return v, true, nil
		}
		return v, false, statusError(&v, "finish its deletion")
	}}
}

// Undelete takes `deleting` back: a reader is there.
func Undelete() genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "undelete", Apply: func(v Volume) (Volume, bool, error) {
		switch v.Status {
		case StatusReady:
			return v, false, nil
		case StatusDeleting:
			v.Status = StatusReady
			return v, true, nil
		}
		return v, false, statusError(&v, "keep")
	}}
}

// DeleteCheckpoint tombstones a checkpoint. Nothing can hold one.
func DeleteCheckpoint(at time.Time) genlog.Op[Checkpoint] {
	return genlog.Op[Checkpoint]{Name: "delete", Apply: func(c Checkpoint) (Checkpoint, bool, error) {
		if c.Status == StatusDeleted {
			return c, false, nil
		}
		tombstone(&c, at)
		return c, true, nil
	}}
}

// SettleVolume lets go of what an ended collector run read in a volume's leaving: exactly the entries given, and with dead,
// which says that the run read the tombstone, of its stack and former too. What has begun to leave since the run read it
// waits for the next one, on a tombstone as well: a salvage may have taken it over behind the run's back. Stacks that a fenced
// holder may yet need stay.
func SettleVolume(leaving []Left, dead bool) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "settle", Apply: func(v Volume) (Volume, bool, error) {
		rest := slices.DeleteFunc(slices.Clone(v.Leaving), func(l Left) bool { return slices.ContainsFunc(leaving, l.same) })
		changed := len(rest) != len(v.Leaving)
		v.Leaving = rest
		if dead && v.Status == StatusDeleted && !v.Settled {
			v.Stack.Layers, v.Former = nil, nil
			v.Settled, changed = true, true
		}
		return v, changed, nil
	}}
}

// SettleCheckpoint lets go of what a tombstone still refers to.
func SettleCheckpoint() genlog.Op[Checkpoint] {
	return genlog.Op[Checkpoint]{Name: "settle", Apply: func(c Checkpoint) (Checkpoint, bool, error) {
		if c.Status != StatusDeleted || c.Settled {
			return c, false, nil
		}
		c.Stack.Layers, c.Settled = nil, true
		return c, true, nil
	}}
}
