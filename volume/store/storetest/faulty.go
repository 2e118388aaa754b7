package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sandvol/sandvol/volume/store"
)

// ErrInjected is wrapped in every error that Faulty makes up.
var ErrInjected = errors.New("storetest: injected fault")

// SlowDelay is how long a Slow request waits before it is sent.
const SlowDelay = 10 * time.Millisecond

// Fault is what happens to one request.
type Fault int

// The faults. Each of them can happen to a real store behind a network.
const (
	// None: the request is passed on.
	None Fault = iota
	// ErrorBefore: it fails and was never sent.
	ErrorBefore
	// ErrorAfter: it takes effect, and its reply is lost.
	ErrorAfter
	// Late: it fails now and takes effect at the next Land. A read is simply lost.
	Late
	// Slow: it waits SlowDelay, or until its context ends.
	Slow
	// Duplicate: it arrives twice. The caller is told what the first one did.
	Duplicate
	// PartialRead: a listing or a ranged read yields half and then fails; any other read fails; a write is lost
	// (ErrorBefore).
	PartialRead
)

var faultNames = [...]string{"none", "error before", "error after", "late", "slow", "duplicate", "partial read"}

func (f Fault) String() string {
	if f < 0 || int(f) >= len(faultNames) {
		return fmt.Sprintf("Fault(%d)", int(f))
	}
	return faultNames[f]
}

// Plan chooses the fault of each request. It is called by one goroutine at a time.
type Plan func(Call) Fault

// Nth is the plan that hits the n-th request of one kind, counted from 1, and no other.
func Nth(op Op, n int, f Fault) Plan {
	return func(c Call) Fault {
		if c.Op == op && c.N == n {
			return f
		}
		return None
	}
}

// Match is the plan that hits every request of one kind whose key begins with prefix. An empty op stands for all kinds.
func Match(op Op, prefix string, f Fault) Plan {
	return func(c Call) Fault {
		if (op == "" || c.Op == op) && strings.HasPrefix(c.Key, prefix) {
			return f
		}
		return None
	}
}

// Random is the plan that hits about percent of a hundred requests with one of faults. Equal seeds give equal plans for
// equal sequences of requests. Whoever uses it prints the seed.
func Random(seed uint64, percent int, faults ...Fault) Plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(Call) Fault {
		if len(faults) == 0 || rng.IntN(100) >= percent {
			return None
		}
		return faults[rng.IntN(len(faults))]
	}
}

// FaultyStore is a store whose requests go wrong as planned. Make one with Faulty.
type FaultyStore struct {
	interposer
	plan Plan

	faultMu  sync.Mutex
	injected int
	late     []func(context.Context) error
}

// Faulty returns s with the faults of plan.
func Faulty(s store.Store, plan Plan) *FaultyStore {
	f := &FaultyStore{plan: plan}
	f.interposer = interposer{inner: s, around: f.around}
	return f
}

// Injected returns how many requests were hit so far.
func (f *FaultyStore) Injected() int {
	f.faultMu.Lock()
	defer f.faultMu.Unlock()
	return f.injected
}

// Land sends every Late request, in the order in which they were made, and returns how many took effect. What became of
// the others is no news: their callers were told long ago that it is unknown.
func (f *FaultyStore) Land(ctx context.Context) int {
	f.faultMu.Lock()
	late := f.late
	f.late = nil
	f.faultMu.Unlock()
	landed := 0
	for _, do := range late {
		if do(ctx) == nil {
			landed++
		}
	}
	return landed
}

func (f *FaultyStore) around(ctx context.Context, c Call, do func(context.Context) error) error {
	fault := f.choose(c, do)
	injected := fmt.Errorf("%s %s: %s: %w", c.Op, c.Key, fault, ErrInjected)
	switch fault {
	case ErrorBefore, Late:
		return injected
	case ErrorAfter:
		// Its own answer is what the caller must not learn.
		_ = do(ctx)
		return injected
	case Slow:
		if err := wait(ctx, SlowDelay); err != nil {
			return fmt.Errorf("%s %s: %w", c.Op, c.Key, err)
		}
		return do(ctx)
	case Duplicate:
		err := do(ctx)
		// The second arrival answers to nobody.
		_ = do(ctx)
		return err
	case PartialRead:
		if c.Op.Mutates() {
			return injected
		}
		if err := do(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", injected, errPartial)
	}
	return do(ctx)
}

func (f *FaultyStore) choose(c Call, do func(context.Context) error) Fault {
	f.faultMu.Lock()
	defer f.faultMu.Unlock()
	fault := f.plan(c)
	if fault != None {
		f.injected++
	}
	if fault == Late && c.Op.Mutates() {
		f.late = append(f.late, do)
	}
	return fault
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
