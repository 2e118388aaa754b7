package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// ForkAs is Fork under an id that NewID made, which the caller knows before the child exists. Repeated with the same id, it
// makes one child.
func (m *Manager) ForkAs(ctx context.Context, ref, id string, o ForkOptions) (Volume, error) {
	if err := checkForkAs(id, o); err != nil {
		return Volume{}, err
	}
	from, err := m.sourceOf(ctx, CreateOptions{Source: FromVolume(ref), Flush: o.Flush})
	if err != nil {
		return Volume{}, fmt.Errorf("fork volume %s: %w", ref, err)
	}
	v, err := m.forkAs(ctx, id, from, o)
	if err != nil {
		return Volume{}, fmt.Errorf("fork volume %s: %w", ref, err)
	}
	return v, nil
}

// checkForkAs checks what can be checked without a request.
func checkForkAs(id string, o ForkOptions) error {
	if !record.IsVolumeID(id) {
		return fmt.Errorf("%w: id %q: must be a UUID", ErrInvalid, id)
	}
	if o.Token != "" {
		return fmt.Errorf("%w: token %q: a child with an id has no token, the id does its work", ErrInvalid, o.Token)
	}
	_, err := o.create(FromVolume(id)).check()
	return err
}

// forkAs makes a child of what was read, under an id that the caller knows. Repeated with the same id, it goes on with the
// record that is there.
func (m *Manager) forkAs(ctx context.Context, id string, from copied, o ForkOptions) (Volume, error) {
	opts, err := o.create(FromVolume(from.origin.Volume)).check()
	if err == nil {
		from, err = from.fit(opts)
	}
	if err != nil {
		return Volume{}, err
	}
	if err := m.allow(ctx, Demand{Op: "create", Volumes: 1, ProvisionedBytes: from.stack.VirtualSize}); err != nil {
		return Volume{}, err
	}
	state, err := m.newVolume(opts, from)
	if err != nil {
		return Volume{}, err
	}
	state.ID = id
	log := m.volumeLog(id)
	child, err := createOrRead(ctx, log, state, func() (genlog.Generation[record.Volume], error) { return m.read(ctx, id) })
	if err != nil {
		return Volume{}, err
	}
	if have := child.State.Origin.Volume; have != from.origin.Volume {
		return Volume{}, fmt.Errorf("%w: volume %s is a copy of %q, not of %q", ErrExists, id, have, from.origin.Volume)
	}
	if child.State.Status == record.StatusReady {
		return volumeOf(child), nil
	}
	claim := unnamed
	if o.Name != "" {
		want := record.Name{Volume: id, Mode: opts.Mode, CreatedAt: child.State.CreatedAt, Origin: child.State.Origin}
		claim = func(ctx context.Context) error { return m.claim(ctx, o.Name, want) }
	}
	gen, err := finish(ctx, m, log, child, claim)
	if err != nil {
		return Volume{}, err
	}
	return volumeOf(gen), nil
}

// createOrRead appends generation 1 of a record whose id the caller chose, or reads the record that an earlier try of the
// same call left. A put in doubt is sent again under the same id: whichever of them takes the slot, the state is the same.
func createOrRead[S record.Record](ctx context.Context, log *genlog.Log[S], state S,
	read func() (genlog.Generation[S], error)) (gen genlog.Generation[S], err error) {
	for range freshIDTries {
		gen, err = log.Create(ctx, state)
		if errors.Is(err, genlog.ErrExists) {
			return read()
		}
		if err == nil || !errors.Is(err, genlog.ErrInDoubt) || ctx.Err() != nil {
			return gen, err
		}
	}
	return gen, err
}
