package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Attach acquires an exclusive volume, by id or name, for a sandbox and opens it on this node. The volume must be free, or
// paused by the same sandbox on any node; else the error is ErrConflict and names the holder. Repeating the call after a
// lost reply or a crash of this node continues where it stopped; while the sandbox has the volume open here, the repeated
// call returns the same Session.
//
// The epoch rises with the acquisition: whoever held the volume before can publish nothing any more.
func (m *Manager) Attach(ctx context.Context, ref, sandbox string) (*Session, error) {
	s, err := m.attach(ctx, ref, sandbox)
	if err != nil {
		return nil, fmt.Errorf("attach volume %s to sandbox %s: %w", ref, sandbox, err)
	}
	return s, nil
}

func (m *Manager) attach(ctx context.Context, ref, sandbox string) (*Session, error) {
	if err := record.CheckID("sandbox", sandbox); err != nil {
		return nil, err
	}
	gen, err := m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	key := volumeKey{m.tenant, gen.State.ID}
	unlock, err := m.r.locks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// One that was lost is as good as none: if the volume can be acquired again, it is under another grant.
	if s := m.r.session(key); s != nil && s.Sandbox() == sandbox && s.open(ctx) && s.Err() == nil {
		return s, nil
	}
	entry, known, err := m.r.findEntry(journal.Grant, m.tenant, gen.State.ID, sandbox)
	if err != nil {
		return nil, err
	}
	if known && entry.Undoing {
		// What undoes the earlier try may land at any time, so it is settled first and this try is a new one.
		if err := m.undo(ctx, entry); err != nil {
			return nil, err
		}
	}
	if known {
		// The record was read before it was this call's turn, and says now whether the drive is still to be used.
		if gen, err = m.read(ctx, gen.State.ID); err != nil {
			return nil, err
		}
	}
	if _, over := gen.State.FencedGrant(entry.ID); known && over && entry.Epoch == 0 {
		// The earlier try had landed, and the volume was taken over since. Its grant must not take effect a second time.
		if err := m.undo(ctx, entry); err != nil {
			return nil, err
		}
		if gen, err = m.read(ctx, gen.State.ID); err != nil {
			return nil, err
		}
		known = false
	}
	if known && entry.Epoch > 0 && !entry.Undoing {
		usable, err := m.usable(ctx, gen.State.Reservation, entry)
		if err != nil {
			return nil, err
		}
		if usable {
			return m.open(ctx, gen, entry)
		}
	}
	again := known && entry.Epoch == 0 && !entry.Undoing
	if !again {
		entry = m.newEntry(journal.Grant, gen.State.ID, sandbox)
		entry.Dir = filepath.Join("drives", gen.State.ID, entry.ID)
	}
	return m.acquire(ctx, gen, entry, again)
}

// usable decides what a journalled drive is worth: still the sandbox's, then it is opened as it is; given back, then
// everything in it is in the repository and it goes; or somebody else's, then it stays on disk for people and is not used.
func (m *Manager) usable(ctx context.Context, res reservation.State, entry journal.Entry) (bool, error) {
	switch {
	case res.Epoch == entry.Epoch && (res.Phase == reservation.Free || res.Phase == reservation.Paused):
		return false, m.r.forget(entry)
	case res.Check(entry.Epoch, entry.Sandbox) == nil:
		return true, nil
	}
	return false, m.lost(ctx, entry, res.Check(entry.Epoch, entry.Sandbox))
}

func (m *Manager) newEntry(kind journal.Kind, volume, sandbox string) journal.Entry {
	return journal.Entry{Kind: kind, Tenant: m.tenant, Volume: volume, Sandbox: sandbox, ID: newNonce(),
		At: m.r.now()}
}

// acquireTries bounds how often an acquire begins again because the volume was paused or freed since it was read.
const acquireTries = 4

// acquire journals the grant, appends it, journals its epoch and opens the drive, in this order: whatever is appended, this
// node's journal knows of. known: the entry is of an earlier try, whose append may have landed.
func (m *Manager) acquire(ctx context.Context, gen genlog.Generation[record.Volume], entry journal.Entry, known bool) (
	*Session, error) {
	held, err := m.appendGrant(ctx, gen, &entry, known)
	for try, moved := 1, (*record.MovedError)(nil); errors.As(err, &moved) && try < acquireTries; try++ {
		if gen, err = m.read(ctx, gen.State.ID); err == nil {
			held, err = m.appendGrant(ctx, gen, &entry, known)
		}
	}
	if err != nil {
		return nil, err
	}
	entry.Epoch = held.State.Reservation.Epoch
	if err := m.r.journal.Put(entry); err != nil {
		return nil, err
	}
	s, err := m.open(ctx, held, entry)
	if err != nil {
		// Nothing was written yet: the volume goes back to where it came from rather than stay with a sandbox that never was.
		return nil, errors.Join(err, m.undo(ctx, entry))
	}
	return s, nil
}

// appendGrant journals and appends the grant, from the phase that the volume is in now.
func (m *Manager) appendGrant(ctx context.Context, gen genlog.Generation[record.Volume], entry *journal.Entry, known bool) (
	genlog.Generation[record.Volume], error) {
	res := gen.State.Reservation
	if res.Grant.ID != entry.ID { // an earlier try that has not landed on this generation can land on no other phase
		entry.From, entry.Takes = res.Phase, 0
	}
	grant := reservation.Grant{ID: entry.ID, Owner: entry.Sandbox, Node: m.r.node, At: entry.At}
	acquire := record.Acquire(grant, entry.From, newNonces(1))
	// What is refused without asking leaves no trace; an earlier try is undone, so that it cannot land later.
	if _, _, err := acquire.Apply(gen.State); err != nil {
		if known {
			err = errors.Join(err, m.undo(ctx, *entry))
		}
		return gen, err
	}
	if err := m.r.journal.Put(*entry); err != nil {
		return gen, err
	}
	held, err := m.volumeLog(gen.State.ID).AppendTo(ctx, gen, acquire)
	if err != nil && !errors.Is(err, genlog.ErrInDoubt) && classified(err) {
		// Refused by what is there now. No put of ours is in doubt, so nothing can land later.
		err = errors.Join(err, m.r.journal.Remove(entry.ID))
	}
	return held, err
}

// classified reports whether an error is an answer about the record, as opposed to a fault on the way.
func classified(err error) bool {
	for _, class := range []error{ErrConflict, ErrNotFound, ErrNotReady, ErrUnsupported, ErrInvalid, ErrFenced, ErrInUse} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// open opens the drive of a landed grant and registers the session.
func (m *Manager) open(ctx context.Context, gen genlog.Generation[record.Volume], entry journal.Entry) (*Session, error) {
	dir := filepath.Join(m.r.dir, entry.Dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, err
	}
	// The directory's parents hold no data that a power cut may take: an upper that was flushed is found by its path.
	if err := syncDirs(m.r.dir, filepath.Dir(dir)); err != nil {
		return nil, err
	}
	gen, entry = m.shorten(ctx, gen, entry)
	dev, err := m.r.engine.OpenWritable(ctx, dir, gen.State.Stack.Value())
	if err != nil {
		return nil, err
	}
	s := newSession(m, gen, entry, dev)
	if !m.r.register(s) {
		return nil, errors.Join(overlaybd.ErrClosed, dev.Close())
	}
	return s, nil
}

// Free releases a volume, by id or name, that a sandbox holds paused, from any node: everything it wrote is in the
// repository. A volume that is not the sandbox's is left as it is. One that the sandbox has in use is ErrInUse: there the
// last write may not be published yet.
func (m *Manager) Free(ctx context.Context, ref, sandbox string) error {
	gen, err := m.find(ctx, ref)
	if err != nil {
		return err
	}
	res := gen.State.Reservation
	if g, held := res.Holder(); !held || g.Owner != sandbox {
		return nil
	}
	if res.Phase != reservation.Paused {
		return &InUseError{ID: gen.State.ID, Op: "free", Holders: []Holder{{Sandbox: sandbox, Node: res.Grant.Node}}}
	}
	release := record.Publish{Epoch: res.Epoch, Owner: sandbox, Then: record.Release, At: m.r.now()}
	if _, err := m.volumeLog(gen.State.ID).AppendTo(ctx, gen, release.Op()); err != nil {
		return fmt.Errorf("free volume %s of sandbox %s: %w", ref, sandbox, err)
	}
	return nil
}

// keepLost marks an entry whose volume is somebody else's now. The local layers stay on disk until they are kept elsewhere:
// they may hold the only copy of what the sandbox wrote last.
func (m *Manager) keepLost(entry journal.Entry, cause error) error {
	entry.Lost = cause.Error()
	m.r.log.Warn("volume lost, local layers kept", "volume", entry.Volume, "sandbox", entry.Sandbox, "dir", entry.Dir)
	if err := m.r.journal.Put(entry); err != nil {
		return err
	}
	m.r.emit(Event{Kind: EventFenced, Tenant: m.tenant, Volume: entry.Volume, Sandbox: entry.Sandbox, Epoch: entry.Epoch,
		Err: cause})
	m.r.wakeSalvage()
	return nil
}

// syncDirs fsyncs the directories from root down to leaf, so that the path to a drive is as durable as what is in it.
func syncDirs(root, leaf string) error {
	for dir := leaf; ; dir = filepath.Dir(dir) {
		if err := journal.SyncDir(dir); err != nil {
			return err
		}
		if dir == root || dir == filepath.Dir(dir) {
			return nil
		}
	}
}
