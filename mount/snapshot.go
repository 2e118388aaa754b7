package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/volume"
)

// Snapshot keeps what all of a sandbox's drives hold at one moment, and returns it under a new id: a drive set with a
// checkpoint for each drive, which CreateFrom makes sandboxes from and Delete, with that id, removes. A running sandbox is
// frozen while its drives are sealed and goes on before anything is uploaded; a paused one is as it was paused.
func (n *Node) Snapshot(ctx context.Context, id ID) (ID, DriveSet, error) {
	fail := func(err error) (ID, DriveSet, error) {
		return ID{}, DriveSet{}, fmt.Errorf("snapshot sandbox %s: %w", id, err)
	}
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return fail(err)
	}
	defer leave()
	name, err := volume.NewID()
	if err != nil {
		return fail(err)
	}
	kept := ID{Tenant: id.Tenant, Sandbox: name}
	p := plan{n: n, m: sb.m}
	set, err := n.snapshot(ctx, sb, kept, &p)
	if err != nil {
		return fail(errors.Join(err, p.undo(ctx)))
	}
	p.keep()
	return kept, set, nil
}

func (n *Node) snapshot(ctx context.Context, sb *sandbox, kept ID, p *plan) (DriveSet, error) {
	src, err := n.cutAll(ctx, sb)
	if err != nil {
		return DriveSet{}, err
	}
	drives := make([]SetDrive, len(src.drives))
	for i, d := range src.drives {
		drives[i] = SetDrive{Path: d.Path, Volume: d.Volume, Mode: d.Mode, ReadOnly: d.ReadOnly}
		if drives[i].Checkpoint, err = p.checkpoint(ctx, kept.Sandbox, d); err != nil {
			return DriveSet{}, fmt.Errorf("drive %s: %w", d.Path, err)
		}
	}
	log, err := volume.OpenSandboxLog[DriveSet](sb.m, kept.Sandbox)
	if err != nil {
		return DriveSet{}, err
	}
	gen, err := log.AppendOrCreate(ctx, begin(Kept, src.cut, drives, n.now()))
	return gen.State, err
}

// Fork makes, for each given sandbox id, a copy of this sandbox's drives at one moment: exclusive volumes as copy-on-write
// children of their own, ro volumes shared. The children are paused: Resume starts each on any node. The sandbox itself goes
// on. All children are made, or none. Until its first Resume a child owns its volumes by its drive set only: they are free,
// and whoever deletes or acquires one of them by its id takes it away.
func (n *Node) Fork(ctx context.Context, id ID, children []string) ([]DriveSet, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("fork sandbox %s: %w", id, err)
	}
	defer leave()
	p := plan{n: n, m: sb.m}
	sets, err := n.fork(ctx, sb, children, &p)
	if err != nil {
		return nil, fmt.Errorf("fork sandbox %s: %w", id, errors.Join(err, p.undo(ctx)))
	}
	p.keep()
	return sets, nil
}

func (n *Node) fork(ctx context.Context, sb *sandbox, children []string, p *plan) ([]DriveSet, error) {
	if err := n.checkNew(ctx, sb, children); err != nil {
		return nil, err
	}
	src, err := n.cutAll(ctx, sb)
	if err != nil {
		return nil, err
	}
	// Volumes first, then the sets: a set never names what is not there.
	sets := make([][]SetDrive, len(children))
	for i, child := range children {
		for _, d := range src.drives {
			c, err := p.child(ctx, child, d)
			if err != nil {
				return nil, fmt.Errorf("child %s: drive %s: %w", child, d.Path, err)
			}
			sets[i] = append(sets[i], c)
		}
		sortDrives(sets[i])
	}
	out := make([]DriveSet, len(children))
	for i, child := range children {
		log, err := volume.OpenSandboxLog[DriveSet](sb.m, child)
		if err != nil {
			return nil, err
		}
		gen, err := log.AppendOrCreate(ctx, begin(Paused, "", sets[i], n.now()))
		if err != nil {
			return nil, fmt.Errorf("child %s: %w", child, err)
		}
		p.sets = append(p.sets, log)
		out[i] = gen.State
	}
	return out, nil
}

// checkNew refuses children that exist or are named twice, before anything is made.
func (n *Node) checkNew(ctx context.Context, sb *sandbox, children []string) error {
	errs := failures()
	for i, child := range children {
		if child == sb.id.Sandbox || slices.Contains(children[:i], child) {
			errs = multierror.Append(errs, fmt.Errorf("%w: child %s: is the sandbox itself, or named twice", ErrInvalid, child))
			continue
		}
		log, err := volume.OpenSandboxLog[DriveSet](sb.m, child)
		if err == nil {
			_, err = (&sandbox{id: ID{sb.id.Tenant, child}, log: log}).read(ctx)
		}
		switch {
		case err == nil:
			errs = multierror.Append(errs, fmt.Errorf("%w: sandbox %s", ErrExists, child))
		case !errors.Is(err, ErrNotFound):
			errs = multierror.Append(errs, err)
		}
	}
	return errs.ErrorOrNil()
}

// source is a sandbox's drives as they were under one cut.
type source struct {
	cut    string
	drives []*drive
}

// cutAll makes one published cut of all drives of a sandbox. A paused sandbox has one already.
func (n *Node) cutAll(ctx context.Context, sb *sandbox) (source, error) {
	set, err := sb.read(ctx)
	if err != nil {
		return source{}, err
	}
	if set.Phase == Expiring {
		return source{}, fmt.Errorf("%w: the sandbox is %s", ErrConflict, set.Phase)
	}
	if !sb.running {
		if set.Phase != Paused || len(sb.drives) > 0 {
			return source{}, fmt.Errorf("%w: the sandbox is %s and does not run on node %s", ErrNotReady, set.Phase, n.repo.Node())
		}
		src := source{}
		for _, d := range set.Drives {
			src.drives = append(src.drives, &drive{SetDrive: d})
		}
		return src, nil
	}
	cut, err := n.cutRunning(ctx, sb)
	if err != nil {
		return source{}, err
	}
	for _, d := range sb.drives {
		if d.session == nil {
			continue
		}
		if err := d.session.Publish(ctx, d.shot); err != nil {
			return source{}, d.wrap(err)
		}
	}
	return source{cut: cut.ID, drives: sb.drives}, nil
}

// cutRunning seals all drives of a running sandbox under one freeze. The sandbox goes on before anything is uploaded.
func (n *Node) cutRunning(ctx context.Context, sb *sandbox) (cut volume.Cut, err error) {
	cut = volume.NewCut(volume.Crash, false)
	thaw, err := n.rest(ctx, sb.id, sb.drives)
	if err != nil {
		return cut, err
	}
	if thaw != nil {
		cut.Consistency = volume.Clean
		defer func() { err = errors.Join(err, thaw()) }()
	}
	for _, d := range sb.drives {
		if d.session == nil {
			continue
		}
		if d.shot, err = d.session.Seal(ctx, cut); err != nil {
			return cut, d.wrap(err)
		}
	}
	return cut, nil
}

// rest freezes the file systems on drives of a running sandbox, all of them before it returns. thaw is nil if there is
// nothing to do it with.
func (n *Node) rest(ctx context.Context, id ID, drives []*drive) (thaw func() error, err error) {
	if n.root == nil {
		return n.freeze(ctx, id, drives)
	}
	var thaws []func() error
	thaw = func() error {
		errs := failures()
		for _, t := range thaws {
			errs = multierror.Append(errs, t())
		}
		return errs.ErrorOrNil()
	}
	for _, d := range drives {
		if d.kernel == nil || d.ReadOnly {
			continue
		}
		t, err := d.kernel.Freeze(ctx)
		if err != nil {
			return nil, errors.Join(d.wrap(err), thaw())
		}
		thaws = append(thaws, t)
	}
	return thaw, nil
}
