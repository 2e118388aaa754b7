package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// TakeOverOptions say from whom a volume is taken, for whom, and why.
type TakeOverOptions struct {
	// Epoch is the one that the caller has seen and takes the volume from: of two who have seen the same, one wins.
	Epoch uint64
	// Sandbox is the new owner. Empty: the present one, which is to run on this node from now on.
	Sandbox string
	// Reason is 1 to 1024 bytes of UTF-8, and is kept in the record.
	Reason string
}

func (o TakeOverOptions) check() error {
	if o.Epoch == 0 {
		return fmt.Errorf("%w: epoch 0: must be the one that the volume is taken from", ErrInvalid)
	}
	if o.Sandbox != "" {
		if err := record.CheckID("sandbox", o.Sandbox); err != nil {
			return err
		}
	}
	return checkReason(o.Reason)
}

func checkReason(reason string) error {
	if reason == "" || len(reason) > reservation.MaxReason || !utf8.ValidString(reason) {
		return fmt.Errorf("%w: reason %q: must be 1 to %d bytes of UTF-8", ErrInvalid, record.Shorten(reason), reservation.MaxReason)
	}
	return nil
}

// TakeOver gives a held volume, by id or name, to a sandbox on this node without the holder's help, and opens it. It is for an
// operator or a scheduler that has decided that the holder's node is lost: nothing in this library ever calls it by itself.
//
// Being wrong about the node costs no data. The epoch rises, so that the former holder can publish nothing any more; its
// drive fails, and what it has written and not published is kept as a volume of its own as soon as its node can reach the
// repository. The new owner starts from the last published generation. A volume that is free, or that has moved on from the
// epoch, is ErrConflict. The call may be repeated after a lost reply.
func (m *Manager) TakeOver(ctx context.Context, ref string, o TakeOverOptions) (*Session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s, err := m.takeOver(ctx, ref, o)
	if err != nil {
		return nil, fmt.Errorf("take over volume %s from epoch %d: %w", ref, o.Epoch, err)
	}
	return s, nil
}

func (m *Manager) takeOver(ctx context.Context, ref string, o TakeOverOptions) (*Session, error) {
	gen, err := m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if o.Sandbox == "" {
		if o.Sandbox = gen.State.Reservation.Grant.Owner; o.Sandbox == "" {
			return nil, fmt.Errorf("%w: sandbox: volume %s was never held, so there is no present owner", ErrConflict, gen.State.ID)
		}
	}
	key := volumeKey{m.tenant, gen.State.ID}
	unlock, err := m.r.locks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s := m.r.session(key); s != nil && s.grant.Takes == o.Epoch && s.Sandbox() == o.Sandbox && s.open(ctx) && s.Err() == nil {
		return s, nil
	}
	entry, known, err := m.r.findEntry(journal.Grant, m.tenant, gen.State.ID, o.Sandbox)
	if err != nil {
		return nil, err
	}
	again := known && entry.Takes == o.Epoch && !entry.Undoing
	if known && !again && (entry.Undoing || entry.Epoch == 0) {
		// What is in doubt of another try is settled first.
		if err := m.undo(ctx, entry); err != nil {
			return nil, err
		}
	}
	if known {
		// The record was read before it was this call's turn.
		if gen, err = m.read(ctx, gen.State.ID); err != nil {
			return nil, err
		}
	}
	if again && entry.Epoch > 0 {
		usable, err := m.usable(ctx, gen.State.Reservation, entry)
		if err != nil {
			return nil, err
		}
		if usable {
			return m.open(ctx, gen, entry)
		}
		again = false
	}
	if !again {
		entry = m.newEntry(journal.Grant, gen.State.ID, o.Sandbox)
		entry.Dir = filepath.Join("drives", gen.State.ID, entry.ID)
		entry.Takes = o.Epoch
		// A takeover that is undone cannot give the volume back to whom it was taken from. It stays with the owner that the caller
		// named, paused, which is true of it: everything that the record's stack needs is published.
		entry.From = reservation.Paused
	}
	return m.seize(ctx, gen, entry, o, again)
}

// seize journals the grant, appends it, ends what this node has of the volume under other grants, and opens the drive.
func (m *Manager) seize(ctx context.Context, gen genlog.Generation[record.Volume], entry journal.Entry, o TakeOverOptions,
	again bool) (*Session, error) {
	held, err := m.appendTakeOver(ctx, gen, entry, o, again)
	if err != nil {
		return nil, err
	}
	res := held.State.Reservation
	cause := &FencedError{Owner: gen.State.Reservation.Grant.Owner, Epoch: o.Epoch, Holder: entry.Sandbox, Node: m.r.node,
		Phase: res.Phase, CurrentEpoch: res.Epoch, Since: res.Since}
	// Before the grant's epoch is journalled: of two entries of one sandbox, the older one would be taken for its drive.
	if err := m.loseOthers(ctx, entry, cause); err != nil {
		return nil, err
	}
	entry.Epoch = res.Epoch
	if err := m.r.journal.Put(entry); err != nil {
		return nil, err
	}
	m.r.emit(Event{Kind: EventTakenOver, Tenant: m.tenant, Volume: held.State.ID, Sandbox: entry.Sandbox, Epoch: res.Epoch,
		Reason: o.Reason})
	if kept, ok := held.State.FencedAt(o.Epoch); ok && kept.Node != m.r.node {
		m.notify(ctx, kept, held.State.ID, o.Reason)
	}
	s, err := m.open(ctx, held, entry)
	if err != nil {
		return nil, errors.Join(err, m.undo(ctx, entry))
	}
	return s, nil
}

func (m *Manager) appendTakeOver(ctx context.Context, gen genlog.Generation[record.Volume], entry journal.Entry,
	o TakeOverOptions, again bool) (genlog.Generation[record.Volume], error) {
	grant := reservation.Grant{ID: entry.ID, Owner: entry.Sandbox, Node: m.r.node, At: entry.At}
	op := record.TakeOver{Epoch: o.Epoch, Grant: grant, Reason: o.Reason, Nonces: newNonces(1)}.Op()
	// What is refused without asking leaves no trace; an earlier try is undone, so that it cannot land later.
	if _, _, err := op.Apply(gen.State); err != nil {
		if again {
			err = errors.Join(err, m.undo(ctx, entry))
		}
		return gen, err
	}
	if err := m.r.journal.Put(entry); err != nil {
		return gen, err
	}
	held, err := m.volumeLog(gen.State.ID).AppendTo(ctx, gen, op)
	if err != nil && !errors.Is(err, genlog.ErrInDoubt) && classified(err) {
		err = errors.Join(err, m.r.journal.Remove(entry.ID)) // refused: nothing can land later
	}
	return held, err
}
