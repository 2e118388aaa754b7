package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume"
)

// publishers is how many drives of a sandbox are published at once.
const publishers = 4

// Pause takes a sandbox's drives away and publishes what was written: when it returns nil, everything is in the repository
// and the sandbox can be resumed on any node. The volumes stay its own for as long as it takes. The host has stopped the
// sandbox before. A pause that fails may be repeated, or given up with Resume; nothing is lost. Pausing a paused sandbox is
// success.
func (n *Node) Pause(ctx context.Context, id ID) error {
	return n.do(ctx, "pause", id, func(sb *sandbox) error { return n.pause(ctx, sb) })
}

func (n *Node) pause(ctx context.Context, sb *sandbox) error {
	set, err := sb.read(ctx)
	if err != nil {
		return err
	}
	if set.Phase == Paused && len(sb.drives) == 0 {
		return nil
	}
	if set.Phase == Expiring {
		return fmt.Errorf("%w: the sandbox is %s", ErrConflict, set.Phase)
	}
	if err := n.mine(ctx, sb, set); err != nil {
		return err
	}
	if err := n.sealAll(ctx, sb); err != nil {
		return err
	}
	if err := n.finishAll(ctx, sb, func(ctx context.Context, d *drive) error {
		if d.reader != nil {
			return d.reader.Leave() // the pin stays, and the set remembers it
		}
		return d.session.Pause(ctx, d.cut)
	}); err != nil {
		return err
	}
	pinned := sb.set()
	if _, err := sb.log.Append(ctx, enter(Paused, pinned, n.now(), Running, Creating)); err != nil {
		return err
	}
	sb.forget()
	return nil
}

// mine makes sure that the sandbox's drives are in this node's hands, opening those that a restart has closed.
func (n *Node) mine(ctx context.Context, sb *sandbox, set DriveSet) error {
	if sb.running || len(sb.drives) == len(set.Drives) {
		return nil
	}
	if !set.runs() {
		return fmt.Errorf("%w: the sandbox is %s", ErrNotReady, set.Phase)
	}
	return n.adopt(ctx, sb, set)
}

// sealAll brings the sandbox to rest, makes one final cut of all its drives, and takes them away. No device takes a write
// after its seal.
func (n *Node) sealAll(ctx context.Context, sb *sandbox) error {
	consistency, err := n.settle(ctx, sb)
	if err != nil {
		return err
	}
	// A pause that is repeated goes on with its cut: the sandbox has been at rest since.
	if sb.cut == nil {
		sb.cut = new(volume.NewCut(consistency, true))
	}
	for _, d := range sb.drives {
		if d.session == nil || d.cut != nil {
			continue
		}
		c, err := d.session.Seal(ctx, *sb.cut)
		if err != nil {
			return d.wrap(err)
		}
		d.cut = c
	}
	sb.running = false
	for _, d := range sb.drives {
		if err := d.hide(ctx, n); err != nil {
			return d.wrap(err)
		}
	}
	return nil
}

// settle brings a running sandbox's file systems to rest for good, and says how good that is. A sandbox that a restart of
// this node has cut off from its drives, or that an earlier try has sealed, has nothing to settle.
func (n *Node) settle(ctx context.Context, sb *sandbox) (volume.Consistency, error) {
	switch {
	case !sb.running:
		return volume.Crash, nil
	case n.root != nil:
		// Unmounting brings a file system to rest better than freezing: nothing is left to replay. The last mounted goes first:
		// the directories above it were made for an earlier one.
		for _, d := range slices.Backward(sb.drives) {
			if err := d.unmount(ctx); err != nil {
				return "", d.wrap(err)
			}
		}
		return volume.Clean, nil
	case sb.thaw == nil:
		thaw, err := n.freeze(ctx, sb.id, sb.drives)
		if err != nil || thaw == nil {
			return volume.Crash, err
		}
		// The guest stays frozen from here on: whatever it wrote later would be in no cut. Only a pause that is given up thaws.
		sb.thaw = thaw
	}
	return volume.Clean, nil
}

// finishAll ends each drive's session with f, several at once, and names every drive that failed. Those that ended are not
// touched again when the call is repeated.
func (n *Node) finishAll(ctx context.Context, sb *sandbox, f func(context.Context, *drive) error) error {
	errs := make([]error, len(sb.drives))
	var g errgroup.Group
	g.SetLimit(publishers)
	for i, d := range sb.drives {
		if d.session == nil && d.reader == nil {
			continue
		}
		g.Go(func() error {
			if err := f(ctx, d); err != nil {
				errs[i] = d.wrap(err)
				return nil
			}
			d.session, d.reader, d.cut = nil, nil, nil
			return nil
		})
	}
	_ = g.Wait() // the functions return nil: each drive's error is its own
	all := failures()
	for _, err := range errs {
		if err != nil {
			all = multierror.Append(all, err)
		}
	}
	return all.ErrorOrNil()
}

// Resume attaches a paused sandbox's drives, on whichever node this is, or a forked sandbox's for the first time, or those
// that a restart of this node has closed. Everything that was written before the pause is there. Resuming a sandbox that
// runs here returns its drives; one that runs elsewhere is ErrConflict.
func (n *Node) Resume(ctx context.Context, id ID) ([]Drive, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("resume sandbox %s: %w", id, err)
	}
	defer leave()
	if sb.running && !sb.claimed {
		return sb.list(), nil
	}
	set, err := sb.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("resume sandbox %s: %w", id, err)
	}
	if set.Phase == Expiring {
		return nil, fmt.Errorf("resume sandbox %s: %w: it is %s", id, ErrConflict, set.Phase)
	}
	if set.Phase != Paused && set.Phase != Running {
		return nil, fmt.Errorf("resume sandbox %s: %w: it is %s", id, ErrNotReady, set.Phase)
	}
	if err := n.activate(ctx, sb, set.Drives); err != nil {
		return nil, fmt.Errorf("resume sandbox %s: %w", id, errors.Join(err, n.stepBack(ctx, sb, set.Phase)))
	}
	return n.announce(ctx, sb, set.Phase)
}
