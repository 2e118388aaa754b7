package volume

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// checkpointSep stands between the volume's id and random text in a checkpoint's id, so that one volume's checkpoints are
// neighbours in a listing.
const checkpointSep = "_"

func volumeOfCheckpoint(id string) string {
	v, _, _ := strings.Cut(id, checkpointSep)
	return v
}

// NewCheckpointID returns a fresh id for a checkpoint of a volume, for a caller that must know it before it exists.
func NewCheckpointID(volume string) string { return volume + checkpointSep + newNonce() }

// SnapshotOptions describe a checkpoint.
type SnapshotOptions struct {
	// ID is from NewCheckpointID; a call repeated with it makes one checkpoint. Empty: a fresh one.
	ID string
	// Name is text for people: 1 to 128 characters of A-Z a-z 0-9 _ -, not unique, may be empty.
	Name   string
	Labels map[string]string
	// Flush has the volume's holder publish its newest writes first.
	Flush bool
}

func (o SnapshotOptions) check() error {
	if o.ID != "" {
		if err := record.CheckID("checkpoint", o.ID); err != nil {
			return err
		}
	}
	if o.Name != "" {
		if err := record.CheckID("name", o.Name); err != nil {
			return err
		}
	}
	return checkLabels(o.Labels)
}

// Snapshot keeps the last published generation of a volume, by id or name, as a checkpoint. No data moves. The checkpoint
// says which generation it holds and outlives the volume.
func (m *Manager) Snapshot(ctx context.Context, ref string, o SnapshotOptions) (Checkpoint, error) {
	if err := o.check(); err != nil {
		return Checkpoint{}, err
	}
	from, err := m.sourceOf(ctx, CreateOptions{Source: FromVolume(ref), Flush: o.Flush})
	if err != nil {
		return Checkpoint{}, fmt.Errorf("snapshot volume %s: %w", ref, err)
	}
	gen, err := m.keep(ctx, o, from)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("snapshot volume %s: %w", ref, err)
	}
	return checkpointOf(gen), nil
}

// keep makes a checkpoint of what was read.
func (m *Manager) keep(ctx context.Context, o SnapshotOptions, from copied) (genlog.Generation[record.Checkpoint], error) {
	id := o.ID
	if id == "" {
		id = NewCheckpointID(from.origin.Volume)
	}
	if volumeOfCheckpoint(id) != from.origin.Volume {
		return genlog.Generation[record.Checkpoint]{}, fmt.Errorf("%w: checkpoint id %q: must be of volume %s",
			ErrInvalid, id, from.origin.Volume)
	}
	log := m.r.checkpointLog(m.tenant, id)
	state := record.Checkpoint{Head: record.Head{
		ID: id, Tenant: m.tenant, Name: o.Name, Status: record.StatusUploading, Labels: maps.Clone(o.Labels),
		CreatedAt: m.r.now(), Origin: from.origin, Stack: from.stack.Clone(), Content: from.content,
	}}
	child, err := createOrRead(ctx, log, state,
		func() (genlog.Generation[record.Checkpoint], error) { return m.readCheckpoint(ctx, id) })
	if err != nil || child.State.Status == record.StatusReady {
		return child, err
	}
	return finish(ctx, m, log, child, unnamed)
}
