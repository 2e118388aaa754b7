package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/volume"
)

// undoTime is how long a failed operation goes on to undo what it did, after its caller may have gone.
const undoTime = 60 * time.Second

// Create attaches volumes to a new sandbox, all or none: everything is resolved and validated first, then acquired in id
// order, then exposed. When it returns nil, each drive is where the Drive says and the volumes are the sandbox's own until
// it is deleted. Repeating the call for a sandbox that runs with the same drives returns them.
func (n *Node) Create(ctx context.Context, id ID, mounts []Mount) ([]Drive, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", id, err)
	}
	defer leave()
	drives, err := n.resolve(ctx, sb.m, mounts)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", id, err)
	}
	return n.create(ctx, sb, drives)
}

// CreateFrom attaches to a new sandbox what a snapshot holds: a new exclusive volume restored from each checkpoint of an
// exclusive one, and ro volumes themselves, or a copy where one was deleted. A mount given here takes the place of the
// snapshot's drive at the same path.
func (n *Node) CreateFrom(ctx context.Context, id ID, snapshot DriveSet, mounts []Mount) ([]Drive, error) {
	if snapshot.Phase != Kept {
		return nil, fmt.Errorf("%w: create sandbox %s: drive set is %q, not of a snapshot", ErrInvalid, id, snapshot.Phase)
	}
	m, err := n.repo.Tenant(id.Tenant)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", id, err)
	}
	all := slices.Clone(mounts)
	var made []string
	for _, d := range snapshot.Drives {
		if slices.ContainsFunc(mounts, func(o Mount) bool { return o.Path == d.Path }) {
			continue
		}
		ref, fresh, err := restore(ctx, m, d)
		if err != nil {
			return nil, fmt.Errorf("create sandbox %s: drive %s: %w", id, d.Path, errors.Join(err, remove(ctx, m, made)))
		}
		if fresh {
			made = append(made, ref)
		}
		all = append(all, Mount{Path: d.Path, Volume: ref, ReadOnly: d.ReadOnly})
	}
	drives, err := n.Create(ctx, id, all)
	if err != nil {
		// A restored volume that no sandbox has ever had is of no use to anybody.
		return nil, errors.Join(err, remove(ctx, m, made))
	}
	return drives, nil
}

// restore returns the volume to mount for a snapshot's drive, and whether it was made for that.
func restore(ctx context.Context, m *volume.Manager, d SetDrive) (ref string, fresh bool, err error) {
	if d.Mode == volume.ReadOnly {
		v, err := m.Get(ctx, d.Volume)
		if err == nil && v.Status == volume.StatusReady {
			return v.ID, false, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return "", false, err
		}
	}
	v, err := m.Restore(ctx, d.Checkpoint, volume.ForkOptions{Mode: d.Mode})
	return v.ID, err == nil, err
}

func remove(ctx context.Context, m *volume.Manager, volumes []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	errs := failures()
	for _, v := range volumes {
		if err := m.Delete(ctx, v); err != nil && !errors.Is(err, ErrNotFound) {
			errs = multierror.Append(errs, err)
		}
	}
	return errs.ErrorOrNil()
}

// create writes the set, attaches, and writes that it runs. Called in turn.
func (n *Node) create(ctx context.Context, sb *sandbox, drives []SetDrive) ([]Drive, error) {
	if sb.running && !sb.claimed && (DriveSet{Drives: sb.set()}).same(drives) {
		return sb.list(), nil
	}
	if _, err := sb.log.AppendOrCreate(ctx, begin(Creating, "", drives, n.now())); err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", sb.id, err)
	}
	if err := n.activate(ctx, sb, drives); err != nil {
		err = fmt.Errorf("create sandbox %s: %w", sb.id, errors.Join(err, n.deactivate(ctx, sb)))
		if len(sb.drives) == 0 { // everything was given back
			err = errors.Join(err, n.tombstone(ctx, sb, Creating))
		}
		return nil, err
	}
	return n.announce(ctx, sb, Creating)
}

// announce writes that the sandbox runs, once all its drives do.
func (n *Node) announce(ctx context.Context, sb *sandbox, from Phase) ([]Drive, error) {
	if _, err := sb.log.Append(ctx, enter(Running, sb.set(), n.now(), from)); err != nil {
		// Not known to run: then it does not. A repeated call, or Recover, starts from the phase that is on record.
		return nil, errors.Join(fmt.Errorf("start sandbox %s: %w", sb.id, err), n.stepBack(ctx, sb, from))
	}
	sb.running = true
	return sb.list(), nil
}

// stepBack undoes an activation that failed. A sandbox that was running before, as it was when this node was restarted, has
// written: its volumes stay with it. One that was not gives them back to where they came from.
func (n *Node) stepBack(ctx context.Context, sb *sandbox, from Phase) error {
	if from == Running {
		return n.suspend(ctx, sb)
	}
	return n.deactivate(ctx, sb)
}

// suspend closes every drive of a sandbox and leaves the volumes with it.
func (n *Node) suspend(ctx context.Context, sb *sandbox) error {
	errs := failures()
	for _, d := range slices.Backward(sb.drives) {
		if err := d.suspend(ctx, n); err != nil {
			errs = multierror.Append(errs, d.wrap(err))
		}
	}
	sb.drives, sb.running = nil, false
	return errs.ErrorOrNil()
}

func (n *Node) tombstone(ctx context.Context, sb *sandbox, from ...Phase) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	_, err := sb.log.Append(ctx, enter(Deleted, nil, n.now(), from...))
	return err
}

// activate brings all drives of a set to the sandbox, or none: acquired in id order, then exposed. Drives that are open
// already, after a pause that failed or a crash, are used as they are.
func (n *Node) activate(ctx context.Context, sb *sandbox, drives []SetDrive) error {
	open := sb.drives
	sb.drives = nil
	for _, s := range drives {
		d := &drive{SetDrive: s}
		if i := slices.IndexFunc(open, func(o *drive) bool { return o.Volume == s.Volume }); i >= 0 {
			d = open[i]
		}
		sb.drives = append(sb.drives, d)
	}
	for _, step := range []func(*drive) error{
		func(d *drive) error { return d.open(ctx, sb) },
		func(d *drive) error { return d.show(ctx, n, sb) },
	} {
		for _, d := range sb.drives {
			if err := step(d); err != nil {
				return d.wrap(err)
			}
		}
	}
	return sb.melt()
}

// melt lets a sandbox go on that a pause had frozen and that is not paused after all.
func (sb *sandbox) melt() error {
	thaw := sb.thaw
	sb.thaw, sb.cut = nil, nil
	if thaw == nil {
		return nil
	}
	return thaw()
}

// deactivate gives back every drive of a sandbox that did not come to run, even if the caller is gone. What cannot be given
// back stays with the sandbox, for the next call or Recover.
func (n *Node) deactivate(ctx context.Context, sb *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	errs := failures()
	var left []*drive
	for _, d := range slices.Backward(sb.drives) {
		if err := d.giveBack(ctx, n); err != nil {
			errs = multierror.Append(errs, d.wrap(err))
			left = append(left, d)
		}
	}
	sb.drives, sb.running = left, false
	return errs.ErrorOrNil()
}
