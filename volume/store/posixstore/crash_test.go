package posixstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/sandvol/sandvol/internal/crashfs"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// big is more than one request to the disk, and ends within a page.
var big = bytes.Repeat([]byte("0123456789abcdef"), 5_000)

// crashOp is one operation on a key, and the state of the key that it leads from and to.
type crashOp struct {
	name    string
	prepare func(context.Context, store.Store) error
	do      func(context.Context, store.Store) error
	before  []byte // nil: absent
	after   []byte
}

const crashKey = "v1/layers/x/key"

func crashOps() []crashOp {
	nothing := func(context.Context, store.Store) error { return nil }
	neighbour := func(ctx context.Context, s store.Store) error { return s.PutIfAbsent(ctx, "v1/layers/x/other", nil) }
	record := func(ctx context.Context, s store.Store) error { return s.PutIfAbsent(ctx, crashKey, []byte("record")) }
	blob := func(ctx context.Context, s store.Store) error {
		return s.PutBlob(ctx, crashKey, store.BytesSource(big))
	}
	remove := func(ctx context.Context, s store.Store) error { return s.Delete(ctx, crashKey) }
	return []crashOp{
		{"record in a new directory", nothing, record, nil, []byte("record")},
		{"record beside another", neighbour, record, nil, []byte("record")},
		{"blob in a new directory", nothing, blob, nil, big},
		{"delete of the last key", record, remove, []byte("record"), nil},
		{"record in a directory that was removed", func(ctx context.Context, s store.Store) error {
			return errors.Join(neighbour(ctx, s), s.Delete(ctx, "v1/layers/x/other"))
		}, record, nil, []byte("record")},
	}
}

// begin erases the disk and makes the state that the operation leads from.
func (c crashOp) begin(t *testing.T, disk *crashfs.FS) store.Store {
	t.Helper()
	disk.Erase()
	s := open(t, disk.Dir())
	must(t, c.prepare(t.Context(), s))
	return s
}

// steps returns how many operations on the disk it takes.
func (c crashOp) steps(t *testing.T, disk *crashfs.FS) int {
	t.Helper()
	s := c.begin(t, disk)
	start := disk.Ops()
	must(t, c.do(t.Context(), s))
	return disk.Ops() - start
}

func TestPowerCutAtEveryStepKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	for _, c := range crashOps() {
		t.Run(c.name, func(t *testing.T) {
			steps := c.steps(t, disk)
			for k := 1; k <= steps+1; k++ {
				for _, seed := range []int64{0, int64(k)} {
					s := c.begin(t, disk)
					disk.StopAt(disk.Ops() + k)
					err := c.do(t.Context(), s)
					disk.PowerCut(seed)
					what := fmt.Sprintf("stopped at %d of %d, seed %d, answer %v", k, steps, seed, err)
					c.check(t, what, disk, err == nil)
				}
			}
		})
	}
}

// check reopens the store after a cut.
func (c crashOp) check(t *testing.T, what string, disk *crashfs.FS, acknowledged bool) {
	t.Helper()
	s := open(t, disk.Dir())
	got := read(t, s)
	if !bytes.Equal(got, c.after) && (acknowledged || !bytes.Equal(got, c.before)) {
		t.Errorf("%s: %d bytes, want %d, or %d if not acknowledged", what, len(got), len(c.after), len(c.before))
	}
	// The store works on, from whatever is left.
	if err := c.do(t.Context(), s); err != nil && !errors.Is(err, store.ErrExists) {
		t.Errorf("%s: again: %v", what, err)
	}
	disk.PowerCut(0)
	if got := read(t, open(t, disk.Dir())); !bytes.Equal(got, c.after) {
		t.Errorf("%s: again and another cut: %d bytes, want %d", what, len(got), len(c.after))
	}
}

// read returns what is under the key, nil when it is absent. List and Get must agree.
func read(t *testing.T, s store.Store) []byte {
	t.Helper()
	body, err := s.Get(t.Context(), crashKey)
	if err != nil && !errors.Is(err, store.ErrNotExist) {
		t.Fatal(err)
	}
	there := err == nil
	entries, err := storetest.Collect(s.List(t.Context(), "v1/layers/x/", "v1/layers/x/k", 1))
	must(t, err)
	listed := len(entries) == 1 && entries[0].Key == crashKey && entries[0].Size == int64(len(body))
	if listed != there {
		t.Errorf("record there: %t, listed: %t", there, listed)
	}
	if there && body == nil {
		return []byte{}
	}
	return body
}

// A writer dies at each of its steps, the machine lives on, a reader finds the record and acts on it; then the power
// goes. What it acted on must still be there.
func TestWhatAReaderSawSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	for _, c := range crashOps()[:2] {
		for name, see := range readers() {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				steps, seen := c.steps(t, disk), 0
				for k := 1; k <= steps+1; k++ {
					s := c.begin(t, disk)
					disk.StopAt(disk.Ops() + k)
					_ = c.do(t.Context(), s)
					disk.StopAt(0)
					saw, err := see(t.Context(), open(t, disk.Dir()))
					must(t, err)
					disk.PowerCut(0)
					if saw && !bytes.Equal(read(t, open(t, disk.Dir())), c.after) {
						t.Errorf("writer stopped at %d of %d: a record that was seen is gone", k, steps)
					}
					if saw {
						seen++
					}
				}
				// Between the link and its sync there is at least the sync, and for new directories more.
				if seen < 3 {
					t.Errorf("the record was seen after %d of %d stops, want 3 at least", seen, steps+1)
				}
			})
		}
	}
}

// readers are the ways to learn that a key exists.
func readers() map[string]func(context.Context, store.Store) (bool, error) {
	present := func(err error) (bool, error) {
		if errors.Is(err, store.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	return map[string]func(context.Context, store.Store) (bool, error){
		"Get": func(ctx context.Context, s store.Store) (bool, error) {
			_, err := s.Get(ctx, crashKey)
			return present(err)
		},
		"List": func(ctx context.Context, s store.Store) (bool, error) {
			entries, err := storetest.Collect(s.List(ctx, "v1/layers/x/", "v1/layers/x/k", 1))
			return len(entries) == 1 && entries[0].Key == crashKey, err
		},
		"Size": func(ctx context.Context, s store.Store) (bool, error) {
			b, err := s.OpenBlob(ctx, crashKey)
			if err != nil {
				return false, err
			}
			defer b.Close()
			_, err = b.Size(ctx)
			return present(err)
		},
		// One that acknowledged says the same as one that found it taken.
		"PutIfAbsent": func(ctx context.Context, s store.Store) (bool, error) {
			// The source says more than it has, so that nothing is stored when the key is free.
			err := s.PutBlob(ctx, crashKey, sized{store.BytesSource(nil), 1})
			if errors.Is(err, store.ErrSource) {
				return false, nil
			}
			if errors.Is(err, store.ErrExists) {
				return true, nil
			}
			return false, err
		},
	}
}

type sized struct {
	store.Source
	size int64
}

func (s sized) Size() int64 { return s.size }

// Creators and deleters make and remove the same directories from two handles until the machine dies. Every goroutine
// has keys of its own, and knows which of them it may rely on.
func TestPowerCutUnderConcurrentWork(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	for seed := range uint64(25) {
		disk.Erase()
		rng := rand.New(rand.NewPCG(seed, 7))
		a, b := open(t, disk.Dir()), open(t, disk.Dir())
		disk.StopAt(disk.Ops() + 20 + rng.IntN(250))
		workers := make([]*worker, 6)
		var wg sync.WaitGroup
		for i := range workers {
			h := a
			if i%2 == 1 {
				h = b
			}
			workers[i] = &worker{s: h, id: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), want: map[string]bool{}}
			wg.Go(func() { workers[i].run(t.Context()) })
		}
		wg.Wait()
		disk.PowerCut(int64(seed % 4))
		after := open(t, disk.Dir())
		for _, w := range workers {
			w.check(t, seed, after)
		}
	}
}

// worker puts and deletes keys until the disk refuses.
type worker struct {
	s   *posixstore.Store
	id  int
	rng *rand.Rand
	// want says of a key whether it must be there or must not. The key whose last operation failed is not in it.
	want map[string]bool
}

func (w *worker) run(ctx context.Context) {
	for {
		key := fmt.Sprintf("d%d/e%d/k%d", w.rng.IntN(2), w.rng.IntN(2), w.id)
		var err error
		if there := w.want[key]; there {
			err = w.s.Delete(ctx, key)
		} else {
			err = w.s.PutIfAbsent(ctx, key, []byte(key))
		}
		if err != nil {
			delete(w.want, key)
			return
		}
		w.want[key] = !w.want[key]
	}
}

func (w *worker) check(t *testing.T, seed uint64, s store.Store) {
	t.Helper()
	for key, want := range w.want {
		body, err := s.Get(t.Context(), key)
		if want && (err != nil || string(body) != key) || !want && !errors.Is(err, store.ErrNotExist) {
			t.Errorf("seed %d: %s: %q, %v, want it there: %t", seed, key, body, err, want)
		}
	}
}

func TestFailedSyncOfTheFileIsAnErrorAndARetryHolds(t *testing.T) {
	disk := crashfs.New(t)
	s := open(t, disk.Dir())
	must(t, s.PutIfAbsent(t.Context(), "v1/layers/x/other", nil))
	disk.FailSync()
	err := s.PutBlob(t.Context(), crashKey, store.BytesSource(big))
	if err == nil || errors.Is(err, store.ErrExists) {
		t.Fatalf("put over a failed fsync: %v", err)
	}
	if got := read(t, s); got != nil {
		t.Fatalf("%d bytes are visible after a failed put", len(got))
	}
	must(t, s.PutBlob(t.Context(), crashKey, store.BytesSource(big)))
	disk.PowerCut(0)
	if got := read(t, open(t, disk.Dir())); !bytes.Equal(got, big) {
		t.Errorf("%d bytes after the retry and a cut, want %d", len(got), len(big))
	}
	left, err := os.ReadDir(filepath.Join(disk.Dir(), ".tmp"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if len(left) > 1 {
		t.Errorf("%d temporary files are left", len(left))
	}
}

// Without the second link, readers would believe that the record is durable.
func TestFailedSyncOfTheDirectoryKeepsTheTemporaryName(t *testing.T) {
	disk := crashfs.New(t)
	s := open(t, disk.Dir())
	must(t, s.PutIfAbsent(t.Context(), "v1/layers/x/other", nil))
	disk.FailSyncAt(2)
	if err := s.PutIfAbsent(t.Context(), crashKey, []byte("record")); err == nil || errors.Is(err, store.ErrExists) {
		t.Fatalf("put over a failed fsync of the directory: %v", err)
	}
	fi, err := os.Stat(filepath.Join(disk.Dir(), crashKey))
	must(t, err)
	if n := fi.Sys().(*syscall.Stat_t).Nlink; n != 2 {
		t.Errorf("the record has %d links, want 2", n)
	}
}
