package blockcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// longest is how many chunks one request of Prefetch asks for, at most: 64 MiB.
	longest = 256
	// parallel is how many requests Prefetch and Warm have under way.
	parallel = 4
	// tries is how often they ask a store that fails.
	tries = 3
)

// Layer is a handle on one layer. Its methods may be called concurrently.
type Layer struct {
	e      *entry
	fetch  Fetcher
	once   sync.Once
	closed chan struct{}
}

// Size returns how many bytes are stored of the layer.
func (l *Layer) Size() int64 { return l.e.size }

// ReadAt is ReadWithin with DefaultReadTimeout.
func (l *Layer) ReadAt(p []byte, off int64) (int, error) {
	return l.ReadWithin(p, off, DefaultReadTimeout, nil)
}

// ReadWithin reads from what is kept, and fetches and keeps what is not. A store that fails is asked again until the timeout,
// when the error is os.ErrDeadlineExceeded with the store's last; after done is closed it is context.Canceled, after Close
// os.ErrClosed. A read of what is kept depends on none of them. At the end of the layer it is io.EOF.
func (l *Layer) ReadWithin(p []byte, off int64, timeout time.Duration, done <-chan struct{}) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("%w: offset %d: must be at least 0", ErrInvalid, off)
	}
	want := p[:max(0, min(int64(len(p)), l.e.size-off))]
	if n, err = l.e.cached(want, off); n < len(want) && err == nil {
		var m int
		m, err = l.readMissing(want[n:], off+int64(n), timeout, done)
		n += m
	}
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// readMissing is ReadWithin from a chunk on that is not kept.
func (l *Layer) readMissing(p []byte, off int64, timeout time.Duration, done <-chan struct{}) (n int, err error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var last error // of the store
	for n < len(p) {
		at := off + int64(n)
		m, err := l.e.cached(p[n:], at)
		if n += m; m > 0 || err != nil {
			if err != nil {
				return n, err
			}
			continue
		}
		i := at / ChunkSize
		f, err := l.join(i, l.e.ahead(i, chunksOf(off+int64(len(p)))-i))
		if err != nil {
			return n, err
		}
		if f == nil {
			continue // it has just come
		}
		select {
		case <-f.done:
			err = f.err
		case <-l.closed:
			err = os.ErrClosed
		case <-done:
			err = context.Canceled
		case <-timer.C:
			err = expired(timeout, last)
		}
		l.e.leave(f)
		switch {
		case err == nil:
			// From memory: the chunk may be evicted already, or had no room.
			n += copy(p[n:], f.buf[at-f.first*ChunkSize:])
		case !l.mayRetry(f, err):
			return n, err
		default:
			last = err
		}
	}
	return n, nil
}

func expired(timeout time.Duration, last error) error {
	if last == nil {
		return fmt.Errorf("%w: no answer in %v", os.ErrDeadlineExceeded, timeout)
	}
	return fmt.Errorf("%w: no answer in %v, the last one was: %w", os.ErrDeadlineExceeded, timeout, last)
}

// mayRetry reports whether err is the store's, and may pass.
func (l *Layer) mayRetry(f *flight, err error) bool {
	select {
	case <-f.done:
	default:
		return false // the waiter's own reason
	}
	return f.err != nil && err == f.err && !errors.Is(err, ErrFinal) && !errors.Is(err, os.ErrClosed) && l.e.c.ctx.Err() == nil
}

// Prefetch fetches what is not kept of [off, off+n), in one request if it is at most 64 MiB and nothing of it is kept. A
// store that fails three times fails it.
func (l *Layer) Prefetch(ctx context.Context, off, n int64) error {
	first, end := max(0, off)/ChunkSize, chunksOf(min(off+n, l.e.size))
	return l.fetchAll(ctx, first, end, longest, nil)
}

// Warm fetches the whole layer, in requests of 4 MiB and beside what readers fetch. It is ErrNoRoom when the budget is used
// up: it takes nothing away from others.
func (l *Layer) Warm(ctx context.Context) error {
	return l.fetchAll(ctx, 0, int64(len(l.e.chunks)), maxAhead, func(n int64) error {
		c := l.e.c
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.budget > 0 && c.used+n > c.budget {
			return fmt.Errorf("%w: %d of %d bytes are used", ErrNoRoom, c.used, c.budget)
		}
		return nil
	})
}

// fetchAll fetches what is not kept of the chunks [first, end), at most limit with one request, each of which room allows.
func (l *Layer) fetchAll(ctx context.Context, first, end, limit int64, room func(int64) error) (err error) {
	for range tries {
		if err = l.fetchOnce(ctx, first, end, limit, room); err == nil || errors.Is(err, ErrFinal) || errors.Is(err, ErrNoRoom) {
			return err
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	return err
}

func (l *Layer) fetchOnce(ctx context.Context, first, end, limit int64, room func(int64) error) (err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := first; i < end && gctx.Err() == nil; {
		if l.e.chunks[i].Load() != nil {
			i++
			continue
		}
		n := min(limit, end-i)
		if room != nil {
			if err = room(n * ChunkSize); err != nil {
				break
			}
		}
		var f *flight
		if f, err = l.join(i, n); err != nil {
			break
		}
		if f != nil {
			i = f.end
			g.Go(func() error { return l.await(gctx, f) })
		}
	}
	if gerr := g.Wait(); err == nil {
		err = gerr
	}
	return err
}

func (l *Layer) await(ctx context.Context, f *flight) error {
	defer l.e.leave(f)
	select {
	case <-f.done:
		return f.err
	case <-l.closed:
		return os.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Refetch drops what is kept of [off, off+n): a reader has found that it is not what the layer should be. The next read asks
// the store.
func (l *Layer) Refetch(off, n int64) { l.e.dropRange(off, n) }

// Verify fetches the whole layer and has check compare it with its digest, which must be done before the first use of a layer
// whose parts cannot be checked. While a handle is open after that, no part of it is evicted, and a part that is damaged on
// disk is replaced by the same bytes only. Where check fails the layer is fetched once more. What was checked before, and is
// still here, is not checked again. It is ErrNoRoom if the budget cannot hold the layer.
func (l *Layer) Verify(ctx context.Context, check func(io.Reader) error) (err error) {
	for range 2 {
		if l.markWhole(false) {
			return nil
		}
		if budget := l.e.c.Stats().Budget; budget > 0 && l.e.size > budget {
			return fmt.Errorf("%w: %d bytes are needed at once, of %d", ErrNoRoom, l.e.size, budget)
		}
		if err = l.fetchAll(ctx, 0, int64(len(l.e.chunks)), maxAhead, nil); err != nil {
			return err
		}
		if err = check(io.NewSectionReader(&until{l, ctx}, 0, l.e.size)); err == nil {
			if !l.markWhole(true) {
				return fmt.Errorf("%w: %d bytes are needed at once", ErrNoRoom, l.e.size)
			}
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		l.e.dropRange(0, l.e.size)
	}
	return err
}

// markWhole keeps the layer from being evicted in part. It reports whether all of it is kept and was compared with its digest,
// just now or earlier.
func (l *Layer) markWhole(checked bool) bool {
	e, c := l.e, l.e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	all := e.kept == e.size
	e.whole = !checked || all
	if checked && all && !e.verified {
		e.verified = true
		if err := e.writeHeader(true); err != nil {
			c.opts.log.Warn("the next open will check a layer again", "layer", e.id, "error", err)
		}
	}
	return all && e.verified
}

// until reads under a context.
type until struct {
	l   *Layer
	ctx context.Context
}

func (u *until) ReadAt(p []byte, off int64) (int, error) {
	return u.l.ReadWithin(p, off, DefaultReadTimeout, u.ctx.Done())
}

// Close ends reads that wait. Fetches go on as long as others wait for them.
func (l *Layer) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.e.c.release(l.e)
	})
	return nil
}
