package blockcache

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// what is kept is read while the store hangs, also while others wait for it.
func TestCachedReadDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(64 * ChunkSize)
		l := openLayer(t, openCache(t, t.TempDir(), WithFetchLimit(2)), "a", s)
		check(t, l, s, 0, ChunkSize)
		s.set(func() { s.hang = true })
		done := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				_, err := l.ReadWithin(make([]byte, 10), int64(2*i+2)*ChunkSize, time.Hour, done)
				wantErr(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		start := time.Now()
		check(t, l, s, 0, ChunkSize)
		if d := time.Since(start); d != 0 {
			t.Errorf("a read of what is kept took %v", d)
		}
		close(done)
		wg.Wait()
	})
}

func TestReadEndsWhenItsTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(4 * ChunkSize)
		l := openLayer(t, openCache(t, t.TempDir()), "a", s)
		for what, set := range []func(){
			func() { s.hang = true },
			func() { s.hang, s.err = false, errDown },
		} {
			s.set(set)
			start := time.Now()
			_, err := l.ReadWithin(make([]byte, 10), ChunkSize, 30*time.Second, nil)
			wantErr(t, err, os.ErrDeadlineExceeded)
			if d := time.Since(start); d != 30*time.Second {
				t.Errorf("case %d: %v", what, d)
			}
		}
		_, err := l.ReadWithin(make([]byte, 10), 0, time.Minute, nil)
		wantErr(t, err, errDown) // and says why
	})
}

func TestCloseEndsReadsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(4 * ChunkSize)
		s.hang = true
		c := openCache(t, t.TempDir())
		a, b := openLayer(t, c, "a", s), openLayer(t, c, "a", s)
		errs := make(chan error, 2)
		for _, l := range []*Layer{a, b} {
			go func() { _, err := l.ReadAt(make([]byte, 10), 0); errs <- err }()
		}
		synctest.Wait()
		ok(t, a.Close())
		wantErr(t, <-errs, os.ErrClosed)
		ok(t, c.Close())
		wantErr(t, <-errs, os.ErrClosed)
		_, err := c.Layer("a", 1, s)
		wantErr(t, err, os.ErrClosed)
	})
}

// A store that is down for ten minutes under a hundred readers is asked now and then, and used again when it is back.
func TestDeadStoreIsAskedNowAndThenAndUsedWhenItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(200 * ChunkSize)
		s.err = errDown
		l := openLayer(t, openCache(t, t.TempDir()), "a", s)
		var wg sync.WaitGroup
		var read atomic.Int64
		for i := range 100 {
			wg.Go(func() {
				p := make([]byte, 10)
				for {
					_, err := l.ReadWithin(p, int64(2*i)*ChunkSize, 30*time.Second, nil)
					if err == nil {
						read.Add(1)
						return
					}
					wantErr(t, err, os.ErrDeadlineExceeded)
				}
			})
		}
		time.Sleep(10 * time.Minute)
		if n := len(s.requests()); n < 100 || n > 300 { // one in 2.5 to 5 seconds
			t.Errorf("%d requests in ten minutes", n)
		}
		s.set(func() { s.err = nil })
		time.Sleep(maxBackoff + time.Second)
		if n := read.Load(); n != 100 {
			t.Errorf("%d of 100 have read", n)
		}
		wg.Wait()
	})
}

func TestOneLayersTroubleIsNotAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCache(t, t.TempDir())
		bad, good := newStore(2*ChunkSize), newStore(2*ChunkSize)
		bad.err = errDown
		_, err := openLayer(t, c, "bad", bad).ReadWithin(make([]byte, 10), 0, time.Minute, nil)
		wantErr(t, err, errDown)
		start := time.Now()
		check(t, openLayer(t, c, "good", good), good, 0, 10)
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

func TestFinalErrorIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(2 * ChunkSize)
		s.err = fmt.Errorf("%w: no such object", ErrFinal)
		l := openLayer(t, openCache(t, t.TempDir()), "a", s)
		_, err := l.ReadAt(make([]byte, 10), 0)
		wantErr(t, err, ErrFinal)
		wantErr(t, l.Prefetch(t.Context(), 0, 10), ErrFinal)
		wantRequests(t, s, 2)
	})
}

func TestShortAnswerIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(ChunkSize)
		c := openCache(t, t.TempDir())
		l, err := c.Layer("a", 2*ChunkSize, s)
		ok(t, err)
		_, err = l.ReadWithin(make([]byte, 2*ChunkSize), 0, time.Second, nil)
		wantErr(t, err, os.ErrDeadlineExceeded)
		ok(t, l.Close())
	})
}

func TestPrefetchAsksThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(2 * ChunkSize)
		s.err = errDown
		l := openLayer(t, openCache(t, t.TempDir()), "a", s)
		wantErr(t, l.Prefetch(t.Context(), 0, 10), errDown)
		wantRequests(t, s, 3)
		s.set(func() { s.hang = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, l.Prefetch(ctx, 0, 10), context.DeadlineExceeded)
	})
}

func TestFetchThatNobodyWaitsForIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(2 * ChunkSize)
		s.hang = true
		l := openLayer(t, openCache(t, t.TempDir(), WithFetchTimeout(time.Hour)), "a", s)
		done := make(chan struct{})
		first := make(chan error, 1)
		go func() {
			_, err := l.ReadWithin(make([]byte, 10), 0, time.Hour, done)
			first <- err
		}()
		synctest.Wait()
		close(done)
		wantErr(t, <-first, context.Canceled)
		s.set(func() { s.hang = false })
		check(t, l, s, 0, 10) // by a request of its own
		wantRequests(t, s, 2)
	})
}

func TestBandwidthIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(16 * ChunkSize)
		l := openLayer(t, openCache(t, t.TempDir(), WithBandwidth(ChunkSize)), "a", s)
		start := time.Now()
		ok(t, l.Warm(t.Context()))
		if d := time.Since(start).Round(time.Second); d != 15*time.Second { // the first chunk is free
			t.Errorf("16 chunks at one a second in %v", d)
		}
	})
}

func TestFetchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCache(t, t.TempDir(), WithFetchLimit(3))
		s := newStore(40 * ChunkSize)
		s.gate = make(chan struct{})
		l := openLayer(t, c, "a", s)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { check(t, l, s, 2*i*ChunkSize, 10) })
		}
		synctest.Wait()
		wantRequests(t, s, 3)
		close(s.gate)
		wg.Wait()
	})
}
