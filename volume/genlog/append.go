package genlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandvol/sandvol/volume/store"
)

// Op is one change of a record.
type Op[S any] struct {
	// Name says what is done, in the generation and in errors.
	Name string
	// Apply returns the state after the op. It must be pure: it is run again on a newer state when another writer came
	// first, and it must not change memory that its argument shares. It must be idempotent: on a state that holds its
	// effect it reports changed as false, because a put that timed out may have arrived all the same. What it expects
	// (an epoch, an owner, an upload key) it compares with the state, and refuses with an error that the append returns.
	Apply func(S) (next S, changed bool, err error)
}

// Append applies op to the newest state and appends the result. If Apply reports no change, it appends nothing and
// returns the newest generation. It costs a listing, a get, a put and a listing, more only when other writers
// interfere. It returns ErrNotFound if the log has no generation, Apply's error, or one of this package's.
func (l *Log[S]) Append(ctx context.Context, op Op[S]) (Generation[S], error) {
	return l.run(ctx, op, nil, false)
}

// AppendTo is Append by a caller that knows the newest generation: its first try starts from known without reading, and
// costs a put and a listing. If known is not the newest any more, it goes on like Append.
func (l *Log[S]) AppendTo(ctx context.Context, known Generation[S], op Op[S]) (Generation[S], error) {
	return l.run(ctx, op, &known, false)
}

// AppendOrCreate is Append for logs that begin with their first change: in an empty log, op is applied to the zero S
// and makes generation 1. If it reports no change there, the zero Generation is returned.
func (l *Log[S]) AppendOrCreate(ctx context.Context, op Op[S]) (Generation[S], error) {
	return l.run(ctx, op, nil, true)
}

func (l *Log[S]) run(ctx context.Context, op Op[S], known *Generation[S], orCreate bool) (Generation[S], error) {
	if err := l.gate(ctx); err != nil {
		return Generation[S]{}, fmt.Errorf("append %q to %s: %w", op.Name, l.prefix, err)
	}
	a := appending[S]{Log: l, op: op, orCreate: orCreate}
	g, err := a.loop(ctx, known)
	if err != nil {
		return Generation[S]{}, fmt.Errorf("append %q to %s: %w", op.Name, l.prefix, err)
	}
	if a.owns(g) {
		l.pruneAfter(g.Number)
	}
	return g, nil
}

// appending is one append under way.
type appending[S any] struct {
	*Log[S]
	op       Op[S]
	orCreate bool
	// sent are the puts that are not known to be lost. Even one that was answered ErrExists stays: a store's client that
	// repeats a put by itself can be told that its own first try is in the way.
	sent   []sent[S]
	races  int
	faults int
}

// sent is one put: its body, and whether the store said that it succeeded.
type sent[S any] struct {
	Generation[S]
	inSlot bool
}

// verdict is what one try has come to.
type verdict int

const (
	done    verdict = iota // the effect is in the lineage
	refused                // final
	raced                  // another writer came first: read again
	faulted                // the store failed: read again, a few times
)

func (a *appending[S]) loop(ctx context.Context, known *Generation[S]) (Generation[S], error) {
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return Generation[S]{}, a.giveUp(err)
		}
		g, v, err := a.try(ctx, known)
		known = nil // it was not the newest, or its successor is in doubt
		switch v {
		case done:
			return g, nil
		case refused:
			return Generation[S]{}, err
		case raced:
			a.races++
		case faulted:
			if a.faults++; a.faults >= maxFaults || ctx.Err() != nil {
				return Generation[S]{}, a.giveUp(err)
			}
		}
		if err := a.sleep(ctx, jitter(try)); err != nil {
			return Generation[S]{}, a.giveUp(err)
		}
	}
}

// try goes through one round of read, apply, put and verify.
func (a *appending[S]) try(ctx context.Context, known *Generation[S]) (Generation[S], verdict, error) {
	base, err := a.base(ctx, known)
	if err != nil {
		return a.failed(err)
	}
	if own, ok := a.settle(base); ok {
		return a.confirm(ctx, own)
	}
	if a.races > maxRaces {
		return a.refuse(ctx, ErrContended)
	}
	next, changed, err := a.op.Apply(base.State)
	if err != nil {
		return a.refuse(ctx, err)
	}
	if !changed && base.Number == 0 {
		return base, done, nil
	}
	if !changed {
		// The effect is in base, but is base in the lineage? A body read long after it was listed may be a ghost.
		return a.confirm(ctx, base)
	}
	return a.put(ctx, a.successor(base, a.op.Name, next))
}

// base returns the generation to build on.
func (a *appending[S]) base(ctx context.Context, known *Generation[S]) (Generation[S], error) {
	if known != nil {
		return *known, nil
	}
	g, err := a.Newest(ctx)
	if a.orCreate && errors.Is(err, ErrNotFound) {
		return Generation[S]{}, nil
	}
	return g, err
}

// settle compares base with what was sent. It returns the put that base proves to be in the lineage, being it or
// naming it, and forgets those that it proves lost.
func (a *appending[S]) settle(base Generation[S]) (Generation[S], bool) {
	for _, s := range a.sent {
		if s.Nonce == base.Nonce || s.Nonce == base.Previous {
			return s.Generation, true
		}
	}
	a.sent = slices.DeleteFunc(a.sent, func(s sent[S]) bool {
		return s.Number == base.Number || s.Number+1 == base.Number
	})
	return Generation[S]{}, false
}

// put sends g and verifies it. A retry after it runs Apply again: the body of g is never sent twice, because it may be
// overtaken by a generation that it was not built on.
func (a *appending[S]) put(ctx context.Context, g Generation[S]) (Generation[S], verdict, error) {
	body, err := g.encode()
	if err != nil {
		return a.refuse(ctx, err)
	}
	err = a.st.PutIfAbsent(ctx, Key(a.prefix, g.Number), body)
	if !errors.Is(err, store.ErrInvalidKey) {
		a.sent = append(a.sent, sent[S]{g, err == nil})
	}
	switch {
	case errors.Is(err, store.ErrExists):
		return Generation[S]{}, raced, nil
	case err != nil:
		return a.failed(fmt.Errorf("put %s: %w", Key(a.prefix, g.Number), err))
	}
	return a.confirm(ctx, g)
}

// confirm ends the append with g, whose body was just read or successfully put, if g is in the lineage.
func (a *appending[S]) confirm(ctx context.Context, g Generation[S]) (Generation[S], verdict, error) {
	switch f, err := a.fateOf(ctx, g, true); {
	case err != nil:
		return a.failed(err)
	case f == inLineage:
		return g, done, nil
	}
	return Generation[S]{}, raced, nil
}

// refuse ends the append with cause, unless a put that was in doubt turns out to have taken effect before the state
// came to be one that refuses the op: then the append has succeeded.
func (a *appending[S]) refuse(ctx context.Context, cause error) (Generation[S], verdict, error) {
	for _, s := range a.sent {
		switch f, err := a.fateOf(ctx, s.Generation, s.inSlot); {
		case err != nil:
			return a.failed(err)
		case f == inLineage:
			return s.Generation, done, nil
		case f == open:
			return Generation[S]{}, refused, &InDoubtError{Key: Key(a.prefix, s.Number), Cause: cause}
		}
	}
	return Generation[S]{}, refused, cause
}

// failed sorts an error of a read or a put: most are the store's, and worth another try.
func (a *appending[S]) failed(err error) (Generation[S], verdict, error) {
	for _, final := range []error{ErrNotFound, ErrUnreadable, store.ErrInvalidKey} {
		if errors.Is(err, final) {
			return Generation[S]{}, refused, a.giveUp(err)
		}
	}
	return Generation[S]{}, faulted, err
}

// giveUp returns err, as doubt if something was sent that may have taken effect.
func (a *appending[S]) giveUp(err error) error {
	if len(a.sent) == 0 {
		return err
	}
	return &InDoubtError{Key: Key(a.prefix, a.sent[len(a.sent)-1].Number), Cause: err}
}

// owns reports whether g was put by this append.
func (a *appending[S]) owns(g Generation[S]) bool {
	return slices.ContainsFunc(a.sent, func(s sent[S]) bool { return s.Nonce == g.Nonce })
}
