package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// TakeOver brings the drives of a sandbox here whose node is lost, without that node's help. It is an operator's or a
// scheduler's decision, with a reason of 1 to 1024 bytes that is kept with each volume: nothing else makes it. If that node
// lives after all, its drives fail from now on, and what it has written and not published is kept in volumes of their own.
//
// A sandbox that was running runs here when it returns, with what was published last. One that was being created, or that
// expires, has its volumes here and no drives: Delete ends it. One that is paused needs no takeover: Resume it. A call that
// fails may be repeated; what it has taken stays the sandbox's.
func (n *Node) TakeOver(ctx context.Context, id ID, reason string) ([]Drive, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("take over sandbox %s: %w", id, err)
	}
	defer leave()
	drives, err := n.takeOver(ctx, sb, reason)
	if err != nil {
		return nil, fmt.Errorf("take over sandbox %s: %w", id, err)
	}
	return drives, nil
}

func (n *Node) takeOver(ctx context.Context, sb *sandbox, reason string) ([]Drive, error) {
	if sb.running && !sb.claimed && !sb.lost() {
		return sb.list(), nil
	}
	set, err := sb.read(ctx)
	if err != nil {
		return nil, err
	}
	if set.Phase == Paused || set.Phase == Kept {
		return nil, fmt.Errorf("%w: it is %s", ErrConflict, set.Phase)
	}
	if len(sb.drives) > 0 && !sb.lost() {
		return nil, fmt.Errorf("%w: it is on this node: resume, pause or delete it", ErrConflict)
	}
	// Drives of an earlier time here, which others have had since.
	if err := n.abandon(ctx, sb); err != nil {
		return nil, err
	}
	for _, s := range set.Drives {
		d := &drive{SetDrive: s}
		sb.drives = append(sb.drives, d)
		if err := d.takeOver(ctx, sb, set.Phase == Running, reason); err != nil {
			return nil, errors.Join(d.wrap(err), n.suspend(ctx, sb))
		}
	}
	if set.Phase != Running {
		return nil, nil
	}
	if err := n.activate(ctx, sb, set.Drives); err != nil {
		return nil, errors.Join(err, n.suspend(ctx, sb))
	}
	return n.announce(ctx, sb, Running)
}

// takeOver takes one drive from wherever the sandbox had it. One that is paused or free is acquired, if the sandbox is to run.
func (d *drive) takeOver(ctx context.Context, sb *sandbox, runs bool, reason string) error {
	if d.Mode == volume.ReadOnly {
		if !runs {
			return nil // its pin goes with the sandbox
		}
		return d.open(ctx, sb)
	}
	v, err := sb.m.Get(ctx, d.Volume)
	if err != nil {
		return err
	}
	g, held := v.Reservation.Holder()
	ours := held && g.Owner == sb.id.Sandbox
	switch {
	case held && !ours:
		return fmt.Errorf("%w: sandbox %s on node %s holds it under epoch %d", ErrConflict, g.Owner, g.Node, v.Reservation.Epoch)
	case ours && v.Reservation.Phase != reservation.Paused && g.Node != sb.m.Repository().Node():
		d.session, err = sb.m.TakeOver(ctx, v.ID, volume.TakeOverOptions{Epoch: v.Reservation.Epoch, Reason: reason})
		if err == nil && !runs {
			err = d.session.Mounted(ctx) // what is only being prepared cannot be claimed for an expiry
		}
		return err
	case runs || ours && v.Reservation.Phase != reservation.Paused:
		return d.open(ctx, sb)
	}
	return nil
}

// lost reports whether a drive of the sandbox is somebody else's by now.
func (sb *sandbox) lost() bool {
	return slices.ContainsFunc(sb.drives, func(d *drive) bool { return d.session != nil && d.session.Err() != nil })
}

// Abandon takes the drives of a sandbox away here that was taken over: its device files and mounts go, the volumes are not
// touched. What it has written and not published is kept by the repository, whether Abandon is called or not. The host has
// stopped the sandbox before, which gets errors from the drives that are lost. It is ErrConflict if no drive is lost.
func (n *Node) Abandon(ctx context.Context, id ID) error {
	return n.do(ctx, "abandon", id, func(sb *sandbox) error {
		if len(sb.drives) > 0 && !sb.lost() {
			return fmt.Errorf("%w: the sandbox has its volumes still: pause or delete it", ErrConflict)
		}
		return n.abandon(ctx, sb)
	})
}

// abandon is suspend for a sandbox that this node has lost: its pins go too, since whoever took it over has other ones.
func (n *Node) abandon(ctx context.Context, sb *sandbox) error {
	for _, d := range sb.drives {
		if d.reader == nil {
			continue
		}
		if err := d.hide(ctx, n); err != nil {
			return d.wrap(err)
		}
		if err := d.reader.Release(ctx); err != nil {
			return d.wrap(err)
		}
		d.reader = nil
	}
	if err := n.suspend(ctx, sb); err != nil {
		return err
	}
	sb.forget()
	return nil
}

// Drain pauses every sandbox that runs here, one after the other: when it returns nil, each can be resumed on another node and
// this one can go. The host has stopped the sandboxes before. Those that fail keep running and are named; the call may be
// repeated.
func (n *Node) Drain(ctx context.Context) error {
	n.mu.Lock()
	var all []ID
	for id := range n.sandboxes {
		all = append(all, id)
	}
	n.mu.Unlock()
	errs := failures()
	for _, id := range all {
		err := n.do(ctx, "drain", id, func(sb *sandbox) error {
			if !sb.running || sb.claimed || sb.lost() {
				return nil
			}
			return n.pause(ctx, sb)
		})
		if err != nil {
			errs = multierror.Append(errs, err)
		}
	}
	return errs.ErrorOrNil()
}
