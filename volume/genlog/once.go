package genlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/store"
)

// Create makes generation 1 of a log that no one else can be creating, because its prefix holds a fresh random id.
// One put, no verification: nobody can have built on this log and pruned it. It returns ErrExists if the log exists,
// and ErrInDoubt if the store's answer was lost: try again under a new id.
func (l *Log[S]) Create(ctx context.Context, state S) (Generation[S], error) {
	g, err := l.create(ctx, state)
	if err != nil {
		return Generation[S]{}, fmt.Errorf("create %s: %w", l.prefix, err)
	}
	return g, nil
}

func (l *Log[S]) create(ctx context.Context, state S) (Generation[S], error) {
	g := l.successor(Generation[S]{}, "create", state)
	putErr, err := l.putOnce(ctx, g)
	switch {
	case err != nil:
		return g, err
	case putErr == nil:
		return g, nil
	case !errors.Is(putErr, store.ErrExists):
		return g, &InDoubtError{Key: Key(l.prefix, g.Number), Cause: putErr}
	}
	// A store's client that repeats a put by itself can be told that its own first try is in the way.
	slot, err := l.Read(ctx, g.Number)
	switch {
	case err != nil:
		return g, &InDoubtError{Key: Key(l.prefix, g.Number), Cause: err}
	case slot.Nonce != g.Nonce:
		return g, ErrExists
	}
	return g, nil
}

// AppendNext applies op to base and appends the result only as the direct successor of base: it never starts again
// from a newer generation. It returns ErrSuperseded if base is not the newest, and then nothing was changed;
// ErrInDoubt if the store's answers do not tell. An op that changes nothing sends nothing and returns base.
func (l *Log[S]) AppendNext(ctx context.Context, base Generation[S], op Op[S]) (Generation[S], error) {
	g, err := l.appendNext(ctx, base, op)
	if err != nil {
		return Generation[S]{}, fmt.Errorf("append %q to %s as generation %d: %w", op.Name, l.prefix, base.Number+1, err)
	}
	return g, nil
}

func (l *Log[S]) appendNext(ctx context.Context, base Generation[S], op Op[S]) (Generation[S], error) {
	next, changed, err := op.Apply(base.State)
	if err != nil || !changed {
		return base, err
	}
	g := l.successor(base, op.Name, next)
	putErr, err := l.putOnce(ctx, g)
	if err != nil {
		return g, err
	}
	f, err := l.settleOnce(ctx, g, putErr == nil)
	switch {
	case err == nil && f == inLineage:
		l.pruneAfter(g.Number)
		return g, nil
	case err == nil && f == lost:
		return g, ErrSuperseded
	case err == nil && putErr != nil:
		err = putErr
	case err == nil:
		err = errors.New("the generations that would tell are pruned")
	}
	return g, &InDoubtError{Key: Key(l.prefix, g.Number), Cause: err}
}

// putOnce asks the gate and sends g. putErr is the store's answer; err says that nothing was sent.
func (l *Log[S]) putOnce(ctx context.Context, g Generation[S]) (putErr, err error) {
	if err := l.gate(ctx); err != nil {
		return nil, err
	}
	body, err := g.encode()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	putErr = l.st.PutIfAbsent(ctx, Key(l.prefix, g.Number), body)
	if errors.Is(putErr, store.ErrInvalidKey) {
		return nil, putErr
	}
	return putErr, nil
}

// settleOnce learns the fate of g, which was put once. Only the reads are tried again when the store fails.
func (l *Log[S]) settleOnce(ctx context.Context, g Generation[S], inSlot bool) (fate, error) {
	for try := 0; ; try++ {
		f, err := l.fateOf(ctx, g, inSlot)
		if err == nil || try+1 >= maxFaults || ctx.Err() != nil || errors.Is(err, ErrUnreadable) {
			return f, err
		}
		if err := l.sleep(ctx, jitter(try)); err != nil {
			return f, err
		}
	}
}
