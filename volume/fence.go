package volume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// A fenced holder is one whose volume was taken over. It learns of it from its next append, which is refused, or from a
// notice that whoever took the volume over leaves for its node. The notice is advice: only the record says who holds what.

// fencedPrefix holds the notices, below the name of the node that they are for.
const fencedPrefix = "v1/fenced/"

// notice is what a notice says.
type notice struct {
	Format int    `json:"format"`
	Tenant string `json:"tenant"`
	Volume string `json:"volume"`
	Epoch  uint64 `json:"epoch"` // the one that has ended
	// By and Reason are for people: the node that took the volume over, and why.
	By     string         `json:"by"`
	Reason string         `json:"reason"`
	At     time.Time      `json:"at"`
	Extra  jsontext.Value `json:",embed"`
}

func noticeKey(node, volume string, epoch uint64) string {
	return fmt.Sprintf("%s%s/%s-%d", fencedPrefix, node, volume, epoch)
}

// parseNotice returns the volume and epoch of a notice's key below the node's prefix.
func parseNotice(name string) (volume string, epoch uint64, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", 0, false
	}
	epoch, err := strconv.ParseUint(name[i+1:], 10, 64)
	return name[:i], epoch, err == nil && record.IsVolumeID(name[:i])
}

// notify leaves a notice for the node of a former holder. A failure costs that node the time until its next append.
func (m *Manager) notify(ctx context.Context, f record.Fenced, volume, reason string) {
	body, err := json.Marshal(notice{Format: 1, Tenant: m.tenant, Volume: volume, Epoch: f.Epoch, By: m.r.node, Reason: reason,
		At: m.r.now()}, json.Deterministic(true))
	if err == nil {
		err = m.r.store.PutIfAbsent(ctx, noticeKey(f.Node, volume, f.Epoch), body)
	}
	if err != nil && !errors.Is(err, store.ErrExists) {
		m.r.log.Warn("notice of a takeover not left", "volume", volume, "node", f.Node, "error", err)
	}
}

// dropNotice removes a notice that has served. One that stays is looked at again with the next heartbeat.
func (r *Repository) dropNotice(ctx context.Context, volume string, epoch uint64) {
	if err := r.store.Delete(ctx, noticeKey(r.node, volume, epoch)); err != nil {
		r.log.Warn("notice of a takeover not removed", "volume", volume, "error", err)
	}
}

// readNotices looks at what was left for this node.
func (r *Repository) readNotices(ctx context.Context) error {
	prefix := fencedPrefix + r.node + "/"
	var errs error
	for e, err := range r.store.List(ctx, prefix, "", 0) {
		if err != nil {
			return fmt.Errorf("%w: list notices: %w", ErrUnavailable, err)
		}
		volume, epoch, ok := parseNotice(strings.TrimPrefix(e.Key, prefix))
		if !ok {
			continue // of a form that this version does not know
		}
		if err := r.heed(ctx, volume, epoch); err != nil {
			errs = errors.Join(errs, fmt.Errorf("notice about volume %s: %w", volume, err))
		}
	}
	return errs
}

// heed acts on one notice: if the record agrees, the drive is lost. A notice about nothing that this node has goes.
func (r *Repository) heed(ctx context.Context, volume string, epoch uint64) error {
	entries, bad := r.journal.All()
	known := false
	for _, e := range entries {
		if e.Kind != journal.Grant || e.Volume != volume || e.Epoch != epoch {
			continue
		}
		known = true
		if e.Lost != "" {
			continue // what it holds is being kept, and the notice goes with that
		}
		m := &Manager{r: r, tenant: e.Tenant}
		if err := m.checkHeld(ctx, e); err != nil {
			return err
		}
	}
	// An entry that cannot be read may be the one.
	if !known && len(bad) == 0 {
		r.dropNotice(ctx, volume, epoch)
	}
	return nil
}

// checkHeld reads the record of a drive and marks the drive lost if it is somebody else's.
func (m *Manager) checkHeld(ctx context.Context, e journal.Entry) error {
	unlock, err := m.r.locks.lock(ctx, volumeKey{m.tenant, e.Volume})
	if err != nil {
		return err
	}
	defer unlock()
	gen, err := m.volumeLog(e.Volume).Newest(ctx)
	if err != nil {
		return err
	}
	fenced := gen.State.Reservation.Check(e.Epoch, e.Sandbox)
	if fenced == nil {
		m.r.dropNotice(ctx, e.Volume, e.Epoch)
		return nil
	}
	if !errors.Is(fenced, ErrFenced) {
		return fenced // a phase that this version does not know: nothing is concluded from it
	}
	return m.lost(ctx, e, fenced)
}

// lost ends this node's part in a drive, open or not, whose volume is somebody else's. The caller has the volume's turn.
func (m *Manager) lost(ctx context.Context, e journal.Entry, cause error) error {
	s := m.r.sessionOf(e.ID)
	if s == nil {
		return m.loseEntry(e.ID, cause)
	}
	s.lose(cause)
	// A publish that is under way is refused in the end; until then the journal's entry is its to write.
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.turn.Release(1)
	if s.closed {
		return m.loseEntry(e.ID, cause)
	}
	s.noteLost()
	return nil
}

// loseEntry marks a drive lost that is not open, unless it was given back meanwhile.
func (m *Manager) loseEntry(id string, cause error) error {
	e, there := m.r.journal.Get(id)
	if !there || e.Lost != "" {
		return nil
	}
	return m.keepLost(e, cause)
}

// loseOthers marks every drive of the volume on this node lost but that of the entry. The caller has the volume's turn.
func (m *Manager) loseOthers(ctx context.Context, keep journal.Entry, cause error) error {
	entries, _ := m.r.journal.All() // what cannot be read is reported by whoever needs it
	for _, e := range entries {
		other := e.Kind == journal.Grant && e.Tenant == keep.Tenant && e.Volume == keep.Volume && e.ID != keep.ID
		if other && e.Epoch > 0 && e.Lost == "" {
			if err := m.lost(ctx, e, cause); err != nil {
				return err
			}
		}
	}
	return nil
}

// lose marks the session lost, once: from here on the drive refuses writes.
func (s *Session) lose(err error) {
	s.once.Do(func() {
		s.cause.Store(&err)
		close(s.lost)
		s.m.r.emit(Event{Kind: EventFenced, Tenant: s.m.tenant, Volume: s.grant.Volume, Sandbox: s.grant.Sandbox,
			Epoch: s.grant.Epoch, Err: err})
	})
}

// noteLost lets the journal remember that the session is lost, so that a restart does not try to write either, and has what
// was not published kept. Called in turn.
func (s *Session) noteLost() {
	if s.entry.Lost != "" {
		return
	}
	entry := s.entry
	entry.Lost = s.Err().Error()
	if err := s.m.r.journal.Put(entry); err != nil {
		s.m.r.log.Error("journal", "volume", s.grant.Volume, "error", err)
		return
	}
	s.entry = entry
	s.m.r.wakeSalvage()
}

// Fenced is a stack that a takeover took from its holder and that is still kept, because what the holder wrote last may
// stand on it.
type Fenced struct {
	Epoch   uint64
	Sandbox string
	Node    string
	At      time.Time // of the takeover
}

// Fenced returns what a volume, by id, deleted or not, still keeps for holders that were fenced: those whose node has not
// come back, or whose salvage is not complete.
func (m *Manager) Fenced(ctx context.Context, volume string) ([]Fenced, error) {
	gen, err := m.readAny(ctx, volume)
	if err != nil {
		return nil, err
	}
	var out []Fenced
	for _, f := range gen.State.Fenced {
		out = append(out, Fenced{Epoch: f.Epoch, Sandbox: f.Owner, Node: f.Node, At: f.At})
	}
	return out, nil
}

// DiscardFenced gives up what the holder of an epoch wrote and did not publish: it is an operator's word that the holder's
// node will not come back, or that nobody wants it. The stack kept for it is let go, and a node that does come back finds
// nothing to build on; its local layers stay on its disk. The volume is given by id, and may be deleted. It may be repeated.
func (m *Manager) DiscardFenced(ctx context.Context, volume string, epoch uint64, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	gen, err := m.readAny(ctx, volume)
	if err != nil {
		return err
	}
	kept, ok := gen.State.FencedAt(epoch)
	if !ok {
		return nil
	}
	if _, err := m.volumeLog(volume).AppendTo(ctx, gen, record.Unfence("discard-fenced", epoch)); err != nil {
		return fmt.Errorf("discard what volume %s keeps for epoch %d: %w", volume, epoch, err)
	}
	m.r.log.Warn("unpublished writes given up", "volume", volume, "epoch", epoch, "node", kept.Node, "reason", reason)
	return nil
}

// readAny reads the newest generation of a volume, a tombstone included.
func (m *Manager) readAny(ctx context.Context, volume string) (genlog.Generation[record.Volume], error) {
	if !record.IsVolumeID(volume) {
		return genlog.Generation[record.Volume]{}, fmt.Errorf("%w: volume %q: must be an id", ErrInvalid, record.Shorten(volume))
	}
	gen, err := m.volumeLog(volume).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) {
		return gen, fmt.Errorf("%w: no volume %s", ErrNotFound, volume)
	}
	if err != nil {
		return gen, fmt.Errorf("read volume %s: %w", volume, err)
	}
	return gen, nil
}
