package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Cut is one freeze of a sandbox's drives. What is sealed under one id belongs together.
type Cut struct {
	// ID names the freeze; NewCut makes one.
	ID string
	// Consistency says whether the file systems were frozen. Empty is Crash.
	Consistency Consistency
	// Final: the device takes no more writes, because it is to be paused or released. Thaw takes that back.
	Final bool
}

// NewCut returns a cut with a fresh id.
func NewCut(c Consistency, final bool) Cut { return Cut{ID: newNonce(), Consistency: c, Final: final} }

// Sealed is what a device held at a cut: layers on this node's disk, fsynced, and soon in the repository. Dropping one loses
// nothing: its layers are part of the next cut.
type Sealed struct {
	cut    journal.Cut
	layers []overlaybd.SealedLayer
	// top is the uuid of the highest layer that the cut consists of, empty if there is none at all.
	top string

	// published is set once the cut is in the repository: what a checkpoint or fork of it refers to. Guarded by the turn.
	published *copied
}

// ID returns the cut's id.
func (c *Sealed) ID() string { return c.cut.ID }

// Consistency says how the file systems were when the cut was made.
func (c *Sealed) Consistency() Consistency { return Consistency(c.cut.Consistency) }

// Empty reports whether nothing was written since the last published cut: there is nothing to upload.
func (c *Sealed) Empty() bool { return len(c.layers) == 0 }

// Seal makes everything written so far a cut on the local disk. It sends no request; its cost depends on how scattered the
// writes were, not on how much was written. The device goes on with a fresh upper, unless the cut is final.
func (s *Session) Seal(ctx context.Context, c Cut) (*Sealed, error) {
	if err := record.CheckID("cut", c.ID); err != nil {
		return nil, err
	}
	if c.Consistency != "" && c.Consistency != Clean && c.Consistency != Crash {
		return nil, fmt.Errorf("%w: cut %s: consistency %q: must be %q or %q", ErrInvalid, c.ID, c.Consistency, Clean, Crash)
	}
	var sealed *Sealed
	err := s.do(ctx, "seal", func() (err error) {
		sealed, err = s.seal(ctx, c)
		return err
	})
	return sealed, err
}

func (s *Session) seal(ctx context.Context, c Cut) (*Sealed, error) {
	if n := s.dev.Stats().Layers; n >= maxLayers && !c.Final {
		return nil, fmt.Errorf("%w: the device has %d layers, and beyond %d only the cut of a pause or release has room: "+
			"the stack is shortened when the volume is attached again", ErrNotReady, n, maxLayers)
	}
	since := s.fresh.begin()
	layers, err := s.dev.Seal(ctx, overlaybd.SealOptions{Final: c.Final})
	s.fresh.end(since, layers, err == nil)
	if err != nil {
		return nil, err
	}
	if c.Consistency == "" {
		c.Consistency = Crash
	}
	cut := journal.Cut{ID: c.ID, Consistency: string(c.Consistency), Final: c.Final, At: s.m.r.now()}
	// A flush that comes after a final cut finds the same content. It must not take the place of that cut in the journal:
	// the pause that made it is still to be completed.
	if s.entry.Sealed == nil || !s.entry.Sealed.Final || c.Final {
		entry := s.entry
		entry.Sealed = &cut
		if err := s.m.r.journal.Put(entry); err != nil {
			return nil, err
		}
		s.entry = entry
	}
	s.top = s.topAfter(layers)
	return &Sealed{cut: cut, layers: layers, top: s.top}, nil
}

// topAfter is the uuid of the highest layer once these are published.
func (s *Session) topAfter(sealed []overlaybd.SealedLayer) string {
	if n := len(sealed); n > 0 {
		return sealed[n-1].UUID
	}
	return topOf(s.gen.State.Stack)
}

func topOf(stack record.Stack) string {
	if n := len(stack.Layers); n > 0 {
		return stack.Layers[n-1].UUID
	}
	return ""
}

// Thaw lets a device go on after a final cut, when the pause it was for is given up. It is ErrConflict if the pause or release
// has landed all the same: then the session has ended as by that.
func (s *Session) Thaw(ctx context.Context) error {
	return s.do(ctx, "thaw", func() error {
		if s.doubt {
			// A pause that lands after this would let the sandbox be resumed elsewhere while it writes here. So its slot is taken.
			err := s.append(ctx, record.Stay(s.grant.Epoch, s.grant.Sandbox))
			if errors.Is(err, ErrConflict) && !errors.Is(err, genlog.ErrInDoubt) {
				s.finish() // it has landed: everything is in the repository, and the sandbox may attach again
			}
			if err != nil {
				return err
			}
			s.doubt = false
		}
		entry := s.entry
		entry.Sealed = nil
		if err := s.m.r.journal.Put(entry); err != nil {
			return err
		}
		s.entry = entry
		return s.dev.Thaw(ctx)
	})
}

// Publish brings a cut into the repository: its layers are uploaded, and then the record's stack grows by them. When it
// returns nil, the cut survives the loss of this node. Without anything written it sends nothing. It may be repeated with
// the same cut; bytes that were uploaded are not uploaded again.
func (s *Session) Publish(ctx context.Context, c *Sealed) error {
	return s.do(ctx, "publish", func() error { return s.publish(ctx, c, record.Keep) })
}

// Pause publishes a final cut and marks the volume paused, in one generation: it stays the sandbox's own, for as long as it
// takes, and Attach on any node continues it. The session ends. It may be repeated until it succeeds; until then the
// session stays usable.
func (s *Session) Pause(ctx context.Context, c *Sealed) error {
	return s.leave(ctx, "pause", c, record.Pause)
}

// Release publishes a final cut and frees the volume, in one generation: nobody can acquire it before the last write is in
// the repository. The session ends. It may be repeated until it succeeds; until then the session stays usable.
func (s *Session) Release(ctx context.Context, c *Sealed) error {
	return s.leave(ctx, "release", c, record.Release)
}

func (s *Session) leave(ctx context.Context, what string, c *Sealed, then record.Then) error {
	return s.do(ctx, what, func() error {
		// Local layers go when the session ends, so the cut must be the last word of the device.
		if now := s.entry.Sealed; !c.cut.Final || now == nil || now.ID != c.cut.ID {
			return fmt.Errorf("%w: cut %s is not final, or the device was written after it", ErrInvalid, c.cut.ID)
		}
		if err := s.publish(ctx, c, then); err != nil {
			s.doubt = s.doubt || errors.Is(err, genlog.ErrInDoubt)
			return err
		}
		s.finish()
		return nil
	})
}

// Checkpoint keeps a published cut as a checkpoint.
func (s *Session) Checkpoint(ctx context.Context, c *Sealed, o SnapshotOptions) (Checkpoint, error) {
	if err := o.check(); err != nil {
		return Checkpoint{}, err
	}
	from, err := s.published(ctx, c)
	if err != nil {
		return Checkpoint{}, err
	}
	gen, err := s.m.keep(ctx, o, from)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint of volume %s: %w", s.grant.Volume, err)
	}
	return checkpointOf(gen), nil
}

// Fork makes an independent child volume of a published cut. With an ID, which NewID makes, the caller knows the child
// before it exists, and repeating the call with the same ID makes one child.
func (s *Session) Fork(ctx context.Context, c *Sealed, id string, o ForkOptions) (Volume, error) {
	if err := checkForkAs(id, o); err != nil {
		return Volume{}, err
	}
	from, err := s.published(ctx, c)
	if err != nil {
		return Volume{}, err
	}
	v, err := s.m.forkAs(ctx, id, from, o)
	if err != nil {
		return Volume{}, fmt.Errorf("fork of volume %s: %w", s.grant.Volume, err)
	}
	return v, nil
}

func (s *Session) published(ctx context.Context, c *Sealed) (copied, error) {
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return copied{}, err
	}
	defer s.turn.Release(1)
	if c.published == nil {
		return copied{}, fmt.Errorf("%w: cut %s of volume %s is not published, or a later one was published before it",
			ErrNotReady, c.cut.ID, s.grant.Volume)
	}
	return *c.published, nil
}

// publish uploads what the record has not yet, and appends. Called in turn.
func (s *Session) publish(ctx context.Context, c *Sealed, then record.Then) error {
	if then == record.Keep && len(c.layers) > 0 {
		d := Demand{Op: "publish", Volume: s.grant.Volume, StoredBytes: liveBytes(c.layers)}
		if err := s.m.allow(ctx, d); err != nil {
			return err
		}
	}
	layers, err := s.upload(ctx, c.layers)
	if err != nil {
		return err
	}
	content := record.Content{Cut: c.cut.ID, Consistency: Consistency(c.cut.Consistency), PublishedAt: s.m.r.now()}
	op := record.Publish{Epoch: s.grant.Epoch, Owner: s.grant.Sandbox, Layers: layers, Nonces: newNonces(len(layers)),
		Content: content, Then: then, At: s.m.r.now()}
	if len(layers) > 0 || then != record.Keep {
		if err := s.append(ctx, op.Op()); err != nil {
			return err
		}
	}
	s.settle(c)
	return nil
}

// settle takes note of a durable publish: the device need not offer these layers again, and the uploads are bound no more.
// Nothing here can fail the publish: what goes wrong costs a second look after a restart.
func (s *Session) settle(c *Sealed) {
	// The record may have moved past this cut by a later one that was published first. What a checkpoint of this cut would
	// have to hold is then no generation's stack, and there will be none.
	if c.published == nil && topOf(s.gen.State.Stack) == c.top {
		from := copied{origin: record.Origin{Volume: s.grant.Volume, Generation: s.gen.Number},
			stack: s.gen.State.Stack.Clone(), content: s.gen.State.Content, mode: Exclusive}
		// A cut without writes is the state of the one before it, under its own id: all drives of a sandbox carry one.
		from.content.Cut = c.cut.ID
		if c.Consistency() == Clean {
			from.content.Consistency = Clean // the same bytes, now known to be those of file systems at rest
		}
		c.published = &from
	}
	for _, have := range s.gen.State.Stack.Layers {
		for _, l := range c.layers {
			if have.UUID == l.UUID {
				s.dev.Published(l.UUID, have.Layer)
			}
		}
	}
	s.fresh.published(c.layers, c.top == s.top)
	entry := s.entry
	// Other layers may be bound as well, of a later cut whose upload failed. A binding holds until its layer is in: another
	// layer under the same key would be taken for uploaded.
	entry.Uploads = maps.Clone(entry.Uploads)
	for _, have := range s.gen.State.Stack.Layers {
		delete(entry.Uploads, have.UUID)
	}
	if entry.Sealed != nil && entry.Sealed.ID == c.cut.ID && !c.cut.Final {
		entry.Sealed = nil
	}
	if err := s.m.r.journal.Put(entry); err != nil {
		s.m.r.log.Warn("journal", "volume", entry.Volume, "error", err)
		return
	}
	s.entry = entry
}

// flushTimeout bounds how long file systems are waited for when a request asks for a flush.
const flushTimeout = 30 * time.Second

// flush brings the newest writes of a volume into the repository, if this node holds it, and returns the record after that.
// A volume that is free or paused has nothing to flush. One that is held elsewhere is a FlushUnavailableError.
func (m *Manager) flush(ctx context.Context, gen genlog.Generation[record.Volume]) (genlog.Generation[record.Volume], error) {
	res := gen.State.Reservation
	if gen.State.Mode != Exclusive || res.Phase == reservation.Free || res.Phase == reservation.Paused {
		return gen, nil
	}
	s := m.r.session(volumeKey{m.tenant, gen.State.ID})
	if s == nil || s.Epoch() != res.Epoch { // a session that was lost has nothing of the present holder's
		return gen, &FlushUnavailableError{Volume: gen.State.ID, Sandbox: res.Grant.Owner, Node: res.Grant.Node}
	}
	c, err := s.cutNow(ctx)
	if err == nil {
		err = s.Publish(ctx, c)
	}
	if err != nil {
		return gen, err
	}
	return m.read(ctx, gen.State.ID)
}

// cutNow seals a device that goes on, with its file systems at rest if the session knows how.
func (s *Session) cutNow(ctx context.Context) (c *Sealed, err error) {
	thaw, clean, err := s.rest(ctx)
	if err != nil {
		return nil, err
	}
	if thaw != nil {
		defer func() {
			if terr := thaw(); terr != nil {
				err = errors.Join(err, fmt.Errorf("thaw the file systems on volume %s: %w", s.grant.Volume, terr))
			}
		}()
	}
	consistency := Crash
	if clean {
		consistency = Clean
	}
	return s.Seal(ctx, NewCut(consistency, false))
}
