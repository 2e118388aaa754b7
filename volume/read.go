package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Get returns a volume by id or name. The id wins: names that look like ids cannot be given.
func (m *Manager) Get(ctx context.Context, ref string) (Volume, error) {
	gen, err := m.find(ctx, ref)
	if err != nil {
		return Volume{}, err
	}
	v := volumeOf(gen)
	v.SuspectSince = m.r.suspectSince(ctx, v.Reservation)
	return v, nil
}

// find reads the newest generation of the volume that ref, an id or a name, stands for.
func (m *Manager) find(ctx context.Context, ref string) (genlog.Generation[record.Volume], error) {
	if record.IsVolumeID(ref) {
		return m.read(ctx, ref)
	}
	none := genlog.Generation[record.Volume]{}
	if err := record.CheckName(ref); err != nil {
		return none, err
	}
	name, err := m.r.nameLog(m.tenant, ref).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) {
		return none, fmt.Errorf("%w: no volume is named %q", ErrNotFound, ref)
	}
	if err != nil {
		return none, fmt.Errorf("look up name %q: %w", ref, err)
	}
	gen, err := m.read(ctx, name.State.Volume)
	// The newest claim may be of a volume that was renamed since, or whose rename is not complete.
	if errors.Is(err, ErrNotFound) || (err == nil && gen.State.Name != ref) {
		return none, fmt.Errorf("%w: no volume is named %q", ErrNotFound, ref)
	}
	return gen, err
}

// read reads the newest generation of a volume that is not deleted.
func (m *Manager) read(ctx context.Context, id string) (genlog.Generation[record.Volume], error) {
	gen, err := m.volumeLog(id).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) || (err == nil && gen.State.Status == record.StatusDeleted) {
		return gen, fmt.Errorf("%w: no volume %s", ErrNotFound, id)
	}
	if err != nil {
		return gen, fmt.Errorf("read volume %s: %w", id, err)
	}
	return gen, nil
}

// Checkpoint returns a checkpoint by id.
func (m *Manager) Checkpoint(ctx context.Context, id string) (Checkpoint, error) {
	gen, err := m.readCheckpoint(ctx, id)
	if err != nil {
		return Checkpoint{}, err
	}
	return checkpointOf(gen), nil
}

func (m *Manager) readCheckpoint(ctx context.Context, id string) (genlog.Generation[record.Checkpoint], error) {
	if err := record.CheckID("checkpoint", id); err != nil {
		return genlog.Generation[record.Checkpoint]{}, err
	}
	gen, err := m.r.checkpointLog(m.tenant, id).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) || (err == nil && gen.State.Status == record.StatusDeleted) {
		return gen, fmt.Errorf("%w: no checkpoint %s", ErrNotFound, id)
	}
	if err != nil {
		return gen, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	return gen, nil
}
