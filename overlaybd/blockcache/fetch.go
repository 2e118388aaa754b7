package blockcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
)

// flight is one request under way for a run of chunks, for however many wait for it.
type flight struct {
	first, end int64 // chunks
	buf        []byte
	cancel     context.CancelFunc
	done       chan struct{}
	err        error // when done

	waiters int  // under entry.mu
	landed  bool // the bytes are here: it is not given up any more
}

// join returns the fetch that will bring chunk i, and begins it if there is none: for all chunks from i on, at most limit,
// that are neither kept nor under way. It is nil if the chunk is kept by now. The caller waits for it, and leaves it.
func (l *Layer) join(i, limit int64) (*flight, error) {
	e := l.e
	// A fetch outlives its caller, so it has a reference of its own.
	if _, err := e.c.retain(e.id, e.size); err != nil {
		return nil, err
	}
	e.mu.Lock()
	f := e.flights[i]
	if f != nil || e.chunks[i].Load() != nil {
		if f != nil {
			f.waiters++
		}
		e.mu.Unlock()
		e.c.release(e)
		return f, nil
	}
	defer e.mu.Unlock()
	end := i + 1
	for end < min(i+limit, int64(len(e.chunks))) && e.flights[end] == nil && e.chunks[end].Load() == nil {
		end++
	}
	f = &flight{first: i, end: end, done: make(chan struct{}), waiters: 1}
	f.buf = make([]byte, min(end*ChunkSize, e.size)-i*ChunkSize)
	for j := i; j < end; j++ {
		e.flights[j] = f
	}
	ctx, cancel := context.WithCancel(e.c.ctx)
	f.cancel = cancel
	if !e.c.goFetch(func() { e.fly(ctx, f, l.fetch) }) {
		cancel()
		e.forget(f)
		e.c.release(e)
		return nil, fmt.Errorf("blockcache: %w", os.ErrClosed)
	}
	return f, nil
}

// goFetch runs f, unless the cache is closed: then nobody would wait for it.
func (c *Cache) goFetch(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(f)
	return true
}

// ahead returns how many chunks to fetch for a reader that lacks chunk i and needs need of them: more each time, if it reads
// on where the last fetch ended.
func (e *entry) ahead(i, need int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i == e.next && i > 0 {
		e.window = min(2*e.window, maxAhead)
	} else {
		e.window = 1
	}
	e.window = max(e.window, min(need, maxAhead))
	e.next = i + max(need, e.window)
	return max(need, e.window)
}

// maxAhead is how many chunks a sequential reader gets at a time, at most: 4 MiB.
const maxAhead = 16

// leave is for a waiter that has its bytes, or does not want them any more. A fetch without waiters is given up.
func (e *entry) leave(f *flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.waiters--; f.waiters == 0 && !f.landed {
		f.cancel()
		e.forget(f)
	}
}

// forget makes room for another fetch of the same chunks. Called with mu.
func (e *entry) forget(f *flight) {
	for i := f.first; i < f.end; i++ {
		if e.flights[i] == f {
			delete(e.flights, i)
		}
	}
}

// fly carries a fetch out, stores what came and tells the waiters.
func (e *entry) fly(ctx context.Context, f *flight, fetch Fetcher) {
	defer close(f.done)
	defer f.cancel()
	err := e.request(ctx, fetch, f.buf, f.first*ChunkSize)
	if err != nil && e.c.ctx.Err() != nil {
		err = fmt.Errorf("blockcache: %w", os.ErrClosed)
	}
	e.mu.Lock()
	f.landed = err == nil && f.waiters > 0
	e.mu.Unlock()
	// Before the waiters are told, so that a reader who finds neither fetch nor chunk begins a new one rightly.
	if f.landed {
		err = e.store(f)
	}
	e.mu.Lock()
	e.forget(f)
	f.err = err
	e.mu.Unlock()
	e.c.release(e)
}

// request sends one request when there is a free slot and the store is not known to be down.
func (e *entry) request(ctx context.Context, fetch Fetcher, p []byte, off int64) error {
	c := e.c
	if err := e.turn(ctx); err != nil {
		return err
	}
	if err := c.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.slots.Release(1)
	for n := len(p); c.pace != nil && n > 0; n -= ChunkSize {
		if err := c.pace.WaitN(ctx, min(n, ChunkSize)); err != nil {
			return err
		}
	}
	timed, cancel := context.WithTimeout(ctx, c.opts.fetchTimeout+time.Duration(len(p)>>20)*time.Second)
	defer cancel()
	c.fetches.Add(1)
	n, err := fetch.ReadRange(timed, p, off)
	switch {
	case n == len(p):
		err = nil
	case err == nil || errors.Is(err, io.EOF):
		err = fmt.Errorf("%d of %d bytes at %d: %w", n, len(p), off, io.ErrUnexpectedEOF)
	case ctx.Err() != nil:
		return err // given up: it says nothing about the store
	}
	c.fetched.Add(int64(n))
	e.note(err)
	return err
}

// store puts what was fetched onto the disk. Only a chunk that is known to be another is an error: what cannot be kept is
// still good for those who wait.
func (e *entry) store(f *flight) error {
	c, all, n := e.c, sumsOfChunks(f.buf), int64(len(f.buf))
	c.mu.Lock()
	for i, s := range all {
		if want, ok := e.want[f.first+int64(i)]; ok && want != s {
			c.mu.Unlock()
			return fmt.Errorf("%w: %d bytes at %d are not those that were compared with the digest", ErrFinal,
				e.chunkLength(f.first+int64(i)), (f.first+int64(i))*ChunkSize)
		}
	}
	room := c.makeRoom(n)
	if room {
		c.used += n // before the bytes are there, so that all who write together stay within the budget
	}
	c.mu.Unlock()
	if !room {
		return nil
	}
	_, err := e.data.WriteAt(f.buf, f.first*ChunkSize)
	if err == nil {
		err = writeEntries(e.maps, f.first, all)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.used -= n
		c.opts.log.Warn("a fetched range cannot be kept", "layer", e.id, "bytes", n, "error", err)
		return nil
	}
	for i, s := range all {
		// Not used yet: what is read once must not push out what is read again and again.
		ch := &chunk{e: e, index: f.first + int64(i), sums: s}
		if e.chunks[ch.index].Load() != nil { // an earlier fetch that was given up too late
			c.used -= ch.length()
			continue
		}
		e.add(ch)
		delete(e.want, ch.index)
	}
	return nil
}

const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// health is what a layer's fetches know of its store.
type health struct {
	failures int // in a row
	retryAt  time.Time
	up       chan struct{} // closed when a request succeeds again; nil: none has failed
}

// turn waits until a request may be sent. While the store fails, one is, at growing intervals: for all others it is enough to
// hear of its result.
func (e *entry) turn(ctx context.Context) error {
	for {
		e.mu.Lock()
		h := &e.health
		wait := time.Until(h.retryAt)
		if h.failures == 0 || wait <= 0 {
			h.retryAt = time.Now().Add(e.pause()) // this one goes; the others wait for what it finds
			e.mu.Unlock()
			return ctx.Err()
		}
		up := h.up
		e.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-up:
		case <-timer.C:
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// pause returns how long to wait after as many failures as there were. Called with mu.
func (e *entry) pause() time.Duration {
	d := min(e.c.opts.backoff<<min(e.health.failures, 10), maxBackoff)
	return d/2 + rand.N(d/2) // or all nodes would ask at once
}

// note takes the result of a request to the account of the store.
func (e *entry) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.health
	switch {
	case err == nil || errors.Is(err, ErrFinal): // it answers
		if h.up != nil {
			close(h.up)
		}
		*h = health{}
	default:
		if h.up == nil {
			h.up = make(chan struct{})
		}
		h.failures++
		h.retryAt = time.Now().Add(e.pause())
	}
}
