package reservation

import (
	"slices"
	"time"
)

// Acquire gives the volume to g: if it is free, or paused by the same owner, on whichever node. The phase becomes
// Preparing and the epoch rises. It reports no change if g holds the volume already, and returns a *ConflictError that
// names the holder otherwise; the same owner in any other phase is a conflict too, since it may still write elsewhere.
//
// A grant that was released cannot be acquired again: an acquire that is found to have taken effect and to be over must
// not take effect twice.
func (s State) Acquire(g Grant) (next State, changed bool, err error) {
	if err := s.known(); err != nil {
		return s, false, err
	}
	if err := g.validate(); err != nil {
		return s, false, err
	}
	switch {
	case s.Grant.ID == g.ID:
		if s.Phase == Free || !s.Grant.same(g) {
			return s, false, s.conflict("acquire")
		}
		return s, false, nil
	case s.Phase == Free, s.Phase == Paused && s.Grant.Owner == g.Owner:
		g.Reason = ""
		return s.grant(g), true, nil
	}
	return s, false, s.conflict("acquire")
}

// TakeOver gives the volume to g without the holder's help, from any phase but Free. The caller names the epoch that
// it takes the volume from, so that of two takeovers only one succeeds. The phase becomes Preparing and the epoch
// rises. Reason is 1 to MaxReason bytes of UTF-8 and is kept in the grant. It reports no change if g has taken the
// volume over from that epoch already, and returns a *ConflictError otherwise.
func (s State) TakeOver(expectedEpoch uint64, g Grant, reason string) (next State, changed bool, err error) {
	if err := s.known(); err != nil {
		return s, false, err
	}
	if err := g.validate(); err != nil {
		return s, false, err
	}
	if err := validateReason(reason); err != nil {
		return s, false, err
	}
	switch {
	case s.Phase == Free:
	case s.Epoch == expectedEpoch+1 && s.Grant.ID == g.ID && s.Grant.same(g):
		return s, false, nil
	case s.Epoch == expectedEpoch && s.Grant.ID != g.ID:
		g.Reason = reason
		return s.grant(g), true, nil
	}
	return s, false, s.conflict("take over")
}

// Mounted says that the owner's node has opened the volume: from Preparing to Mounted. Since stays that of the
// grant.
func (s State) Mounted(epoch uint64, owner string) (next State, changed bool, err error) {
	return s.move("mount", epoch, owner, Mounted, s.Since, Preparing)
}

// Pause keeps the volume for its owner: from Preparing or Mounted to Paused. It belongs in the write that holds what
// the pause sealed, so that paused implies published.
func (s State) Pause(epoch uint64, owner string, at time.Time) (next State, changed bool, err error) {
	return s.move("pause", epoch, owner, Paused, at, Preparing, Mounted)
}

// Expire claims the volume for the end of its owner: from Mounted or Paused to Expiring. The epoch stays, because what
// the holder wrote is still to be published under it.
func (s State) Expire(epoch uint64, owner string, at time.Time) (next State, changed bool, err error) {
	return s.move("expire", epoch, owner, Expiring, at, Mounted, Paused)
}

// Release frees the volume, from any phase. The epoch stays, and the last grant is remembered: a release that is
// repeated by the same owner under the same epoch reports no change.
func (s State) Release(epoch uint64, owner string, at time.Time) (next State, changed bool, err error) {
	if s.Phase == Free && s.Grant.ID != "" && s.Epoch == epoch && s.Grant.Owner == owner {
		return s, false, nil
	}
	return s.move("release", epoch, owner, Free, at, Preparing, Mounted, Paused, Expiring)
}

// move changes the phase for the holder, if the present phase is one of `from`.
func (s State) move(op string, epoch uint64, owner string, to Phase, at time.Time, from ...Phase) (State, bool, error) {
	if err := s.Check(epoch, owner); err != nil {
		return s, false, err
	}
	if s.Phase == to {
		return s, false, nil
	}
	if !slices.Contains(from, s.Phase) {
		return s, false, s.conflict(op)
	}
	s.Phase, s.Since = to, at
	return s, true, nil
}

// grant returns the state in which g has just been given the volume.
func (s State) grant(g Grant) State {
	s.Epoch++
	s.Phase, s.Grant, s.Since = Preparing, g, g.At
	return s
}

// same reports whether h names the same right. An id is never meant for two owners.
func (g Grant) same(h Grant) bool { return g.Owner == h.Owner && g.Node == h.Node }
