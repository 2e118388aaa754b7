package volume_test

import (
	"cmp"
	"context"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// scheduler holds back every request of several actors and lets them through one at a time, in an order that it is
// given. It works inside a bubble, where it can tell that all actors wait.
type scheduler struct {
	mu      sync.Mutex
	inner   store.Store
	waiting []*heldCall
	running int // actors that have not ended
	free    bool
}

// heldCall is a request that waits for its turn.
type heldCall struct {
	actor int
	what  string
	turn  chan struct{}
}

// choice is one moment at which more than one actor could go on.
type choice struct {
	actor    int   // that did
	others   []int // that could have
	free     bool  // the one that went on before could not
	preempts int   // how often an actor was interrupted that could have gone on, up to here
}

// schedule runs the actors to their end. The first choices are those given; after them an actor goes on for as long as
// it can.
func (s *scheduler) schedule(given []int, actors ...func()) []choice {
	s.mu.Lock()
	s.running = len(actors)
	s.mu.Unlock()
	for _, f := range actors {
		go func() {
			f()
			s.mu.Lock()
			s.running--
			s.mu.Unlock()
		}()
	}
	var made []choice
	last := 0
	for {
		able := s.able()
		if len(able) == 0 {
			return made
		}
		next := able[0]
		if slices.Contains(able, last) {
			next = last
		}
		if len(able) > 1 {
			for len(given) > 0 && !slices.Contains(able, given[0]) {
				given = given[1:] // that actor has ended: a turn too many was given to it
			}
			if len(given) > 0 {
				next, given = given[0], given[1:]
			}
			c := choice{actor: next, free: len(made) == 0 || !slices.Contains(able, last)}
			if len(made) > 0 {
				c.preempts = made[len(made)-1].preempts
			}
			if next != last && !c.free {
				c.preempts++
			}
			c.others = slices.DeleteFunc(able, func(a int) bool { return a == next })
			made = append(made, c)
		}
		last = next
		s.release(next)
	}
}

// able returns the actors with a request that waits, none when all have ended. Those that pause before a retry are
// waited for, so that every order is possible; one that waits for another is not.
func (s *scheduler) able() []int {
	synctest.Wait()
	actors, running := s.held()
	for tries := 0; running > len(actors) && (tries == 0 || len(actors) == 0); tries++ {
		time.Sleep(time.Second) // longer than any such pause
		synctest.Wait()
		actors, running = s.held()
	}
	return actors
}

func (s *scheduler) held() (actors []int, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.waiting {
		actors = append(actors, c.actor)
	}
	slices.Sort(actors)
	return slices.Compact(actors), s.running
}

// release lets one request of the actor through.
func (s *scheduler) release(actor int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Requests that an actor sends at once have an order of their own, so that a schedule can be repeated.
	slices.SortStableFunc(s.waiting, func(a, b *heldCall) int { return cmp.Compare(a.what, b.what) })
	i := slices.IndexFunc(s.waiting, func(c *heldCall) bool { return c.actor == actor })
	close(s.waiting[i].turn)
	s.waiting = slices.Delete(s.waiting, i, i+1)
}

// open lets everything through from now on, or nothing any more without its turn.
func (s *scheduler) open(free bool, inner store.Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free, s.inner = free, inner
}

// exploreAtMost is how many schedules of one race are run by default.
const exploreAtMost = 30

// explore runs f under the schedules in which actors are interrupted at most so many times: all of them if
// SANDVOL_MODEL_STEPS is set, else a part of them where they are many. It returns how many it ran and how many it left
// out that it knew of.
func explore(t *testing.T, preempts int, f func(given []int) []choice) (runs, left int) {
	t.Helper()
	all := os.Getenv("SANDVOL_MODEL_STEPS") != ""
	rng := rand.New(rand.NewPCG(1, 2)) // the same part each time; a failure prints its schedule
	todo := [][]int{nil}
	for len(todo) > 0 && (all || runs < exploreAtMost) {
		i := rng.IntN(len(todo))
		given := todo[i]
		todo = slices.Delete(todo, i, i+1)
		runs++
		made := f(given)
		for i := len(given); i < len(made); i++ {
			if !made[i].free && made[i-1].preempts >= preempts {
				continue
			}
			for _, other := range made[i].others {
				todo = append(todo, append(actorsOf(made[:i]), other))
			}
		}
	}
	return runs, len(todo)
}

func actorsOf(made []choice) []int {
	out := make([]int, len(made))
	for i, c := range made {
		out[i] = c.actor
	}
	return out
}

// view is the store as one actor sees it.
type heldStore struct {
	s     *scheduler
	actor int
}

// turn waits until it is this request's turn, and returns the store to send it to.
func (h heldStore) turn(op, key string) store.Store {
	h.s.mu.Lock()
	if h.s.free {
		defer h.s.mu.Unlock()
		return h.s.inner
	}
	c := &heldCall{h.actor, op + " " + key, make(chan struct{})}
	h.s.waiting = append(h.s.waiting, c)
	inner := h.s.inner
	h.s.mu.Unlock()
	<-c.turn
	return inner
}

func (h heldStore) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	return h.turn("put", key).PutIfAbsent(ctx, key, body)
}

func (h heldStore) Get(ctx context.Context, key string) ([]byte, error) {
	return h.turn("get", key).Get(ctx, key)
}

func (h heldStore) Delete(ctx context.Context, key string) error {
	return h.turn("delete", key).Delete(ctx, key)
}

func (h heldStore) PutBlob(ctx context.Context, key string, src store.Source) error {
	return h.turn("blob", key).PutBlob(ctx, key, src)
}

func (h heldStore) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.inner.OpenBlob(ctx, key) // sends nothing, and what it reads never changes
}

func (h heldStore) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		all, err := storetest.Collect(h.turn("list", prefix).List(ctx, prefix, after, limit))
		yieldAll(all, err, yield)
	}
}

func (h heldStore) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := storetest.Collect(h.turn("dirs", prefix).Dirs(ctx, prefix, after, limit))
		yieldAll(all, err, yield)
	}
}

func yieldAll[T any](all []T, err error, yield func(T, error) bool) {
	for _, e := range all {
		if !yield(e, nil) {
			return
		}
	}
	if err != nil {
		var none T
		yield(none, err)
	}
}
