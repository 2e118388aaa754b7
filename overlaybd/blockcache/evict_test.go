package blockcache

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// diskUse is what the data files take.
func diskUse(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.data"))
	ok(t, err)
	for _, f := range files {
		info, err := os.Stat(f)
		if os.IsNotExist(err) {
			continue
		}
		ok(t, err)
		n += onDisk(info)
	}
	return n
}

func TestBudgetHoldsUnderConcurrentReaders(t *testing.T) {
	const budget = 10 * ChunkSize
	dir := t.TempDir()
	c := openCache(t, dir, WithBudget(budget))
	var wg sync.WaitGroup
	for i := range 4 {
		s := newStore((8+i)*ChunkSize + 99)
		for j := range 4 {
			wg.Go(func() {
				for k := range 30 {
					l, err := c.Layer(fmt.Sprint("layer", i), int64(len(s.content)), s)
					if err != nil {
						t.Error(err)
						return
					}
					check(t, l, s, (k*7+j*3)%8*ChunkSize+k, 70_000)
					if got := c.Stats().Used; got > budget {
						t.Errorf("%d bytes are used", got)
					}
					ok(t, l.Close())
				}
			})
		}
	}
	wg.Wait()
	if got := diskUse(t, dir); got > budget+4*blockSize {
		t.Errorf("%d bytes on disk", got)
	}
	if c.Stats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
}

// kept lists the chunks of an open layer that are kept.
func kept(l *Layer) (all []int) {
	for i := range l.e.chunks {
		if l.e.chunks[i].Load() != nil {
			all = append(all, i)
		}
	}
	return all
}

func TestChunksInUseOutliveOthers(t *testing.T) {
	c := openCache(t, t.TempDir(), WithBudget(4*ChunkSize))
	if !c.punches {
		if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
			t.Fatal("the file system of the temporary directory cannot give back a part of a file")
		}
		t.Skip("the file system of the temporary directory cannot give back a part of a file")
	}
	s := newStore(20 * ChunkSize)
	l := openLayer(t, c, "a", s)
	for i := 2; i < 20; i += 2 { // 0 is read again and again, the others once
		check(t, l, s, 0, 100)
		check(t, l, s, i*ChunkSize, 100)
	}
	if got := kept(l); len(got) != 4 || got[0] != 0 {
		t.Errorf("kept: %v", got)
	}
	for i, r := range s.requests() {
		if r[0] == 0 && i > 0 {
			t.Error("the chunk in use was fetched again")
		}
	}
}

// Layers that nobody has open go first, and of them the one that was closed longest ago: also after a restart.
func TestClosedLayersGoFirstByTheirLastUse(t *testing.T) {
	dir := t.TempDir()
	c := openCache(t, dir)
	s := newStore(2 * ChunkSize)
	for i, id := range []string{"old", "middle", "new"} {
		l := openLayer(t, c, id, s)
		check(t, l, s, 0, len(s.content))
		ok(t, l.Close())
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		for _, f := range []string{".data", ".map"} {
			ok(t, os.Chtimes(filepath.Join(dir, id+f), at, at))
		}
	}
	ok(t, c.Close())
	c = openCache(t, dir)
	l := openLayer(t, c, "open", s)
	check(t, l, s, 0, len(s.content))
	c.SetBudget(4*ChunkSize + 10*blockSize) // maps take a little
	left, err := filepath.Glob(filepath.Join(dir, "*.data"))
	ok(t, err)
	want := []string{filepath.Join(dir, "new.data"), filepath.Join(dir, "open.data")}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
	if got := kept(l); len(got) != 2 {
		t.Errorf("kept of the open layer: %v", got)
	}
}

func TestWhatFindsNoRoomIsReadAndNotKept(t *testing.T) {
	c := openCache(t, t.TempDir(), WithBudget(ChunkSize-1))
	s := newStore(3 * ChunkSize)
	l := openLayer(t, c, "a", s)
	for range 2 {
		check(t, l, s, 100, 2*ChunkSize)
	}
	if got := c.Stats().Used; got != 0 {
		t.Errorf("%d bytes used", got)
	}
}

func TestWarmTakesNothingAwayFromOthers(t *testing.T) {
	c := openCache(t, t.TempDir(), WithBudget(24*ChunkSize))
	used, wanted := newStore(6*ChunkSize), newStore(16*ChunkSize)
	l := openLayer(t, c, "used", used)
	check(t, l, used, 0, len(used.content))
	ok(t, openLayer(t, c, "wanted", wanted).Warm(t.Context()))
	wantErr(t, openLayer(t, c, "more", wanted).Warm(t.Context()), ErrNoRoom)
	check(t, l, used, 0, len(used.content))
	wantRequests(t, used, 1)
	if got := c.Stats(); got.Evicted != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWholeCopyIsEvictedLikeAnythingElse(t *testing.T) {
	dir, s := t.TempDir(), newStore(4*ChunkSize)
	c := openCache(t, dir, WithBudget(4*ChunkSize))
	path := filepath.Join(t.TempDir(), "packed")
	ok(t, os.WriteFile(path, s.content, 0o600))
	ok(t, c.Keep(path, "a"))
	l := openLayer(t, c, "a", s)
	other := newStore(3 * ChunkSize)
	check(t, openLayer(t, c, "b", other), other, 0, len(other.content))
	if used := diskUse(t, dir); used > 4*ChunkSize+2*blockSize {
		t.Errorf("%d bytes on disk", used)
	}
	check(t, l, s, 0, len(s.content))
}
