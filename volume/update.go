package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Update changes what may change: a nil field stays as it is.
type Update struct {
	// Name renames the volume.
	Name *string
	// Size grows a free exclusive volume, in bytes. Its file system is grown by whoever mounts it.
	Size *int64
	// Labels replaces all labels.
	Labels *map[string]string
}

func (u Update) check() error {
	if u.Name != nil {
		if err := record.CheckName(*u.Name); err != nil {
			return err
		}
	}
	if u.Size != nil {
		if err := checkSize(*u.Size); err != nil {
			return err
		}
	}
	if u.Labels != nil {
		return checkLabels(*u.Labels)
	}
	return nil
}

// Update applies the changes in the order size, name, labels and returns the volume as it then is. Each is durable by
// itself: when one fails, those before it stay. ref is an id or a name.
func (m *Manager) Update(ctx context.Context, ref string, u Update) (Volume, error) {
	if err := u.check(); err != nil {
		return Volume{}, err
	}
	gen, err := m.find(ctx, ref)
	if err != nil {
		return Volume{}, err
	}
	log := m.volumeLog(gen.State.ID)
	if u.Size != nil {
		if add := *u.Size - gen.State.Stack.VirtualSize; add > 0 {
			if err := m.allow(ctx, Demand{Op: "grow", Volume: gen.State.ID, ProvisionedBytes: add}); err != nil {
				return Volume{}, fmt.Errorf("grow volume %s: %w", ref, err)
			}
		}
		if gen, err = log.AppendTo(ctx, gen, record.Grow(gen.State.Reservation.Epoch, *u.Size)); err != nil {
			return Volume{}, fmt.Errorf("grow volume %s: %w", ref, err)
		}
	}
	if u.Name != nil && (*u.Name != gen.State.Name || gen.State.Renaming != nil) {
		if gen, err = m.rename(ctx, gen, *u.Name); err != nil {
			return Volume{}, fmt.Errorf("rename volume %s to %q: %w", ref, *u.Name, err)
		}
	}
	if u.Labels != nil {
		if gen, err = log.AppendTo(ctx, gen, record.Relabel(maps.Clone(*u.Labels))); err != nil {
			return Volume{}, fmt.Errorf("relabel volume %s: %w", ref, err)
		}
	}
	return volumeOf(gen), nil
}

// rename announces the new name in the volume's record, claims it in the name's log, and only then makes it the name. A crash
// between any two leaves the old name in force. If the claim is there, the new one is held until the rename is repeated,
// the volume is renamed otherwise, be it to its old name, or it is deleted.
func (m *Manager) rename(ctx context.Context, gen genlog.Generation[record.Volume], name string) (
	genlog.Generation[record.Volume], error) {
	log, claim := m.volumeLog(gen.State.ID), newNonce()
	if name == gen.State.Name { // an earlier rename is given up
		return log.AppendTo(ctx, gen, record.CancelRename(gen.State.Renaming.Claim))
	}
	gen, err := log.AppendTo(ctx, gen, record.BeginRename(name, claim))
	if err != nil {
		return gen, err
	}
	want := record.Name{Volume: gen.State.ID, Claim: claim, Mode: gen.State.Mode,
		CreatedAt: gen.State.CreatedAt, Origin: gen.State.Origin}
	if err := m.claim(ctx, name, want); err != nil {
		if errors.Is(err, ErrExists) {
			// The announcement is harmless: it counts only together with a claim. Taking it back keeps the record tidy.
			_, cancelErr := log.AppendTo(ctx, gen, record.CancelRename(claim))
			return gen, errors.Join(err, cancelErr)
		}
		return gen, err
	}
	return log.AppendTo(ctx, gen, record.EndRename(name, claim))
}
