package e2bhttp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandvol/sandvol/volume"
)

// Limits bound what a tenant may have. Zero is no limit.
type Limits struct {
	// Volumes is how many.
	Volumes int
	// SizeMB is the sum of their sizes, in MiB, whatever they share or leave unwritten.
	SizeMB int64
}

// admit checks that a tenant may have volumes of these names more, each of a size, and keeps others of the tenant from being
// admitted until leave is called: two that were counted at the same time would both fit. A repeated request, which has a
// token, finds some or all of them there.
func (c *call) admit(token string, size int64, names ...string) (leave func(), err error) {
	if c.h.limits == nil {
		return func() {}, nil
	}
	ctx := c.r.Context()
	count := len(names)
	if token != "" {
		if count, err = c.absent(ctx, names); err != nil || count == 0 {
			return func() {}, err
		}
	}
	limits, err := c.h.limits(ctx, c.tenant)
	if err != nil || limits == (Limits{}) {
		return func() {}, err
	}
	if leave, err = c.h.turns.take(ctx, c.tenant); err != nil {
		return nil, err
	}
	if err := c.count(limits, count, size); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// absent counts the names that no volume has.
func (c *call) absent(ctx context.Context, names []string) (n int, err error) {
	for _, name := range names {
		_, err := c.volumes.Get(ctx, name)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			n++
		case err != nil:
			return 0, err
		}
	}
	return n, nil
}

func (c *call) count(limits Limits, volumes int, size int64) error {
	total := int64(volumes) * (size / volume.MiB)
	for v, err := range c.volumes.List(c.r.Context(), volume.ListOptions{}) {
		if err != nil {
			return err
		}
		volumes++
		total += v.Size / volume.MiB
	}
	if limits.Volumes > 0 && volumes > limits.Volumes {
		return fmt.Errorf("%w: volumes: %d wanted in all, at most %d allowed", ErrQuota, volumes, limits.Volumes)
	}
	if limits.SizeMB > 0 && total > limits.SizeMB {
		return fmt.Errorf("%w: sizeMB: %d wanted in all, at most %d allowed", ErrQuota, total, limits.SizeMB)
	}
	return nil
}

// turns lets one caller at a time in, for each tenant.
type turns struct {
	mu sync.Mutex
	by map[string]*turn
}

type turn struct {
	taken chan struct{} // holds one value while somebody is in
	users int           // guarded by turns.mu
}

func (t *turns) take(ctx context.Context, tenant string) (leave func(), err error) {
	t.mu.Lock()
	if t.by == nil {
		t.by = map[string]*turn{}
	}
	own := t.by[tenant]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		t.by[tenant] = own
	}
	own.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.by, tenant)
		}
	}
	select {
	case own.taken <- struct{}{}:
		return func() { <-own.taken; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}
