package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Create makes a volume: empty, or a copy of a volume or checkpoint. No data moves but for the first empty volume of its
// size, and the source's record is not written. When it returns, the volume is ready and durable.
//
// A failed call leaves nothing behind. Its outcome can be in doubt when the store did not answer: with a Token the call can
// be repeated, and returns the volume that an earlier one made.
func (m *Manager) Create(ctx context.Context, o CreateOptions) (Volume, error) {
	o, err := o.check()
	if err != nil {
		return Volume{}, err
	}
	gen, err := m.create(ctx, o)
	if err != nil {
		return Volume{}, fmt.Errorf("create volume %q: %w", o.Name, err)
	}
	return volumeOf(gen), nil
}

// ForkOptions say how a copy of a volume is to be.
type ForkOptions struct {
	Name   string
	Mode   Mode
	Labels map[string]string
	Token  string
	Flush  bool
}

func (o ForkOptions) create(from Source) CreateOptions {
	return CreateOptions{Name: o.Name, Mode: o.Mode, Source: from, Labels: o.Labels, Token: o.Token, Flush: o.Flush}
}

// Fork makes an independent copy-on-write child of a volume, by id or name, from its last published generation; with Flush
// its holder publishes its newest writes first. The child's Lineage says which generation it holds.
func (m *Manager) Fork(ctx context.Context, ref string, o ForkOptions) (Volume, error) {
	return m.Create(ctx, o.create(FromVolume(ref)))
}

// Restore makes a new volume from a checkpoint. There is no restoring in place.
func (m *Manager) Restore(ctx context.Context, checkpoint string, o ForkOptions) (Volume, error) {
	return m.Create(ctx, o.create(FromCheckpoint(checkpoint)))
}

// emptyTries is how often an empty volume is begun again because the hidden volume it starts from was dropped meanwhile.
const emptyTries = 4

func (m *Manager) create(ctx context.Context, o CreateOptions) (genlog.Generation[record.Volume], error) {
	for try := 1; ; try++ {
		gen, err := m.createOnce(ctx, o)
		// The source of an empty volume is not the caller's affair: when it is gone, there is another.
		if o.Source == Empty() && errors.Is(err, ErrNotFound) && try < emptyTries {
			m.r.bases.forget()
			continue
		}
		return gen, err
	}
}

func (m *Manager) createOnce(ctx context.Context, o CreateOptions) (genlog.Generation[record.Volume], error) {
	none := genlog.Generation[record.Volume]{}
	var from copied
	var holder nameHolder
	var nameErr, sourceErr error
	// The source and the name are looked up together: neither needs the other.
	var g sync.WaitGroup
	g.Go(func() { from, sourceErr = m.sourceOf(ctx, o) })
	if o.Name != "" {
		holder, nameErr = m.lookupName(ctx, o.Name)
	}
	g.Wait()
	if nameErr != nil {
		return none, nameErr
	}
	// What is taken now is not worth a record. This comes before the source's error: an earlier try of the request may have
	// been answered by nobody, and its source may be gone by now.
	if holder.taken {
		return m.sameRequest(ctx, o, &nameTakenError{name: o.Name, holder: holder.volume})
	}
	if sourceErr != nil {
		return none, sourceErr
	}
	from, err := from.fit(o)
	if err != nil {
		return none, err
	}
	return m.createFrom(ctx, o, from, holder)
}

// sourceOf reads what a new volume is to be a copy of, after having it flushed if that was asked for.
func (m *Manager) sourceOf(ctx context.Context, o CreateOptions) (copied, error) {
	switch o.Source.kind {
	case sourceCheckpoint:
		return m.readCopy(ctx, record.Origin{Checkpoint: o.Source.ref})
	case sourceVolume:
		gen, err := m.find(ctx, o.Source.ref)
		if err == nil && o.Flush {
			gen, err = m.flush(ctx, gen)
		}
		if err != nil {
			return copied{}, err
		}
		return m.copyVolume(gen)
	}
	return m.r.base(ctx, o.Size)
}

// fit checks what is asked for against what the source is, and returns the copy at the size that was asked for.
func (c copied) fit(o CreateOptions) (copied, error) {
	switch {
	case o.Size != 0 && o.Size < c.stack.VirtualSize:
		return c, fmt.Errorf("%w: size %d: the source has %d bytes and a copy can only be larger",
			ErrInvalid, o.Size, c.stack.VirtualSize)
	case o.Mode == ReadOnly && c.content.Consistency != record.Clean:
		return c, &NotCleanError{Source: c.describe(), Generation: c.origin.Generation}
	case o.Size != 0:
		c.stack.VirtualSize = o.Size
	}
	return c, nil
}

func (c copied) describe() string {
	if c.origin.Checkpoint != "" {
		return "checkpoint " + c.origin.Checkpoint
	}
	return "volume " + c.origin.Volume
}

// freshIDTries is how often generation 1 is sent under another id after the store did not say whether it took it.
const freshIDTries = 3

// createFrom appends the record, claims the name, checks the references again and makes the volume ready.
func (m *Manager) createFrom(ctx context.Context, o CreateOptions, from copied, holder nameHolder) (
	genlog.Generation[record.Volume], error) {
	if err := m.allow(ctx, Demand{Op: "create", Volumes: 1, ProvisionedBytes: from.stack.VirtualSize}); err != nil {
		return genlog.Generation[record.Volume]{}, err
	}
	child, log, err := m.createRecord(ctx, o, from)
	if err != nil {
		return child, err
	}
	claim := unnamed
	if o.Name != "" {
		s := child.State
		want := record.Name{Volume: s.ID, Mode: s.Mode, CreatedAt: s.CreatedAt, Origin: s.Origin}
		claim = func(ctx context.Context) error { return m.claimFrom(ctx, o.Name, want, holder) }
	}
	gen, err := finish(ctx, m, log, child, claim)
	if taken := (*nameTakenError)(nil); errors.As(err, &taken) {
		return m.sameRequest(ctx, o, taken)
	}
	return gen, err
}

// createRecord appends generation 1 under a fresh id. An id whose put is in doubt is given up: the record may be there or
// still appear, uploading and known to nobody, and the collector removes it in a day.
func (m *Manager) createRecord(ctx context.Context, o CreateOptions, from copied) (
	gen genlog.Generation[record.Volume], log *genlog.Log[record.Volume], err error) {
	for range freshIDTries {
		var state record.Volume
		if state, err = m.newVolume(o, from); err != nil {
			return gen, nil, err
		}
		log = m.volumeLog(state.ID)
		gen, err = log.Create(ctx, state)
		if err == nil || !errors.Is(err, genlog.ErrInDoubt) || ctx.Err() != nil {
			return gen, log, err
		}
	}
	return gen, log, err
}

func (m *Manager) newVolume(o CreateOptions, from copied) (record.Volume, error) {
	id, err := NewID()
	if err != nil {
		return record.Volume{}, err
	}
	v := record.Volume{
		Head: record.Head{ID: id, Tenant: m.tenant, Name: o.Name, Status: record.StatusUploading,
			Labels: maps.Clone(o.Labels), CreatedAt: m.r.now(), Origin: from.origin,
			Stack: from.stack.Clone(), Content: from.content},
		Mode:        o.Mode,
		Reservation: reservation.New(),
	}
	if o.Token != "" {
		v.Token = o.Token
		v.Request, err = o.digest()
	}
	return v, err
}

// sameRequest decides what a taken name means to a caller with a token: the volume is the one that an earlier try of the
// same request made, or is making; or the token was used for something else; or the name is simply taken.
func (m *Manager) sameRequest(ctx context.Context, o CreateOptions, taken *nameTakenError) (
	genlog.Generation[record.Volume], error) {
	held := taken.holder.State
	if o.Token == "" || held.Token != o.Token {
		return taken.holder, taken
	}
	digest, err := o.digest()
	if err != nil {
		return taken.holder, err
	}
	if held.Request != digest {
		return taken.holder, &TokenMismatchError{Name: o.Name, Volume: held.ID}
	}
	if held.Status != record.StatusUploading && held.Status != record.StatusFailed {
		return taken.holder, nil
	}
	// The earlier try has not finished, and may be dead. Raising the epoch takes the volume over from it; from the check of
	// the references on, everything is done again.
	log := m.volumeLog(held.ID)
	child, err := log.AppendTo(ctx, taken.holder, record.CarryOn(held.Reservation.Epoch, newNonces(1)))
	if err != nil {
		// It finished after all, or another repetition was faster: then its result is ours.
		if now, readErr := m.read(ctx, held.ID); readErr == nil && now.State.Status == record.StatusReady {
			return now, nil
		}
		return child, err
	}
	want := record.Name{Volume: held.ID, Mode: held.Mode, CreatedAt: held.CreatedAt, Origin: held.Origin}
	return finish(ctx, m, log, child, func(ctx context.Context) error { return m.claim(ctx, o.Name, want) })
}
