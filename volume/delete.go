package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// deleteTries bounds how often the deletion of an ro volume begins again because readers came and went meanwhile.
const deleteTries = 16

// Delete deletes a volume, by id or name. A volume that is held or mounted is ErrInUse, and the InUseError names who holds
// it. When it returns nil the deletion is durable. Copies and checkpoints of the volume are not touched: they have their own
// references. The data goes when the collector has run twice.
func (m *Manager) Delete(ctx context.Context, ref string) error {
	gen, err := m.find(ctx, ref)
	if err != nil {
		return err
	}
	s := gen.State
	if s.Mode == ReadOnly && (s.Status == record.StatusReady || s.Status == record.StatusDeleting) {
		_, err = m.deleteReadOnly(ctx, gen)
	} else {
		_, err = m.volumeLog(s.ID).AppendTo(ctx, gen, record.Delete(m.r.now()))
	}
	if err != nil {
		return fmt.Errorf("delete volume %s: %w", ref, err)
	}
	return nil
}

// deleteReadOnly deletes an ro volume unless a pin is there. A reader first puts its pin and then looks at the record; this
// first writes `deleting` and then looks at the pins. So one of the two sees the other. The last word is bound to the very
// `deleting` after which the pins were listed: if a reader has taken it back meanwhile, no earlier listing counts.
func (m *Manager) deleteReadOnly(ctx context.Context, gen genlog.Generation[record.Volume]) (
	genlog.Generation[record.Volume], error) {
	id := gen.State.ID
	log := m.volumeLog(id)
	if gen.State.Status == record.StatusReady { // a reader that is there already needs no announcement
		if err := m.checkUnpinned(ctx, id); err != nil {
			return gen, err
		}
	}
	for range deleteTries {
		deleting, err := log.AppendTo(ctx, gen, record.BeginDelete())
		if err != nil {
			return gen, err
		}
		if deleting.State.Status == record.StatusDeleted {
			return deleting, nil
		}
		inUse := m.checkUnpinned(ctx, id)
		last := record.FinishDelete(m.r.now())
		switch {
		case errors.Is(inUse, ErrInUse):
			last = record.Undelete()
		case inUse != nil:
			return deleting, inUse // not known: `deleting` stays, and whoever comes next carries on from the listing
		}
		done, err := log.AppendNext(ctx, deleting, last)
		if err == nil {
			return done, inUse
		}
		if !errors.Is(err, genlog.ErrSuperseded) {
			return deleting, err
		}
		if gen, err = m.read(ctx, id); err != nil {
			return gen, err
		}
	}
	return gen, fmt.Errorf("%w: volume %s: readers come and go faster than it can be deleted", ErrUnavailable, id)
}

// DeleteCheckpoint deletes a checkpoint. Volumes restored from it are not touched.
func (m *Manager) DeleteCheckpoint(ctx context.Context, id string) error {
	gen, err := m.readCheckpoint(ctx, id)
	if err != nil {
		return err
	}
	if _, err := m.r.checkpointLog(m.tenant, id).AppendTo(ctx, gen, record.DeleteCheckpoint(m.r.now())); err != nil {
		return fmt.Errorf("delete checkpoint %s: %w", id, err)
	}
	return nil
}
