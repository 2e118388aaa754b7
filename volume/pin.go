package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// A pin is one object a grant of a read-only mount, under a key that was never used before. Ten thousand sandboxes that
// mount one volume write ten thousand keys and never the volume's record.

// pinBody is what a pin says.
type pinBody struct {
	Format  int            `json:"format"`
	Tenant  string         `json:"tenant"`
	Node    string         `json:"node"`
	Sandbox string         `json:"sandbox"`
	At      time.Time      `json:"at"`
	Extra   jsontext.Value `json:",embed"`
}

func pinKey(volume, sandbox, nonce string) string {
	return pinsPrefix + volume + "/" + sandbox + "/" + nonce
}

// Reader is an ro volume in the hands of a sandbox on this node.
type Reader struct {
	m      *Manager
	entry  journal.Entry
	dev    *overlaybd.ReadOnly
	volume Volume
	closed atomic.Bool
}

// Device returns the drive. Its writes are ErrReadOnly.
func (r *Reader) Device() overlaybd.Device { return r.dev }

// Volume returns the volume as it was when it was mounted; the content of an ro volume never changes.
func (r *Reader) Volume() Volume { return r.volume }

// Pin returns the nonce of the pin, which a drive set keeps so that a resume on another node can remove it.
func (r *Reader) Pin() string { return r.entry.ID }

// Pin mounts an ro volume, by id or name, for a sandbox: the volume cannot be deleted until the pin is removed. Repeating
// the call, after a crash of this node or without one, uses the same pin, which goes when the last Reader is released.
func (m *Manager) Pin(ctx context.Context, ref, sandbox string) (*Reader, error) {
	r, err := m.pin(ctx, ref, sandbox)
	if err != nil {
		return nil, fmt.Errorf("mount volume %s read-only in sandbox %s: %w", ref, sandbox, err)
	}
	return r, nil
}

func (m *Manager) pin(ctx context.Context, ref, sandbox string) (*Reader, error) {
	if err := record.CheckID("sandbox", sandbox); err != nil {
		return nil, err
	}
	gen, err := m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	id := gen.State.ID
	if gen.State.Mode != ReadOnly {
		return nil, fmt.Errorf("%w: volume %s has mode %s and is mounted by a reservation, not by pins",
			ErrUnsupported, id, gen.State.Mode)
	}
	// Two calls for one sandbox take turns: one that fails must not remove the pin of the other. Sandboxes do not wait for
	// each other.
	unlock, err := m.r.locks.lock(ctx, pinTurn(m.tenant, id, sandbox))
	if err != nil {
		return nil, err
	}
	defer unlock()
	entry, known, err := m.r.findEntry(journal.Pin, m.tenant, id, sandbox)
	if err != nil {
		return nil, err
	}
	if known && entry.Undoing {
		// Its removal may still be under way, and would take a mount's pin away under it. This mount gets another one.
		if err := m.dropPin(ctx, entry); err != nil {
			return nil, err
		}
		known = false
	}
	if !known {
		entry = m.newEntry(journal.Pin, id, sandbox)
		if err := m.r.journal.Put(entry); err != nil {
			return nil, err
		}
	}
	if err := m.putPin(ctx, entry); err != nil {
		return nil, err // in doubt: the entry stays, so that the pin is found and removed
	}
	v, err := m.checkPinned(ctx, id)
	var dev *overlaybd.ReadOnly
	if err == nil {
		dev, err = m.r.engine.OpenReadOnly(ctx, v.Stack)
	}
	if err != nil {
		// A pin of an earlier call may be what keeps the volume under a sandbox that runs. It goes only with the volume.
		if known && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		return nil, errors.Join(err, m.dropPin(ctx, entry))
	}
	m.r.readers.add(entry.ID)
	return &Reader{m: m, entry: entry, dev: dev, volume: v}, nil
}

func (m *Manager) putPin(ctx context.Context, e journal.Entry) error {
	body, err := json.Marshal(pinBody{Format: 1, Tenant: m.tenant, Node: m.r.node, Sandbox: e.Sandbox, At: e.At},
		json.Deterministic(true))
	if err != nil {
		return err
	}
	if err := m.r.gate.check(ctx); err != nil {
		return err
	}
	// A key that is taken is our own, put by an earlier try.
	err = m.r.store.PutIfAbsent(ctx, pinKey(e.Volume, e.Sandbox, e.ID), body)
	if err != nil && !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%w: put pin: %w", ErrUnavailable, err)
	}
	return nil
}

// checkPinned reads the record after the pin was put. Ready: whoever deletes from now on sees the pin. Deleting: somebody
// may have listed the pins before ours was there, so the deletion is taken back first, which voids that listing.
func (m *Manager) checkPinned(ctx context.Context, id string) (Volume, error) {
	for range deleteTries {
		gen, err := m.read(ctx, id)
		if err != nil {
			return Volume{}, err
		}
		switch gen.State.Status {
		case record.StatusReady:
			return volumeOf(gen), nil
		case record.StatusDeleting:
			if _, err := m.volumeLog(id).AppendTo(ctx, gen, record.Undelete()); err != nil {
				return Volume{}, err
			}
		default:
			return Volume{}, &record.StatusError{Kind: "volume", ID: id, Status: gen.State.Status, Op: "mount"}
		}
	}
	return Volume{}, fmt.Errorf("%w: volume %s is being deleted again and again", ErrUnavailable, id)
}

// dropPin removes a pin and then its journal entry, even if the caller is gone. The journal says so first: a removal without
// an answer may arrive at any later time, so that pin must not be relied upon again.
func (m *Manager) dropPin(ctx context.Context, e journal.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if !e.Undoing {
		e.Undoing = true
		if err := m.r.journal.Put(e); err != nil {
			return err
		}
	}
	if err := m.r.store.Delete(ctx, pinKey(e.Volume, e.Sandbox, e.ID)); err != nil {
		return fmt.Errorf("%w: remove pin: %w", ErrUnavailable, err)
	}
	return m.r.journal.Remove(e.ID)
}

// Release unmounts: the device is closed and the pin removed, unless another Reader of the sandbox is open. It may be
// repeated until it succeeds.
func (r *Reader) Release(ctx context.Context) error {
	unlock, err := r.m.r.locks.lock(ctx, r.turn())
	if err != nil {
		return err
	}
	defer unlock()
	err = r.Close()
	if r.m.r.readers.none(r.entry.ID) {
		err = errors.Join(err, r.m.dropPin(ctx, r.entry))
	}
	if err != nil {
		return fmt.Errorf("release volume %s of sandbox %s: %w", r.entry.Volume, r.entry.Sandbox, err)
	}
	return nil
}

// Leave closes the device and hands the pin to the drive set: the volume stays pinned for the sandbox while it is paused,
// and this node forgets it.
func (r *Reader) Leave() error {
	err := r.Close()
	if r.m.r.readers.none(r.entry.ID) {
		err = errors.Join(err, r.m.r.journal.Remove(r.entry.ID))
	}
	return err
}

// Close closes the device. Pin and journal stay: Pin by the same sandbox on this node goes on from there. It may be
// repeated.
func (r *Reader) Close() error {
	err := r.dev.Close()
	if !r.closed.Swap(true) {
		r.m.r.readers.remove(r.entry.ID)
	}
	return err
}

// turn is what calls for one sandbox's pin of the volume wait for.
func (r *Reader) turn() volumeKey { return pinTurn(r.entry.Tenant, r.entry.Volume, r.entry.Sandbox) }

func pinTurn(tenant, volume, sandbox string) volumeKey {
	return volumeKey{tenant, volume + "/" + sandbox}
}

// readers counts the open Readers of each pin on this node.
type readers struct {
	mu   sync.Mutex
	open map[string]int
}

func (r *readers) add(pin string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[string]int{}
	}
	r.open[pin]++
}

func (r *readers) remove(pin string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[pin]--; r.open[pin] == 0 {
		delete(r.open, pin)
	}
}

func (r *readers) none(pin string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[pin] == 0
}

// RemovePin removes one pin by its nonce, when the sandbox that left it behind has mounted the volume again elsewhere or is
// gone. Removing what is not there is success.
func (m *Manager) RemovePin(ctx context.Context, volume, sandbox, nonce string) error {
	for field, v := range map[string]string{"volume": volume, "sandbox": sandbox, "pin": nonce} {
		if err := record.CheckID(field, v); err != nil {
			return err
		}
	}
	if _, err := m.read(ctx, volume); err != nil {
		return err // another tenant's, or gone
	}
	if err := m.r.store.Delete(ctx, pinKey(volume, sandbox, nonce)); err != nil {
		return fmt.Errorf("%w: remove pin of volume %s: %w", ErrUnavailable, volume, err)
	}
	return nil
}

// Unpin removes every pin that a sandbox has on an ro volume, by id or name: an operator's word, with the reason, that the
// sandbox is gone and nobody else will remove them. A mount of it that lives all the same keeps working until the volume is
// deleted and its data collected. It returns how many there were; none is not an error.
func (m *Manager) Unpin(ctx context.Context, ref, sandbox, reason string) (removed int, err error) {
	if err := errors.Join(record.CheckID("sandbox", sandbox), checkReason(reason)); err != nil {
		return 0, err
	}
	gen, err := m.find(ctx, ref)
	if err != nil {
		return 0, err
	}
	id := gen.State.ID
	for e, err := range m.r.store.List(ctx, pinsPrefix+id+"/"+sandbox+"/", "", 0) {
		if err == nil {
			err = m.r.store.Delete(ctx, e.Key)
		}
		if err != nil {
			return removed, fmt.Errorf("%w: unpin volume %s: %w", ErrUnavailable, id, err)
		}
		removed++
	}
	if removed > 0 {
		m.r.log.Warn("pins removed by hand", "volume", id, "sandbox", sandbox, "pins", removed, "reason", reason)
		m.r.emit(Event{Kind: EventUnpinned, Tenant: m.tenant, Volume: id, Sandbox: sandbox, Reason: reason})
	}
	return removed, nil
}

// maxHolders is how many readers an InUseError names.
const maxHolders = 16

// checkUnpinned returns an InUseError if a pin of the volume is there.
func (m *Manager) checkUnpinned(ctx context.Context, id string) error {
	prefix := pinsPrefix + id + "/"
	var holders []Holder
	for e, err := range m.r.store.List(ctx, prefix, "", maxHolders) {
		if err != nil {
			return fmt.Errorf("%w: list pins of volume %s: %w", ErrUnavailable, id, err)
		}
		sandbox, _, _ := strings.Cut(strings.TrimPrefix(e.Key, prefix), "/")
		holders = append(holders, Holder{Sandbox: sandbox, Node: m.pinNode(ctx, e.Key)})
	}
	if len(holders) == 0 {
		return nil
	}
	return &record.InUseError{ID: id, Op: "delete", Holders: holders}
}

// pinNode reads which node a pin names, for the message. A pin that cannot be read still counts.
func (m *Manager) pinNode(ctx context.Context, key string) string {
	body, err := m.r.store.Get(ctx, key)
	var p pinBody
	if err != nil || json.Unmarshal(body, &p) != nil {
		return "unknown"
	}
	return p.Node
}
