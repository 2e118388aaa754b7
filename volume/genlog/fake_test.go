package genlog

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/volume/store"
)

// fake is a store in memory that counts its calls and can be told to go wrong.
type fake struct {
	store.Store // nil: what the package does not use

	mu      sync.Mutex
	objects map[string][]byte
	calls   []string
	// before and after run around each call, outside the lock. An error from before means no effect; one from after
	// replaces the answer.
	before, after func(kind, key string) error
}

func newFake() *fake { return &fake{objects: map[string][]byte{}} }

func (f *fake) do(kind, key string, effect func() error) error {
	if f.before != nil {
		if err := f.before(kind, key); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.calls = append(f.calls, kind)
	err := effect()
	f.mu.Unlock()
	if f.after != nil {
		if changed := f.after(kind, key); changed != nil {
			return changed
		}
	}
	return err
}

func (f *fake) PutIfAbsent(_ context.Context, key string, body []byte) error {
	return f.do("put", key, func() error {
		if _, ok := f.objects[key]; ok {
			return store.ErrExists
		}
		f.objects[key] = body
		return nil
	})
}

func (f *fake) Get(_ context.Context, key string) (body []byte, err error) {
	err = f.do("get", key, func() error {
		var ok bool
		if body, ok = f.objects[key]; !ok {
			return store.ErrNotExist
		}
		return nil
	})
	return body, err
}

func (f *fake) List(_ context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		var keys []string
		err := f.do("list", prefix, func() error { keys = slices.Sorted(maps.Keys(f.objects)); return nil })
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		for n := 0; len(keys) > 0 && (limit == 0 || n < limit); keys = keys[1:] {
			if !strings.HasPrefix(keys[0], prefix) || keys[0] <= after {
				continue
			}
			if n++; !yield(store.Entry{Key: keys[0]}, nil) {
				return
			}
		}
	}
}

func (f *fake) Delete(_ context.Context, key string) error {
	return f.do("delete", key, func() error { delete(f.objects, key); return nil })
}

// take returns the calls made since the last take.
func (f *fake) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := strings.Join(f.calls, " ")
	f.calls = nil
	return calls
}

// once makes a hook that does f at the first call of the given kind, and nothing after it.
func once(kind string, f func(key string) error) func(string, string) error {
	fired := false
	return func(k, key string) error {
		if fired || k != kind {
			return nil
		}
		fired = true
		return f(key)
	}
}

const testPrefix = "v1/volumes/acme/v/"

// testLog returns a log over f whose retries do not wait.
func testLog(f *fake, opts ...Option) *Log[register] {
	l := New[register](f, testPrefix, opts...)
	l.sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return l
}

// filled returns a log with n generations, and its newest.
func filled(t *testing.T, f *fake, n int, opts ...Option) (*Log[register], Generation[register]) {
	t.Helper()
	l := testLog(f, opts...)
	g, err := l.Create(t.Context(), register{})
	for range n - 1 {
		if err != nil {
			t.Fatal(err)
		}
		g, err = l.AppendTo(t.Context(), g, countOp())
	}
	if err != nil {
		t.Fatal(err)
	}
	f.take()
	return l, g
}

// countOp always changes the state: only for filling a log without faults.
func countOp() Op[register] {
	return Op[register]{Name: "count", Apply: func(r register) (register, bool, error) {
		r.Epoch++
		return r, true, nil
	}}
}
