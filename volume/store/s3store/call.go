package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

const (
	// tries bounds how often a request is sent. With the pauses between them, a store that is away for three seconds is
	// not noticed.
	tries = 6
	// firstPause is the longest pause before the second try; it doubles with each, up to maxPause.
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
	// maxRetryAfter is the longest pause that a server may ask for. One that asks for more gets its request no more:
	// the caller is told, and may come back.
	maxRetryAfter = time.Minute
	// stallTimeout ends a try in which no byte moved for so long.
	stallTimeout = 30 * time.Second
)

// errStalled ends a try, never a call: the caller's own deadline has another error.
var errStalled = errors.New("no answer from the server")

// caller sends requests: again after a fault that may pass, after a pause with jitter, as long as the caller's context
// allows, and a bounded number of times.
type caller struct {
	creds *credentials
	stall time.Duration
	first time.Duration // pause
}

func newCaller(cache *aws.CredentialsCache) caller {
	return caller{&credentials{cache: cache}, stallTimeout, firstPause}
}

// call runs try until it succeeds, fails for good, or was run often enough. It returns how often it ran: when that is
// more than once, an earlier try may have taken effect whatever the last one says. When ctx ends, the error is its.
func (c caller) call(ctx context.Context, try func(context.Context, *progress) error) (ran int, err error) {
	refreshed := false
	for ran = 1; ; ran++ {
		seen := c.creds.generation()
		err = c.once(ctx, try)
		switch {
		case err == nil:
			return ran, nil
		case ctx.Err() != nil:
			return ran, ctx.Err()
		case expired(err) && !refreshed:
			// Once: a provider that has nothing better is not asked again and again.
			refreshed = true
			c.creds.refresh(seen)
			continue
		case !transient(err):
			return ran, err
		case ran >= tries:
			return ran, fmt.Errorf("tried %d times: %w", ran, err)
		}
		d := max(c.pause(ran), retryAfter(err))
		if d > maxRetryAfter {
			return ran, fmt.Errorf("not repeated, since the server asks for a pause of %s: %w", d, err)
		}
		if werr := wait(ctx, d); werr != nil {
			return ran, werr
		}
	}
}

// once is one try under the stall timeout.
func (c caller) once(ctx context.Context, try func(context.Context, *progress) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &progress{c.stall, time.AfterFunc(c.stall, func() { cancel(errStalled) })}
	defer p.timer.Stop()
	err := try(ctx, p)
	if err != nil && context.Cause(ctx) == errStalled {
		// Not the error of the request, which says that a context ended: to the caller that would be its own.
		return fmt.Errorf("%w for %s", errStalled, c.stall)
	}
	return err
}

// progress puts off the end of a try whenever bytes move, in either direction.
type progress struct {
	stall time.Duration
	timer *time.Timer
}

func (p *progress) reader(r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		p.timer.Reset(p.stall)
		return n, err
	})
}

// body returns a request body. It can be read from the start again, as signing it and sending it need.
func (p *progress) body(b []byte) io.ReadSeeker {
	r := bytes.NewReader(b)
	return struct {
		io.Reader
		io.Seeker
	}{p.reader(r), r}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// pause returns how long to wait after the n-th try: at least half of what it may be, and the rest by chance, so that
// those who failed together do not come back together.
func (c caller) pause(n int) time.Duration {
	d := min(c.first<<(n-1), maxPause)
	return d/2 + rand.N(d/2)
}

// retryAfter returns the pause that an answer asks for: seconds, or a date.
func retryAfter(err error) time.Duration {
	r := response(err)
	if r == nil {
		return 0
	}
	value := r.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	// By the server's own clock, if it tells.
	now, err := http.ParseTime(r.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, at.Sub(now))
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// credentials counts the refreshes of a cache, so that of many requests that were refused with the same credentials
// only one makes the provider work.
type credentials struct {
	cache *aws.CredentialsCache

	mu sync.Mutex
	n  int
}

func (c *credentials) generation() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// refresh drops the credentials unless that was done since the given generation.
func (c *credentials) refresh(seen int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == seen {
		c.n++
		c.cache.Invalidate()
	}
}
