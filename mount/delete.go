package mount

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/volume"
)

// Delete ends a sandbox: what it wrote is published, its volumes are freed, and its set is forgotten, in this order. The
// volumes stay. A paused sandbox can be deleted on any node, a running one where it runs. Deleting what is not there is
// ErrNotFound.
func (n *Node) Delete(ctx context.Context, id ID) error {
	return n.do(ctx, "delete", id, func(sb *sandbox) error { return n.delete(ctx, sb) })
}

func (n *Node) delete(ctx context.Context, sb *sandbox) error {
	set, err := sb.read(ctx)
	if err != nil {
		return err
	}
	if set.runs() || len(sb.drives) > 0 {
		if err := n.mine(ctx, sb, set); err != nil {
			return err
		}
		if set.Phase == Expiring {
			if err := n.claimAll(ctx, sb); err != nil {
				return err
			}
		}
		if err := n.sealAll(ctx, sb); err != nil {
			return err
		}
		if err := n.finishAll(ctx, sb, func(ctx context.Context, d *drive) error {
			if d.reader != nil {
				return d.reader.Release(ctx)
			}
			return d.session.Release(ctx, d.cut)
		}); err != nil {
			return err
		}
	}
	// What was paused, here or on another node, before the call or by an earlier try of it, is freed by name.
	errs := failures()
	for _, d := range set.Drives {
		if err := n.free(ctx, sb, set.Phase, d); err != nil {
			errs = multierror.Append(errs, fmt.Errorf("drive %s, volume %s: %w", d.Path, d.Volume, err))
		}
	}
	if err := errs.ErrorOrNil(); err != nil {
		return err
	}
	if _, err := sb.log.Append(ctx, enter(Deleted, nil, n.now(), Creating, Running, Paused, Kept, Expiring)); err != nil {
		return err
	}
	sb.forget()
	return nil
}

// free gives back one drive of a sandbox that does not run, and a snapshot's checkpoint.
func (n *Node) free(ctx context.Context, sb *sandbox, phase Phase, d SetDrive) error {
	var err error
	switch {
	case phase == Kept:
		err = sb.m.DeleteCheckpoint(ctx, d.Checkpoint)
	case d.Mode == volume.ReadOnly && d.Pin != "":
		err = sb.m.RemovePin(ctx, d.Volume, sb.id.Sandbox, d.Pin)
	case d.Mode != volume.ReadOnly:
		err = sb.m.Free(ctx, d.Volume, sb.id.Sandbox)
	}
	if errors.Is(err, ErrNotFound) {
		return nil // it was deleted since: then nobody holds it
	}
	return err
}
