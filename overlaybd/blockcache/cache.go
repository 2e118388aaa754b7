package blockcache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Errors of this package, tested with errors.Is. Besides them there are os.ErrClosed, of a handle or cache that was closed,
// and os.ErrDeadlineExceeded, of a read whose time was up.
var (
	// ErrInvalid: an argument is outside its limits; the message names field, value and limit.
	ErrInvalid = errors.New("blockcache: invalid argument")
	// ErrFinal is for a Fetcher to wrap: asking again will not help, so readers get the error at once.
	ErrFinal = errors.New("blockcache: not to be tried again")
	// ErrNoRoom: the budget has no room without evicting what is in use.
	ErrNoRoom = errors.New("blockcache: no room within the budget")
)

// Fetcher reads ranges of one layer from where it is stored. It fills p or fails; an end before that is an error. Calls may
// overlap, and none ends later than its context allows.
type Fetcher interface {
	ReadRange(ctx context.Context, p []byte, off int64) (int, error)
}

// Cache is a directory of ranges of layers. Its methods may be called concurrently.
type Cache struct {
	dir     string
	opts    options
	slots   *semaphore.Weighted // fetches under way
	pace    *rate.Limiter       // bytes fetched; nil: as fast as they come
	punches bool                // the file system can give back a part of a file

	ctx     context.Context // of fetches; ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // fetches

	fetches, fetched, evicted, damaged atomic.Int64

	mu     sync.Mutex
	closed bool
	open   map[string]*entry
	idle   *list.List // of *idleLayer, the one closed longest ago first
	ring   []*chunk   // of open layers, for the hand to go round
	hand   int
	budget int64
	used   int64 // bytes kept, and bytes that are about to be
}

// idleLayer is a layer that is on disk and not open.
type idleLayer struct {
	id   string
	used int64
}

// Stats are numbers since Open, and what is kept now.
type Stats struct {
	Used    int64 // bytes kept
	Budget  int64 // bytes; 0: none
	Fetches int64 // requests that were sent
	Fetched int64 // bytes that came
	Evicted int64 // bytes that were dropped to make room
	Damaged int64 // chunks that did not fit their checksums
}

// Open opens the cache in a directory, which is made if it is not there.
func Open(dir string, opts ...Option) (*Cache, error) {
	o := options{
		fetchLimit: DefaultFetchLimit, fetchTimeout: DefaultFetchTimeout, backoff: minBackoff,
		log: slog.New(slog.DiscardHandler),
	}
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	c := &Cache{
		dir: dir, opts: o, slots: semaphore.NewWeighted(o.fetchLimit),
		open: map[string]*entry{}, idle: list.New(), budget: o.budget,
	}
	if o.bandwidth > 0 {
		c.pace = rate.NewLimiter(rate.Limit(o.bandwidth), ChunkSize)
	}
	if err := c.scan(); err != nil {
		return nil, fmt.Errorf("blockcache: open %s: %w", dir, err)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.SetBudget(o.budget)
	return c, nil
}

// SetBudget changes the budget, and evicts what is beyond it. 0 is no bound.
func (c *Cache) SetBudget(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = bytes
	c.makeRoom(0)
}

// Stats returns the numbers of the cache.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	used, budget := c.used, c.budget
	c.mu.Unlock()
	return Stats{
		Used: used, Budget: budget, Fetches: c.fetches.Load(), Fetched: c.fetched.Load(),
		Evicted: c.evicted.Load(), Damaged: c.damaged.Load(),
	}
}

// Layer returns a handle on the layer of that id, of which size bytes are stored. It sends no request; fetch is asked for
// what is not kept, until the handle and all that it began is closed.
func (c *Cache) Layer(id string, size int64, fetch Fetcher) (*Layer, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("%w: id %q: must be 1 to 128 of A-Z a-z 0-9 _ -", ErrInvalid, id)
	}
	if size < 0 {
		return nil, fmt.Errorf("%w: size %d: must be at least 0", ErrInvalid, size)
	}
	e, err := c.retain(id, size)
	if err != nil {
		return nil, err
	}
	// Outside of the lock: a map may be long, and a whole copy is read once.
	e.loading.Do(func() { e.loadErr = e.load() })
	if e.loadErr != nil {
		err := fmt.Errorf("blockcache: open layer %s: %w", id, e.loadErr)
		c.release(e)
		return nil, err
	}
	return &Layer{e: e, fetch: fetch, closed: make(chan struct{})}, nil
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// retain returns the open entry of a layer, opening it if need be.
func (c *Cache) retain(id string, size int64) (*entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("blockcache: %w", os.ErrClosed)
	}
	e := c.open[id]
	if e == nil {
		c.forgetIdle(id)
		e = &entry{c: c, id: id, size: size, chunks: make([]atomic.Pointer[chunk], chunksOf(size)), flights: map[int64]*flight{}}
		c.open[id] = e
	}
	if e.size != size {
		return nil, fmt.Errorf("%w: size %d of layer %s: it is open with %d", ErrInvalid, size, id, e.size)
	}
	e.refs++
	return e, nil
}

// release gives back a reference; with the last one the layer is idle.
func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.refs--; e.refs > 0 {
		return
	}
	delete(c.open, e.id)
	for i := range e.chunks {
		if ch := e.chunks[i].Load(); ch != nil {
			c.leaveRing(ch)
		}
	}
	e.closeFiles()
	if e.kept == 0 {
		c.remove(e.id)
		return
	}
	c.idle.PushBack(&idleLayer{e.id, e.kept})
}

// forgetIdle takes a layer off the list of those that are not open. Called with mu.
func (c *Cache) forgetIdle(id string) {
	for el := c.idle.Front(); el != nil; el = el.Next() {
		if l := el.Value.(*idleLayer); l.id == id {
			c.used -= l.used
			c.idle.Remove(el)
			return
		}
	}
}

// Close ends all fetches and waits for them. Handles may be closed before or after.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.running.Wait()
	return nil
}

func (c *Cache) dataPath(id string) string { return filepath.Join(c.dir, id+".data") }
func (c *Cache) mapPath(id string) string  { return filepath.Join(c.dir, id+".map") }
func (c *Cache) barePath(id string) string { return filepath.Join(c.dir, id) }
