package genlog

import (
	"context"
	"errors"
)

// fate is what is known about a generation that was put or read.
type fate int

const (
	// open: it cannot be told, or not yet: the put may still arrive, or the slots that would tell are pruned.
	open fate = iota
	// inLineage: it was the newest generation once, and every later one was built on it.
	inLineage
	// lost: it is not part of the log, and never will be.
	lost
)

// fateOf says what became of g, by one listing, and by one get if g is not seen to be the newest. inSlot says that the
// caller has put g successfully, or has read it: its slot was then g's at that time.
//
// A successful put alone proves nothing. The writer may have stalled between reading N and putting N+1, so long that
// the slot of N+1 was taken, built upon and pruned: the put then lands in the empty slot, far below the newest
// generation.
func (l *Log[S]) fateOf(ctx context.Context, g Generation[S], inSlot bool) (fate, error) {
	newest, err := l.NewestNumber(ctx)
	if err != nil {
		return open, err
	}
	if newest < g.Number {
		return open, nil
	}
	if newest == g.Number && inSlot {
		// The listing began after g was in its slot. Had g been a ghost, generations above it would have been listed.
		return inLineage, nil
	}
	if newest == g.Number {
		return l.compare(ctx, g.Number, func(slot Generation[S]) bool { return slot.Nonce == g.Nonce })
	}
	if newest-g.Number > l.always {
		// The slot above may be pruned, and then hold a ghost itself, which proves nothing.
		return open, nil
	}
	return l.compare(ctx, g.Number+1, func(next Generation[S]) bool { return next.Previous == g.Nonce })
}

// compare reads slot n and says whether it proves a generation to be in the lineage or lost.
func (l *Log[S]) compare(ctx context.Context, n uint64, proves func(Generation[S]) bool) (fate, error) {
	slot, err := l.Read(ctx, n)
	switch {
	case errors.Is(err, ErrNotFound):
		return open, nil // pruned since the listing
	case err != nil:
		return open, err
	case proves(slot):
		return inLineage, nil
	}
	return lost, nil
}
