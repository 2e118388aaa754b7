package mount

import (
	"context"
	"fmt"
	"time"

	"github.com/sandvol/sandvol/volume/genlog"
)

// Expire ends a sandbox whose time is over: claim, flush, delete, in this order. The claim is one append that only one caller
// makes and that turns the sandbox Expiring: from then on it is neither resumed nor paused, forked or snapshotted. Then what
// was written is published, and only then are the volumes freed and the set forgotten. The volumes stay.
//
// due, if not nil, is asked right before the claim, when it is this call's turn with the sandbox: so an extension that the
// host recorded in between keeps the sandbox, and Expire reports false. It reports true once the sandbox is claimed, whatever
// comes after: a flush that fails leaves sandbox and reservations as they are, and Expire, on this node, or Delete carries on.
// As with Pause, the host has stopped the sandbox before; one that runs on another node is ErrConflict, and one that is gone
// is ErrNotFound.
func (n *Node) Expire(ctx context.Context, id ID, due func(context.Context) (bool, error)) (claimed bool, err error) {
	err = n.do(ctx, "expire", id, func(sb *sandbox) error {
		claimed, err = n.expire(ctx, sb, due)
		return err
	})
	return claimed, err
}

func (n *Node) expire(ctx context.Context, sb *sandbox, due func(context.Context) (bool, error)) (claimed bool, err error) {
	set, err := sb.read(ctx)
	if err != nil {
		return false, err
	}
	if set.Phase != Expiring {
		if set.Phase == Running {
			// Found out before the claim: a sandbox that runs elsewhere is that node's to claim.
			if err := n.mine(ctx, sb, set); err != nil {
				return false, err
			}
		}
		if due != nil {
			if yes, err := due(ctx); err != nil || !yes {
				return false, err
			}
		}
		gen, err := sb.log.Append(ctx, claim(set.Phase, n.now()))
		if err != nil {
			return false, err
		}
		set = gen.State
	}
	sb.claimed = true
	return true, n.delete(ctx, sb)
}

// claimAll turns the reservations of an expiring sandbox's open drives, so that nobody has to read the set to know. Those of a
// sandbox that was paused are freed in one append each: there is nothing in between to show.
func (n *Node) claimAll(ctx context.Context, sb *sandbox) error {
	for _, d := range sb.drives {
		if d.session == nil {
			continue
		}
		if err := d.session.Expire(ctx); err != nil {
			return d.wrap(err)
		}
	}
	return nil
}

// claim is the op of a sandbox's end. The set remembers what the sandbox was: one that ran has drives on its node that are to
// be flushed, one that was paused has everything published. So it is refused when the sandbox is not any more what the caller
// found it to be: one that another node has resumed meanwhile is that node's to claim.
func claim(from Phase, at time.Time) genlog.Op[DriveSet] {
	return genlog.Op[DriveSet]{Name: string(Expiring), Apply: func(s DriveSet) (DriveSet, bool, error) {
		switch {
		case s.Phase == Expiring && s.Was == from:
			return s, false, nil
		case s.Phase == from && (from == Running || from == Paused):
			s.Was, s.Phase, s.UpdatedAt = from, Expiring, at
			return s, true, nil
		}
		return s, false, fmt.Errorf("%w: the sandbox is %s and cannot expire", ErrConflict, s.Phase)
	}}
}
