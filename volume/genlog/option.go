package genlog

import (
	"context"
	"math/rand/v2"
	"time"
)

// Defaults. A log never keeps fewer generations than alwaysKept: verification reads the one above the one it put.
const (
	alwaysKept = 64
	pruneEvery = 32
	keepWindow = 24 * time.Hour

	// maxRaces bounds how often one append finds its slot taken; each time another writer has made progress.
	maxRaces = 128
	// maxFaults bounds how often one append goes on after the store has failed. A store retries by itself first.
	maxFaults = 8
	maxWait   = 250 * time.Millisecond
)

// Option changes a Log's defaults.
type Option func(*config)

type config struct {
	gate       func(context.Context) error
	clock      func() time.Time
	background func(func(context.Context))
	window     time.Duration

	// The tests replace these to reach pruned slots, and lost races, in a few generations and without waiting.
	always uint64
	every  uint64
	sleep  func(context.Context, time.Duration) error
}

func defaults() config {
	return config{
		gate:   func(context.Context) error { return nil },
		clock:  time.Now,
		window: keepWindow,
		always: alwaysKept,
		every:  pruneEvery,
		sleep:  sleep,
	}
}

// WithGate sets a function that is asked once before each append; its error is returned and nothing is sent. A node
// that a newer format has locked out refuses its appends this way.
func WithGate(gate func(context.Context) error) Option {
	return func(c *config) { c.gate = gate }
}

// WithClock sets the clock that generations are stamped with, time.Now by default.
func WithClock(clock func() time.Time) Option {
	return func(c *config) { c.clock = clock }
}

// WithBackground sets the runner of pruning: it gets one function for every 32 generations appended here, to be run
// once, at any time. Without it nothing is pruned until Prune is called.
func WithBackground(run func(func(context.Context))) Option {
	return func(c *config) { c.background = run }
}

// WithKeepWindow sets how far back pruning leaves generations below the newest 64, 24 hours by default; 0 keeps none.
func WithKeepWindow(window time.Duration) Option {
	return func(c *config) { c.window = window }
}

// sleep waits, or returns the context's error as soon as it is done.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// jitter returns a random wait below a ceiling that doubles with each try, so that writers that met do not meet again.
func jitter(try int) time.Duration {
	ceiling := min(5*time.Millisecond<<min(try, 10), maxWait)
	return rand.N(ceiling)
}
