package blockcache

import (
	"fmt"
	"log/slog"
	"time"
)

// Defaults of a Cache.
const (
	// DefaultFetchLimit is how many requests may be under way at once.
	DefaultFetchLimit = 16
	// DefaultFetchTimeout bounds a request, besides a second for each MiB.
	DefaultFetchTimeout = 10 * time.Second
	// DefaultReadTimeout bounds a ReadAt.
	DefaultReadTimeout = 30 * time.Second
)

// Option changes a default of a Cache.
type Option func(*options)

type options struct {
	budget       int64
	fetchLimit   int64
	fetchTimeout time.Duration
	bandwidth    int64
	backoff      time.Duration
	log          *slog.Logger
}

// WithBudget bounds the bytes that are kept; 0, the default, is no bound.
func WithBudget(bytes int64) Option { return func(o *options) { o.budget = bytes } }

// WithFetchLimit bounds how many requests are under way at once.
func WithFetchLimit(n int) Option { return func(o *options) { o.fetchLimit = int64(n) } }

// WithFetchTimeout bounds how long one request may take, besides a second for each MiB that it asks for.
func WithFetchTimeout(d time.Duration) Option { return func(o *options) { o.fetchTimeout = d } }

// WithBandwidth bounds what is fetched, in bytes a second; 0, the default, is no bound.
func WithBandwidth(bytes int64) Option { return func(o *options) { o.bandwidth = bytes } }

// WithLogger sets where damage and failures of the cache's own disk are reported. By default nowhere.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

func (o *options) check() error {
	switch {
	case o.budget < 0:
		return fmt.Errorf("%w: budget %d: must be at least 0 bytes", ErrInvalid, o.budget)
	case o.fetchLimit < 1:
		return fmt.Errorf("%w: fetch limit %d: must be at least 1", ErrInvalid, o.fetchLimit)
	case o.fetchTimeout <= 0:
		return fmt.Errorf("%w: fetch timeout %v: must be above 0", ErrInvalid, o.fetchTimeout)
	case o.bandwidth < 0:
		return fmt.Errorf("%w: bandwidth %d: must be at least 0 bytes a second", ErrInvalid, o.bandwidth)
	}
	return nil
}
