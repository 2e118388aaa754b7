package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// What a fenced sandbox has written and not published is on this node's disk only. It is kept as a volume of its own, a child
// of the stack that was taken from it: its salvage. Nothing of it is taken from the source's uploads: a key that exists there
// may hold bytes of an upload that nobody refers to, and be deleted while it is looked at.

// Labels of a salvage. They say what it is wherever volumes are listed.
const (
	LabelSalvageVolume  = "salvage.volume"
	LabelSalvageEpoch   = "salvage.epoch"
	LabelSalvageSandbox = "salvage.sandbox"
	LabelSalvageNode    = "salvage.node"
)

// Salvaged says what became of a drive that this node has lost.
type Salvaged struct {
	Tenant  string
	Volume  string
	Sandbox string
	Epoch   uint64
	// Salvage is the volume that keeps what had not been published, ready; empty if everything had been.
	Salvage string
	// Err is why it is not kept yet. The local layers and the journal's entry stay, and the next call goes on.
	Err error
}

// salvageEvery is how often what could not be kept is tried again.
const salvageEvery = 30 * time.Second

// Salvage keeps what this node's lost drives hold and the repository does not. It is done in the background as soon as a
// drive is lost, after a restart too; calling it tells what came of it. A drive that is still open is sealed for good and stays
// readable. Calls may overlap.
func (r *Repository) Salvage(ctx context.Context) []Salvaged {
	entries, _ := r.journal.All() // an entry that cannot be read is left alone, and reported by Journal
	var out []Salvaged
	for _, e := range entries {
		if e.Kind != journal.Grant || e.Lost == "" {
			continue
		}
		s := Salvaged{Tenant: e.Tenant, Volume: e.Volume, Sandbox: e.Sandbox, Epoch: e.Epoch}
		s.Salvage, s.Err = (&Manager{r: r, tenant: e.Tenant}).salvage(ctx, e.ID)
		if s.Err != nil {
			s.Err = fmt.Errorf("keep what sandbox %s wrote to volume %s under epoch %d: %w", e.Sandbox, e.Volume, e.Epoch, s.Err)
		}
		out = append(out, s)
	}
	return out
}

// wakeSalvage has the background look for lost drives now.
func (r *Repository) wakeSalvage() {
	select {
	case r.lostDrive <- struct{}{}:
	default: // it is about to look
	}
}

// salvageLost keeps lost drives for as long as the repository is open. A store that is away is tried again and again.
func (r *Repository) salvageLost(ctx context.Context) {
	ticker := time.NewTicker(salvageEvery)
	defer ticker.Stop()
	failing := map[string]bool{}
	for {
		for _, s := range r.Salvage(ctx) {
			id := s.Volume + "-" + strconv.FormatUint(s.Epoch, 10)
			if s.Err != nil && ctx.Err() == nil && !failing[id] { // said once, not every 30 s
				r.log.Error("salvage", "volume", s.Volume, "epoch", s.Epoch, "error", s.Err)
				r.emit(Event{Kind: EventSalvageFailed, Tenant: s.Tenant, Volume: s.Volume, Sandbox: s.Sandbox, Epoch: s.Epoch,
					Err: s.Err})
			}
			failing[id] = s.Err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-r.lostDrive:
		case <-ticker.C:
		}
	}
}

// salvage keeps one lost drive, by its journal entry, and returns the volume.
func (m *Manager) salvage(ctx context.Context, id string) (string, error) {
	unlock, err := m.r.locks.lock(ctx, volumeKey{m.tenant, "salvage/" + id})
	if err != nil {
		return "", err
	}
	defer unlock()
	e, there := m.r.journal.Get(id)
	if !there {
		return "", nil // another call was faster
	}
	if s := m.r.sessionOf(id); s != nil && s.salvaged.Load() {
		return e.Salvage.Volume, nil // its files wait for Close
	}
	src, err := m.volumeLog(e.Volume).Newest(ctx) // a tombstone is as good: it keeps the stack too
	if err != nil {
		return "", err
	}
	k := &salvage{m: m, e: e, src: src}
	if e.Salvage == nil || !e.Salvage.Ready {
		if err := k.keep(ctx); err != nil {
			return "", err
		}
	}
	return k.e.Salvage.Volume, k.settle(ctx)
}

// salvage is one drive that is being kept. e is what the journal has.
type salvage struct {
	m     *Manager
	e     journal.Entry
	src   genlog.Generation[record.Volume]
	kept  record.Fenced // what the drive stands on
	child genlog.Generation[record.Volume]
}

// keep makes the volume ready. Each step is in the journal before it can take effect, so that whatever dies here is gone on
// with: the volume's id before its record, a key's bytes before they are sent, and that all is kept before its base may go.
func (k *salvage) keep(ctx context.Context) error {
	var ok bool
	if k.kept, ok = k.src.State.FencedAt(k.e.Epoch); !ok {
		return k.noBase()
	}
	layers, err := k.seal(ctx)
	if err != nil {
		return err
	}
	if len(layers) == 0 {
		return k.note(journal.Salvage{Ready: true}) // everything was published
	}
	if err := k.begin(ctx, len(layers)); err != nil {
		return err
	}
	if k.child.State.Status != record.StatusReady {
		if err := k.fill(ctx, layers); err != nil {
			return err
		}
	}
	done := *k.e.Salvage
	done.Ready = true
	if err := k.note(done); err != nil {
		return err
	}
	k.m.r.emit(Event{Kind: EventSalvaged, Tenant: k.m.tenant, Volume: k.e.Volume, Sandbox: k.e.Sandbox, Epoch: k.e.Epoch,
		Other: done.Volume})
	return nil
}

// noBase decides about a drive for which no stack is kept. The epoch of one that was sealed for good has ended by its own pause
// or release, whose answer was lost: no other end leaves no stack behind, but for one. Then everything is published.
func (k *salvage) noBase() error {
	if cut := k.e.Sealed; cut != nil && cut.Final {
		return k.note(journal.Salvage{Ready: true})
	}
	// The one other end: an operator has given up what the drive holds. Its files are for people to remove.
	return fmt.Errorf("%w: volume %s keeps no stack for epoch %d: it was discarded", ErrNotFound, k.e.Volume, k.e.Epoch)
}

func (k *salvage) note(s journal.Salvage) error {
	e := k.e
	e.Salvage = &s
	if err := k.m.r.journal.Put(e); err != nil {
		return err
	}
	k.e = e
	return nil
}

// seal seals the drive for good and returns the layers that the kept stack does not have.
func (k *salvage) seal(ctx context.Context) ([]overlaybd.SealedLayer, error) {
	if s := k.m.r.sessionOf(k.e.ID); s != nil {
		layers, err := s.dev.Seal(ctx, overlaybd.SealOptions{Final: true})
		if !errors.Is(err, overlaybd.ErrClosed) {
			return k.above(layers), err
		}
	}
	dir := filepath.Join(k.m.r.dir, k.e.Dir)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil // it was never opened
	}
	dev, err := k.m.r.engine.OpenWritable(ctx, dir, k.kept.Stack.Value())
	if err != nil {
		return nil, err
	}
	layers, err := dev.Seal(ctx, overlaybd.SealOptions{Final: true})
	return k.above(layers), errors.Join(err, dev.Close())
}

// above leaves out what a publish without an answer has brought into the stack before the takeover: a layer that is there, and
// those below it.
func (k *salvage) above(layers []overlaybd.SealedLayer) []overlaybd.SealedLayer {
	for i, l := range slices.Backward(layers) {
		if slices.ContainsFunc(k.kept.Stack.Layers, func(r record.Layer) bool { return r.UUID == l.UUID }) {
			return layers[i+1:]
		}
	}
	return layers
}

// begin finds the volume that an earlier try has begun, or makes one. One that was tombstoned, by the collector because this
// node was away for a day, is begun again under another id.
func (k *salvage) begin(ctx context.Context, n int) (err error) {
	if k.e.Salvage != nil {
		k.child, err = k.m.volumeLog(k.e.Salvage.Volume).Newest(ctx)
		if err == nil && k.child.State.Status != record.StatusDeleted {
			return nil
		}
		if err != nil && !errors.Is(err, genlog.ErrNotFound) {
			return err
		}
	}
	if k.e.Salvage == nil || err == nil {
		id, err := NewID()
		if err == nil {
			err = k.note(journal.Salvage{Volume: id})
		}
		if err != nil {
			return err
		}
	}
	id := k.e.Salvage.Volume
	log := k.m.volumeLog(id)
	k.child, err = createOrRead(ctx, log, k.state(id, n), func() (genlog.Generation[record.Volume], error) { return log.Newest(ctx) })
	return err
}

// state is the first generation: it refers to the kept stack and declares a key for each layer.
func (k *salvage) state(id string, n int) record.Volume {
	v := record.Volume{
		Head: record.Head{ID: id, Tenant: k.m.tenant, Status: record.StatusUploading, CreatedAt: k.m.r.now(),
			Labels: map[string]string{LabelSalvageVolume: k.e.Volume, LabelSalvageEpoch: strconv.FormatUint(k.e.Epoch, 10),
				LabelSalvageSandbox: k.e.Sandbox, LabelSalvageNode: k.m.r.node},
			Origin: record.Origin{Volume: k.e.Volume, Generation: k.src.Number, Fenced: k.e.Epoch},
			Stack:  k.kept.Stack.Clone()},
		Mode: Exclusive, Reservation: reservation.New(),
	}
	for range n {
		v.Keys = append(v.Keys, record.LayerKey(id, 0, newNonce()))
	}
	return v
}

// fill uploads the layers and makes the volume ready, if the source still keeps what it stands on. That is looked at after the
// volume's references are on record, so that no collector run can have missed both.
func (k *salvage) fill(ctx context.Context, layers []overlaybd.SealedLayer) error {
	log := k.m.volumeLog(k.e.Salvage.Volume)
	if len(k.child.State.Keys) > 0 { // else they are in
		up, err := k.upload(ctx, layers)
		if err != nil {
			return err
		}
		child, err := log.AppendTo(ctx, k.child, record.FirstContent(k.child.State.Reservation.Epoch, up, k.content()))
		if err != nil {
			return err
		}
		k.child = child
	}
	own := layersPrefix + k.child.State.ID + "/"
	src, err := k.m.volumeLog(k.e.Volume).Newest(ctx)
	if err != nil {
		return err
	}
	if !src.State.MaySalvage(k.e.Epoch, k.child.State.Stack, func(l record.Layer) bool { return strings.HasPrefix(l.Key, own) }) {
		abandon(ctx, k.m.r, log, k.child)
		return k.noBase()
	}
	k.child, err = log.AppendTo(ctx, k.child, record.Ready[record.Volume](k.child.State.Stack))
	return err
}

// content says what the volume holds: the cut of a pause that came too late, or a disk as after a power cut.
func (k *salvage) content() record.Content {
	c := record.Content{Cut: newNonce(), Consistency: Crash, PublishedAt: k.m.r.now()}
	if cut := k.e.Sealed; cut != nil && cut.Final {
		c.Cut, c.Consistency = cut.ID, Consistency(cut.Consistency)
	}
	return c
}

// upload sends the layers under the volume's own keys.
func (k *salvage) upload(ctx context.Context, layers []overlaybd.SealedLayer) ([]record.Layer, error) {
	var out []record.Layer
	for _, l := range layers {
		p, err := k.m.r.packSealed(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("pack layer %s: %w", l.UUID, err)
		}
		key, err := k.bind(l.UUID, p)
		if err == nil && key == "" {
			// Bound to other bytes, by another version of this library: fresh keys for everything, and from the start.
			if err = errors.Join(os.Remove(p.path), k.renew(ctx, len(layers))); err == nil {
				return k.upload(ctx, layers)
			}
			return nil, err
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(p.path))
		}
		r, err := k.m.r.send(ctx, l, p, key)
		if err != nil {
			return nil, fmt.Errorf("upload layer %s: %w", l.UUID, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// bind returns the declared key that a layer is sent under, journalled; none if there is no key for these bytes.
func (k *salvage) bind(uuid string, p packed) (string, error) {
	if up, bound := k.e.Salvage.Uploads[uuid]; bound {
		if up.Digest == p.digest && slices.Contains(k.child.State.Keys, up.Key) {
			return up.Key, nil
		}
		return "", nil
	}
	free := slices.DeleteFunc(slices.Clone(k.child.State.Keys), func(key string) bool {
		for _, up := range k.e.Salvage.Uploads {
			if up.Key == key {
				return true
			}
		}
		return false
	})
	if len(free) == 0 {
		return "", nil
	}
	s := *k.e.Salvage
	s.Uploads = maps.Clone(s.Uploads)
	if s.Uploads == nil {
		s.Uploads = map[string]journal.Upload{}
	}
	s.Uploads[uuid] = journal.Upload{Key: free[0], Writer: writerVersion, Digest: p.digest, Size: p.size}
	return free[0], k.note(s)
}

// renew declares other keys. Those of before are never used again: bytes may arrive under them at any time.
func (k *salvage) renew(ctx context.Context, n int) error {
	child, err := k.m.volumeLog(k.child.State.ID).AppendTo(ctx, k.child,
		record.CarryOn(k.child.State.Reservation.Epoch, newNonces(n)))
	if err != nil {
		return err
	}
	k.child = child
	return k.note(journal.Salvage{Volume: k.e.Salvage.Volume})
}

// settle lets go of the kept stack, and then of what this node has.
func (k *salvage) settle(ctx context.Context) error {
	if _, err := k.m.volumeLog(k.e.Volume).AppendTo(ctx, k.src, record.Unfence("salvaged", k.e.Epoch)); err != nil {
		return err
	}
	k.m.r.dropNotice(ctx, k.e.Volume, k.e.Epoch)
	s := k.m.r.sessionOf(k.e.ID)
	if s == nil {
		return k.m.r.forget(k.e)
	}
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.turn.Release(1)
	if s.closed {
		return k.m.r.forget(k.e)
	}
	s.salvaged.Store(true) // whoever reads the drive still may; its files go with Close
	return nil
}
