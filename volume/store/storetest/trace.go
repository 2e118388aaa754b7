package storetest

import (
	"context"
	"slices"
	"sync"

	"github.com/sandvol/sandvol/volume/store"
)

// TracedStore records the requests on a store. Make one with Trace.
type TracedStore struct {
	interposer

	traceMu sync.Mutex
	calls   []Call
	// rounds is the greatest round among the requests that have ended.
	rounds int
}

// Trace returns s with every request on it recorded.
func Trace(s store.Store) *TracedStore {
	t := &TracedStore{}
	t.interposer = interposer{inner: s, around: t.around}
	return t
}

func (t *TracedStore) around(ctx context.Context, c Call, do func(context.Context) error) error {
	t.traceMu.Lock()
	t.calls = append(t.calls, c)
	round := t.rounds + 1
	t.traceMu.Unlock()
	err := do(ctx)
	t.traceMu.Lock()
	t.rounds = max(t.rounds, round)
	t.traceMu.Unlock()
	return err
}

// Calls returns the requests since the start or the last Reset, in the order in which they began.
func (t *TracedStore) Calls() []Call {
	t.traceMu.Lock()
	defer t.traceMu.Unlock()
	return slices.Clone(t.calls)
}

// Count returns the number of requests of the given kinds, or of all kinds when none is given.
func (t *TracedStore) Count(ops ...Op) int {
	n := 0
	for _, c := range t.Calls() {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			n++
		}
	}
	return n
}

// Rounds returns how many requests followed one another: the length of the longest run of requests in which each began
// after the one before it had ended. It is what an operation costs on a store whose every request takes one round trip.
func (t *TracedStore) Rounds() int {
	t.traceMu.Lock()
	defer t.traceMu.Unlock()
	return t.rounds
}

// Reset forgets what was recorded.
func (t *TracedStore) Reset() {
	t.traceMu.Lock()
	defer t.traceMu.Unlock()
	t.calls, t.rounds = nil, 0
}
