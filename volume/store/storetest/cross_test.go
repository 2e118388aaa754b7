package storetest_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func crossed(t *testing.T, a, b store.Store) (errA, errB error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		if errA = storetest.CrossCheck(ctx, storetest.Cross{Store: a, Run: "r1", Rounds: 20}); errA != nil {
			cancel() // the other half need not wait
		}
	})
	both.Go(func() {
		if errB = storetest.CrossCheck(ctx, storetest.Cross{Store: b, Run: "r1", Rounds: 20}); errB != nil {
			cancel()
		}
	})
	both.Wait()
	return errA, errB
}

// two nodes that see each other's writes at once find nothing, and leave nothing.
func TestCrossCheckAcceptsASharedStore(t *testing.T) {
	mem := memstore.New()
	dir := t.TempDir()
	posix := func() store.Store {
		s, err := posixstore.New(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, pair := range map[string][2]store.Store{"memory": {mem, mem}, "directory": {posix(), posix()}} {
		if a, b := crossed(t, pair[0], pair[1]); a != nil || b != nil {
			t.Errorf("%s: %v, %v", name, a, b)
		}
		for e, err := range pair[0].List(t.Context(), "", "", 0) {
			t.Errorf("%s: left %s, %v", name, e.Key, err)
		}
	}
	cross := storetest.Cross{Store: mem, Run: "a/b"}
	if err := storetest.CrossCheck(t.Context(), cross); !errors.Is(err, store.ErrInvalidKey) {
		t.Errorf("run a/b: %v", err)
	}
}

// blind is a node whose cache hides what other nodes wrote from its listings, as NFS without actimeo=0 does.
type blind struct {
	store.Store
	mu   sync.Mutex
	mine map[string]bool
}

func (b *blind) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	b.mu.Lock()
	b.mine[key] = true
	b.mu.Unlock()
	return b.Store.PutIfAbsent(ctx, key, body)
}

func (b *blind) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range b.Store.List(ctx, prefix, after, limit) {
			b.mu.Lock()
			known := b.mine[e.Key]
			b.mu.Unlock()
			if (known || err != nil) && !yield(e, err) {
				return
			}
		}
	}
}

// careless is a node whose creations always succeed.
type careless struct{ store.Store }

func (c careless) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	if err := c.Store.PutIfAbsent(ctx, key, body); !errors.Is(err, store.ErrExists) || len(body) == 0 {
		return err
	}
	return nil
}

func TestCrossCheckRefusesStoresThatCannotBeShared(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{
		"stale listings": func(s store.Store) store.Store { return &blind{Store: s, mine: map[string]bool{}} },
		"two winners":    func(s store.Store) store.Store { return careless{s} },
	} {
		st := memstore.New()
		a, b := crossed(t, wrap(st), wrap(st))
		var fault *storetest.CrossError
		if !errors.As(errors.Join(a, b), &fault) {
			t.Errorf("%s: %v, %v; want a CrossError", name, a, b)
		}
	}
}
