package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/overlaybd/blockcache"
)

// localSettings are about what this node keeps on its own disk.
type localSettings struct {
	budget     int64
	unchecked  bool
	fetchLimit int
	bandwidth  int64
}

func (s localSettings) options() []blockcache.Option {
	return []blockcache.Option{blockcache.WithFetchLimit(s.fetchLimit), blockcache.WithBandwidth(s.bandwidth)}
}

// WithLocalBudget bounds what the node's directory takes, in bytes; 0, the default, is no bound. Copies of layers are given up
// when the directory reaches 90 % of it, the least used first. Uppers and sealed layers of drives count and are never given
// up: when they alone take 95 %, writes fail with ENOSPC until something is paused or released. The rest is kept for seals
// and the journal.
func WithLocalBudget(bytes int64) Option { return func(s *settings) { s.local.budget = bytes } }

// WithFetchLimit bounds how many ranges of layers are requested from the store at once: 16 by default.
func WithFetchLimit(n int) Option { return func(s *settings) { s.local.fetchLimit = n } }

// WithFetchBandwidth bounds how much of layers is fetched from the store, in bytes a second; 0, the default, is no bound.
func WithFetchBandwidth(bytes int64) Option { return func(s *settings) { s.local.bandwidth = bytes } }

// WithUncheckedLayers lets layers that have no checksums of their own be read by range, without having been compared with
// their digest. By default such a layer, which this library never makes, is fetched whole before its first use.
func WithUncheckedLayers() Option { return func(s *settings) { s.local.unchecked = true } }

func (s localSettings) check() error {
	switch {
	case s.budget < 0:
		return fmt.Errorf("%w: local budget %d: must be at least 0 bytes", ErrInvalid, s.budget)
	case s.fetchLimit < 1:
		return fmt.Errorf("%w: fetch limit %d: must be at least 1", ErrInvalid, s.fetchLimit)
	case s.bandwidth < 0:
		return fmt.Errorf("%w: fetch bandwidth %d: must be at least 0 bytes a second", ErrInvalid, s.bandwidth)
	}
	return nil
}

// LocalCache returns what this node keeps of stored layers, and what it has fetched since Open.
func (r *Repository) LocalCache() blockcache.Stats { return r.layers.cache.Stats() }

// Warm fetches what this node lacks of a volume's published layers, by id or name, so that a later mount reads from the local
// disk. It stops with ErrUnavailable when the local budget is used up: what others read here is not evicted for it.
func (m *Manager) Warm(ctx context.Context, ref string) error {
	if err := m.warm(ctx, ref); err != nil {
		return fmt.Errorf("warm volume %s: %w", ref, err)
	}
	return nil
}

func (m *Manager) warm(ctx context.Context, ref string) error {
	gen, err := m.find(ctx, ref)
	if err != nil {
		return err
	}
	// The newest layers first: of a budget that does not hold all, they are read most.
	layers := gen.State.Stack.Value().Layers
	for i := len(layers) - 1; i >= 0; i-- {
		l, err := m.r.layers.layer(layers[i])
		if err != nil {
			return err
		}
		err = l.Warm(ctx)
		if errors.Is(err, blockcache.ErrNoRoom) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if err = errors.Join(l.named(err), l.Close()); err != nil {
			return err
		}
	}
	return nil
}
