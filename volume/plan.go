package volume

import (
	"context"
	"fmt"

	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Planned is a volume or checkpoint that is to be made for a sandbox's drive set, by its id. The node's journal has it before
// it exists, so that one which no set ever names is found again and removed.
type Planned struct {
	// Volume or Checkpoint is set.
	Volume     string
	Checkpoint string
	// Sandbox is whose drive set is to name it.
	Sandbox string
}

func (p Planned) id() string {
	if p.Checkpoint != "" {
		return p.Checkpoint
	}
	return p.Volume
}

// Plan journals what is about to be made, durably.
func (m *Manager) Plan(p Planned) error {
	if (p.Volume == "") == (p.Checkpoint == "") {
		return fmt.Errorf("%w: planned: exactly one of volume and checkpoint must be set", ErrInvalid)
	}
	for field, v := range map[string]string{"planned id": p.id(), "sandbox": p.Sandbox} {
		if err := record.CheckID(field, v); err != nil {
			return err
		}
	}
	e := journal.Entry{Kind: journal.Child, Tenant: m.tenant, Volume: volumeOfCheckpoint(p.id()), Sandbox: p.Sandbox,
		ID: p.id(), At: m.r.now()}
	if p.Checkpoint != "" {
		e.Kind = journal.Checkpoint
	}
	return m.r.journal.Put(e)
}

// Unplan forgets what was planned: a set names it, or it was discarded.
func (m *Manager) Unplan(p Planned) error { return m.r.journal.Remove(p.id()) }

// Discard deletes what was planned and not used: a checkpoint, or a child volume that nobody has ever held. It is ErrNotFound
// if it never came to be, and ErrInUse if somebody has held it since.
func (m *Manager) Discard(ctx context.Context, p Planned) error {
	if p.Checkpoint != "" {
		return m.DeleteCheckpoint(ctx, p.Checkpoint)
	}
	gen, err := m.read(ctx, p.Volume)
	if err != nil {
		return err
	}
	if gen.State.Mode == ReadOnly {
		return m.Delete(ctx, p.Volume)
	}
	if _, err := m.volumeLog(p.Volume).AppendTo(ctx, gen, record.DeleteUnused(m.r.now())); err != nil {
		return fmt.Errorf("discard volume %s: %w", p.Volume, err)
	}
	return nil
}
