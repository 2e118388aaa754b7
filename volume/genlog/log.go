package genlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/store"
)

// Log is one record's log. Its methods may be called concurrently, from any number of nodes.
type Log[S any] struct {
	st     store.Store
	prefix string
	config
}

// New returns the log under prefix, which ends in a slash. It sends no request.
func New[S any](st store.Store, prefix string, opts ...Option) *Log[S] {
	c := defaults()
	for _, opt := range opts {
		opt(&c)
	}
	return &Log[S]{st: st, prefix: prefix, config: c}
}

// Newest returns the newest generation, by one listing and one get, or ErrNotFound if there is none.
func (l *Log[S]) Newest(ctx context.Context) (Generation[S], error) {
	// A listed generation can be gone when it is read only if 64 newer ones were appended and pruning ran in between:
	// listing again finds them. A process that meets this a third time is hardly running, and reports it.
	g, err := l.newest(ctx)
	for try := 1; try < 3 && errors.Is(err, errGone); try++ {
		g, err = l.newest(ctx)
	}
	return g, err
}

// errGone: a generation was listed and then not there.
var errGone = errors.New("listed generation disappeared")

func (l *Log[S]) newest(ctx context.Context) (Generation[S], error) {
	n, err := l.NewestNumber(ctx)
	if err != nil {
		return Generation[S]{}, err
	}
	g, err := l.Read(ctx, n)
	if errors.Is(err, ErrNotFound) {
		// Not ErrNotFound: there is a log, and a caller must not take it for absent.
		return Generation[S]{}, fmt.Errorf("read %s: %w", Key(l.prefix, n), errGone)
	}
	return g, err
}

// NewestNumber returns the number of the newest generation, by one listing, or ErrNotFound if there is none.
func (l *Log[S]) NewestNumber(ctx context.Context) (uint64, error) {
	for entry, err := range l.st.List(ctx, l.prefix, "", 1) {
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", l.prefix, err)
		}
		return l.number(entry.Key)
	}
	return 0, fmt.Errorf("%w: no generation under %s", ErrNotFound, l.prefix)
}

// number returns the generation that key belongs to. A key of another form is something that this version does not
// understand: passing over it could mean to act on an old state.
func (l *Log[S]) number(key string) (uint64, error) {
	prefix, n, ok := ParseKey(key)
	if !ok || prefix != l.prefix {
		return 0, &UnreadableError{Key: key, Reason: errors.New("not a generation's key")}
	}
	return n, nil
}

// Read returns what is in the slot of generation n, by one get, or ErrNotFound. Below the newest 64 generations a
// slot may hold a ghost: ReadKept tells.
func (l *Log[S]) Read(ctx context.Context, n uint64) (Generation[S], error) {
	key := Key(l.prefix, n)
	body, err := l.st.Get(ctx, key)
	if errors.Is(err, store.ErrNotExist) {
		return Generation[S]{}, fmt.Errorf("%w: no generation %d under %s", ErrNotFound, n, l.prefix)
	}
	if err != nil {
		return Generation[S]{}, fmt.Errorf("read %s: %w", key, err)
	}
	return decode[S](key, n, body)
}

// ReadKept returns the generation that k, an entry of the newest generation's Kept, names. It returns ErrNotFound if
// the slot is empty or holds another nonce.
func (l *Log[S]) ReadKept(ctx context.Context, k Kept) (Generation[S], error) {
	g, err := l.Read(ctx, k.Number)
	if err == nil && g.Nonce != k.Nonce {
		return Generation[S]{}, fmt.Errorf("%w: generation %d under %s is not the one kept", ErrNotFound, k.Number, l.prefix)
	}
	return g, err
}

// successor returns the generation that follows base with the given state. A zero base makes generation 1.
func (l *Log[S]) successor(base Generation[S], op string, state S) Generation[S] {
	g := Generation[S]{
		// Members of a newer format are carried along, so what is written here still asks for what they asked for.
		Format:    max(base.Format, format),
		MinReader: max(base.MinReader, minReader),
		Number:    base.Number + 1,
		Nonce:     rand.Text(),
		Previous:  base.Nonce,
		// Round drops the monotonic reading: the value equals what a reader decodes.
		At:      l.clock().UTC().Round(0),
		Op:      op,
		Kept:    []Kept{},
		State:   state,
		Unknown: base.Unknown,
	}
	if base.Number > 0 {
		g.Kept = thin(base.Kept, base.name(), l.window)
	}
	return g
}
