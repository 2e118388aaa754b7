package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Pending is what this node's journal holds about one volume of one sandbox: something to finish, to go on with or to undo.
type Pending struct {
	Tenant  string
	Sandbox string
	Volume  string
	// Mode says whether it is about a reservation or about a pin.
	Mode Mode
	// Acquired: the reservation is known to be this node's. Otherwise it may or may not be: Undo settles it.
	Acquired bool
	// Sealed: a final cut is on disk and waits to be published.
	Sealed bool
	// Lost says why the volume is somebody else's now. Its local layers are in Dir, relative to the node's directory, and
	// stay there until Salvage has kept them: they may hold the only copy of what was written last.
	Lost string
	Dir  string
	// Salvage is the volume that keeps, or is going to keep, what was written and not published; empty if there is none yet.
	Salvage string
	// Pin is the pin's nonce, of an ro volume.
	Pin string
	// Planned is set when it is about something that was being made for the sandbox.
	Planned *Planned
}

// Journal returns what this node may still have to do, oldest first, and an error for each entry that cannot be read. Such
// an entry is left as it is.
func (r *Repository) Journal() ([]Pending, []error) {
	entries, bad := r.journal.All()
	var out []Pending
	for _, e := range entries {
		p := Pending{Tenant: e.Tenant, Sandbox: e.Sandbox, Volume: e.Volume, Mode: Exclusive, Acquired: e.Epoch > 0 && !e.Undoing,
			Sealed: e.Sealed != nil && e.Sealed.Final, Lost: e.Lost, Dir: e.Dir}
		if e.Salvage != nil {
			p.Salvage = e.Salvage.Volume
		}
		switch e.Kind {
		case journal.Pin:
			p.Mode, p.Pin = ReadOnly, e.ID
		case journal.Child:
			p.Planned = &Planned{Volume: e.ID, Sandbox: e.Sandbox}
		case journal.Checkpoint:
			p.Planned = &Planned{Checkpoint: e.ID, Sandbox: e.Sandbox}
		}
		out = append(out, p)
	}
	return out, bad
}

// Reopen opens a volume that this node's journal holds for a sandbox, by volume id, after a restart: the epoch is the same,
// nothing is appended, and every write that was acknowledged is there. It returns nil if there is no such volume, if it was
// given back before, or if it is somebody else's now: then Journal reports it as lost.
func (m *Manager) Reopen(ctx context.Context, volume, sandbox string) (*Session, error) {
	key := volumeKey{m.tenant, volume}
	unlock, err := m.r.locks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s := m.r.session(key); s != nil && s.Sandbox() == sandbox && s.open(ctx) && s.Err() == nil {
		return s, nil
	}
	s, err := m.reopen(ctx, volume, sandbox)
	if err != nil {
		return nil, fmt.Errorf("reopen volume %s of sandbox %s: %w", volume, sandbox, err)
	}
	return s, nil
}

func (m *Manager) reopen(ctx context.Context, volume, sandbox string) (*Session, error) {
	entry, known, err := m.r.findEntry(journal.Grant, m.tenant, volume, sandbox)
	if err != nil || !known || entry.Epoch == 0 || entry.Undoing {
		return nil, err
	}
	gen, err := m.volumeLog(volume).Newest(ctx)
	if err != nil {
		// No record at all is no answer: a volume that this node has held has one for ever, if only a tombstone.
		return nil, err
	}
	if gen.State.Status == record.StatusDeleted {
		return nil, m.lost(ctx, entry, fmt.Errorf("%w: volume %s was deleted", ErrNotFound, volume))
	}
	usable, err := m.usable(ctx, gen.State.Reservation, entry)
	if err != nil || !usable {
		return nil, err
	}
	return m.open(ctx, gen, entry)
}

// Undo gives up what was never acknowledged: an acquisition whose outcome was not learned, or a pin. An acquisition that
// landed goes back to the phase it came from; one that did not is kept from landing later. It refuses a volume that was
// acquired and acknowledged: that is paused or released, or given back with what was written.
func (m *Manager) Undo(ctx context.Context, volume, sandbox string) error {
	pin, ok, err := m.r.findEntry(journal.Pin, m.tenant, volume, sandbox)
	if err != nil {
		return err
	}
	if ok {
		return m.dropPin(ctx, pin)
	}
	e, ok, err := m.r.findEntry(journal.Grant, m.tenant, volume, sandbox)
	if err != nil || !ok {
		return err
	}
	if e.Epoch > 0 && !e.Undoing {
		return fmt.Errorf("%w: volume %s is acquired by sandbox %s under epoch %d: pause or release it",
			ErrInUse, volume, sandbox, e.Epoch)
	}
	return m.undo(ctx, e)
}

// undoTries bounds how often an undo looks again because its own late put landed in between. It can land once.
const undoTries = 4

// undo settles an acquisition under which nothing was written, even if the caller is gone.
func (m *Manager) undo(ctx context.Context, e journal.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if !e.Undoing {
		e.Undoing = true
		if err := m.r.journal.Put(e); err != nil {
			return err
		}
	}
	for range undoTries {
		settled, err := m.undoOnce(ctx, e)
		if err != nil {
			return fmt.Errorf("undo the acquisition of volume %s by sandbox %s: %w", e.Volume, e.Sandbox, err)
		}
		if settled {
			return m.r.forget(e)
		}
	}
	return fmt.Errorf("%w: volume %s: acquisition %s comes and goes", ErrUnavailable, e.Volume, e.ID)
}

func (m *Manager) undoOnce(ctx context.Context, e journal.Entry) (settled bool, err error) {
	log := m.volumeLog(e.Volume)
	gen, err := log.Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if epoch, fenced := gen.State.FencedGrant(e.ID); fenced {
		// It landed and was taken over. Nothing was written under it, so nobody else will ever settle what was kept for it.
		_, err = log.AppendTo(ctx, gen, record.Unfence("undone", epoch))
		return false, err // and look once more
	}
	if gen.State.Status == record.StatusDeleted {
		return true, nil // a tombstone is final: nothing lands after it
	}
	res := gen.State.Reservation
	if res.Grant.ID == e.ID && res.Phase == reservation.Free {
		return true, nil // it landed, and an earlier undo has landed after it
	}
	if res.Grant.ID == e.ID {
		back := record.Publish{Epoch: res.Epoch, Owner: e.Sandbox, Then: record.Release, At: m.r.now()}
		if e.From == reservation.Paused {
			back.Then = record.Pause
		}
		_, err = log.AppendTo(ctx, gen, back.Op())
		return err == nil, err
	}
	if e.Epoch > 0 {
		return true, nil // it landed, and the record has moved on since: nothing is under way
	}
	// Not there. It may still be under way to the slot after the newest generation, so that slot is taken.
	_, err = log.AppendTo(ctx, gen, record.Touch(e.ID))
	if errors.Is(err, ErrConflict) {
		return false, nil // it was, and has landed
	}
	return err == nil, err
}

// Pending returns the final cut that was sealed before this node died, to be published by Pause or Release; nil if there is
// none.
func (s *Session) Pending(ctx context.Context) (*Sealed, error) {
	var c *Sealed
	err := s.do(ctx, "finish the cut of", func() (err error) {
		cut := s.entry.Sealed
		if cut == nil || !cut.Final {
			return nil
		}
		// The device was reopened on the very layers of the cut; sealing it again for good finds nothing to add.
		c, err = s.seal(ctx, Cut{ID: cut.ID, Consistency: Consistency(cut.Consistency), Final: true})
		return err
	})
	return c, err
}
