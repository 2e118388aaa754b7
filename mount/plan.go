package mount

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
)

// plan is what a fork or snapshot makes on its way. Each volume and checkpoint is in the node's journal before it exists, so
// that after a crash Recover removes those that no drive set names.
type plan struct {
	n       *Node
	m       *volume.Manager
	planned []volume.Planned
	sets    []*genlog.Log[DriveSet]
}

func (p *plan) note(v volume.Planned) error {
	if err := p.m.Plan(v); err != nil {
		return err
	}
	p.planned = append(p.planned, v)
	return nil
}

// checkpoint makes the checkpoint of one drive for a snapshot's set.
func (p *plan) checkpoint(ctx context.Context, set string, d *drive) (string, error) {
	v := volume.Planned{Checkpoint: volume.NewCheckpointID(d.Volume), Sandbox: set}
	if err := p.note(v); err != nil {
		return "", err
	}
	o := volume.SnapshotOptions{ID: v.Checkpoint}
	var c volume.Checkpoint
	var err error
	if d.session != nil {
		c, err = d.session.Checkpoint(ctx, d.shot, o)
	} else {
		c, err = p.m.Snapshot(ctx, d.Volume, o)
	}
	return c.ID, err
}

// child makes the volume of one drive for a forked sandbox's set. An ro volume is shared.
func (p *plan) child(ctx context.Context, sandbox string, d *drive) (SetDrive, error) {
	out := SetDrive{Path: d.Path, Volume: d.Volume, Mode: d.Mode, ReadOnly: d.ReadOnly}
	if d.Mode == volume.ReadOnly {
		return out, nil
	}
	id, err := volume.NewID()
	if err != nil {
		return out, err
	}
	if err := p.note(volume.Planned{Volume: id, Sandbox: sandbox}); err != nil {
		return out, err
	}
	out.Volume = id
	if d.session != nil {
		_, err = d.session.Fork(ctx, d.shot, id, volume.ForkOptions{})
	} else {
		_, err = p.m.ForkAs(ctx, d.Volume, id, volume.ForkOptions{})
	}
	return out, err
}

// keep forgets the plan once the sets that name everything are durable.
func (p *plan) keep() {
	for _, v := range p.planned {
		if err := p.m.Unplan(v); err != nil {
			p.n.log.Warn("journal", "planned", v, "error", err)
		}
	}
}

// undo removes what was made, even if the caller is gone. What is left, Recover removes.
func (p *plan) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	errs := failures()
	for _, log := range p.sets {
		_, err := log.Append(ctx, enter(Deleted, nil, p.n.now(), Paused))
		errs = multierror.Append(errs, err)
	}
	if errs.ErrorOrNil() != nil {
		return errs // sets that name the volumes may be there still
	}
	for _, v := range p.planned {
		if err := discard(ctx, p.m, v); err != nil {
			errs = multierror.Append(errs, err)
		}
	}
	return errs.ErrorOrNil()
}

// discard removes a planned volume or checkpoint, if it came to be, and then its journal entry.
func discard(ctx context.Context, m *volume.Manager, v volume.Planned) error {
	err := m.Discard(ctx, v)
	if err == nil || errors.Is(err, ErrNotFound) {
		return m.Unplan(v)
	}
	return fmt.Errorf("remove what a fork or snapshot left behind: %w", err)
}
