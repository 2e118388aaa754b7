package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// Recovered says what Recover did about one sandbox.
type Recovered struct {
	ID ID
	// Phase is the sandbox's after recovery. Running: its volumes are this node's still, with every write that was
	// acknowledged; Resume exposes them again, Pause publishes them, Delete gives them back.
	Phase Phase
	// Lost names volumes that somebody else has taken over, and where on this node what was written to them last is, until the
	// repository has kept it in a volume of its own: it does that by itself. A sandbox that has lost a volume does not run here.
	Lost []volume.Pending
	// Err is what could not be decided now. The journal keeps it, and Recover may be called again.
	Err error
}

// Recover finishes or undoes what this node was doing when it stopped, as its journal has it. Acquisitions that were never
// acknowledged are undone; cuts that were sealed for good are published and their volumes paused; children and checkpoints
// that no drive set names are removed; everything else is opened again and left to the host. Volumes that are somebody
// else's by now are reported, and their local layers kept. The error is about entries that cannot be read: nothing of theirs
// is touched.
func (n *Node) Recover(ctx context.Context) ([]Recovered, error) {
	pending, bad := n.repo.Journal()
	groups := map[ID][]volume.Pending{}
	var order []ID
	for _, p := range pending {
		id := ID{p.Tenant, p.Sandbox}
		if groups[id] == nil {
			order = append(order, id)
		}
		groups[id] = append(groups[id], p)
	}
	var out []Recovered
	for _, id := range order {
		out = append(out, n.recover(ctx, id, groups[id]))
	}
	errs := failures()
	return out, multierror.Append(errs, bad...).ErrorOrNil()
}

func (n *Node) recover(ctx context.Context, id ID, pending []volume.Pending) Recovered {
	r := Recovered{ID: id}
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		r.Err = err
		return r
	}
	defer leave()
	set, err := sb.read(ctx)
	if err != nil && !errors.Is(err, ErrNotFound) {
		r.Err = err
		return r
	}
	errs := failures()
	if err := n.clearMounts(ctx, sb.id, set); err != nil {
		r.Err = err
		return r
	}
	for _, p := range pending {
		if p.Lost != "" {
			continue
		}
		if err := n.recoverOne(ctx, sb, set, p); err != nil {
			errs = multierror.Append(errs, fmt.Errorf("volume %s: %w", p.Volume, err))
		}
	}
	r.Lost = n.lost(id)
	r.Phase, err = n.recoverPhase(ctx, sb, set)
	if errs = multierror.Append(errs, err); errs.ErrorOrNil() != nil {
		r.Err = errs
	}
	return r
}

// lost returns what the journal has of the sandbox that is somebody else's, found out just now or before.
func (n *Node) lost(id ID) (out []volume.Pending) {
	pending, _ := n.repo.Journal() // what cannot be read is reported by Recover
	for _, p := range pending {
		if p.Lost != "" && (ID{p.Tenant, p.Sandbox}) == id {
			out = append(out, p)
		}
	}
	return out
}

// clearMounts takes down the kernel mounts that the process which died has left: their devices went with it, and everything
// that was acknowledged to the sandbox is in the local layers.
func (n *Node) clearMounts(ctx context.Context, id ID, set DriveSet) error {
	if n.root == nil {
		return nil
	}
	for _, d := range set.Drives {
		old, err := AdoptKernel(filepath.Join(n.root(id), d.Path), n.kernel)
		if errors.Is(err, ErrNotMounted) {
			continue
		}
		if err == nil {
			err = old.Unmount(ctx)
		}
		if errors.Is(err, ErrBusy) {
			// Something of the dead sandbox is in it. It gets errors, and keeps nobody from going on.
			n.log.Warn("stale mount detached while in use", "target", old.Target())
			err = old.Detach(ctx)
		}
		if err != nil {
			return fmt.Errorf("drive %s: take down the mount of the process before: %w", d.Path, err)
		}
	}
	return nil
}

// recoverOne decides about one journal entry.
func (n *Node) recoverOne(ctx context.Context, sb *sandbox, set DriveSet, p volume.Pending) error {
	named := slices.IndexFunc(set.Drives, func(d SetDrive) bool {
		return p.Planned == nil && d.Volume == p.Volume ||
			p.Planned != nil && (d.Volume == p.Planned.Volume || d.Checkpoint == p.Planned.Checkpoint && d.Checkpoint != "")
	})
	switch {
	case p.Planned != nil && named >= 0:
		return sb.m.Unplan(*p.Planned) // the set was written: it was acknowledged or is as good as
	case p.Planned != nil:
		return discard(ctx, sb.m, *p.Planned)
	case p.Mode == volume.ReadOnly && (!set.runs() || named < 0):
		return sb.m.Undo(ctx, p.Volume, sb.id.Sandbox)
	case p.Mode == volume.ReadOnly:
		return nil // Resume uses the same pin again
	case !p.Acquired:
		return sb.m.Undo(ctx, p.Volume, sb.id.Sandbox)
	}
	return n.recoverHeld(ctx, sb, set, p)
}

// recoverHeld opens a volume that this node held, and finishes a cut that was sealed for good. A volume that was acquired for
// a sandbox which was never acknowledged, or which was paused and not yet resumed, goes back.
func (n *Node) recoverHeld(ctx context.Context, sb *sandbox, set DriveSet, p volume.Pending) error {
	d := &drive{SetDrive: SetDrive{Volume: p.Volume, Mode: p.Mode}}
	if i := slices.IndexFunc(set.Drives, func(s SetDrive) bool { return s.Volume == p.Volume }); i >= 0 {
		d.SetDrive = set.Drives[i]
	}
	session, err := sb.m.Reopen(ctx, p.Volume, sb.id.Sandbox)
	if err != nil || session == nil {
		return err // nil: it had been given back, and the journal did not know yet
	}
	d.session = session
	if !set.runs() {
		return d.giveBack(ctx, n)
	}
	cut, err := session.Pending(ctx)
	switch {
	case err != nil || cut == nil:
	case set.Phase == Expiring:
		err = session.Release(ctx, cut) // what is claimed is paused no more
	default:
		err = session.Pause(ctx, cut)
	}
	// What is not paused stays as it is: its local layers are whole, and Resume, Pause or Delete opens it again.
	return errors.Join(err, session.Close())
}

// recoverPhase writes what has become of the sandbox: one that was never acknowledged is gone.
func (n *Node) recoverPhase(ctx context.Context, sb *sandbox, set DriveSet) (Phase, error) {
	if set.Phase != Creating {
		return set.Phase, nil
	}
	return Deleted, n.tombstone(ctx, sb, Creating)
}

// adopt opens the drives of a sandbox that runs by its set, after a restart of this node. Drives that were paused before the
// restart have nothing to open.
func (n *Node) adopt(ctx context.Context, sb *sandbox, set DriveSet) error {
	here := n.holds(sb.id)
	writes := slices.ContainsFunc(set.Drives, func(d SetDrive) bool { return d.Mode != volume.ReadOnly })
	if !here && !writes && len(set.Drives) > 0 {
		return fmt.Errorf("%w: the sandbox does not run on node %s", ErrConflict, n.repo.Node())
	}
	drives := make([]*drive, 0, len(set.Drives))
	for _, s := range set.Drives {
		d := &drive{SetDrive: s}
		drives = append(drives, d)
		var err error
		switch {
		case s.Mode == volume.ReadOnly && here:
			err = d.open(ctx, sb)
		case s.Mode != volume.ReadOnly:
			err = d.reopen(ctx, sb)
		}
		if err != nil {
			sb.drives = drives
			return errors.Join(d.wrap(err), n.suspend(ctx, sb))
		}
	}
	sb.drives = drives
	return nil
}

// holds reports whether this node's journal has anything of the sandbox.
func (n *Node) holds(id ID) bool {
	pending, _ := n.repo.Journal() // what cannot be read is reported by Recover
	return slices.ContainsFunc(pending, func(p volume.Pending) bool {
		return p.Planned == nil && p.Tenant == id.Tenant && p.Sandbox == id.Sandbox
	})
}

// reopen opens an exclusive volume under the grant that the journal has. Without one, the volume must be paused: everything
// that was written is published then.
func (d *drive) reopen(ctx context.Context, sb *sandbox) (err error) {
	if d.session, err = sb.m.Reopen(ctx, d.Volume, sb.id.Sandbox); err != nil || d.session != nil {
		return err
	}
	v, err := sb.m.Get(ctx, d.Volume)
	if err != nil {
		return err
	}
	g, held := v.Reservation.Holder()
	if held && g.Owner == sb.id.Sandbox && v.Reservation.Phase != reservation.Paused {
		return fmt.Errorf("%w: the sandbox does not run on node %s: node %s holds the volume for it under epoch %d",
			ErrConflict, sb.m.Repository().Node(), g.Node, v.Reservation.Epoch)
	}
	return nil
}
