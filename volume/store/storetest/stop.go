package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandvol/sandvol/volume/store"
)

// ErrStopped is wrapped in every error of a store that was stopped.
var ErrStopped = errors.New("storetest: stopped")

// StoppedStore is a store as a process sees it that dies on the way. Make one with StopAt.
type StoppedStore struct {
	interposer
	at      int
	applied bool

	stopMu    sync.Mutex
	mutations int
}

// StopAt returns s cut off at the n-th request that changes something, counted from 1: that request fails, after it
// took effect if applied is set and without effect otherwise, and so does every later request, reads included. With n 0
// nothing is cut off, and Mutations tells how many stops there are to try.
func StopAt(s store.Store, n int, applied bool) *StoppedStore {
	f := &StoppedStore{at: n, applied: applied}
	f.interposer = interposer{inner: s, around: f.around}
	return f
}

// Mutations returns how many requests that change something were made so far, the refused ones included.
func (f *StoppedStore) Mutations() int {
	f.stopMu.Lock()
	defer f.stopMu.Unlock()
	return f.mutations
}

func (f *StoppedStore) around(ctx context.Context, c Call, do func(context.Context) error) error {
	f.stopMu.Lock()
	if c.Op.Mutates() {
		f.mutations++
	}
	stopped := f.at > 0 && f.mutations >= f.at
	last := f.applied && f.mutations == f.at && c.Op.Mutates()
	f.stopMu.Unlock()
	if !stopped {
		return do(ctx)
	}
	if last {
		// The process died before it could read the answer.
		_ = do(ctx)
	}
	return fmt.Errorf("%s %s: %w", c.Op, c.Key, ErrStopped)
}
