package blockcache

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadEqualsTheLayerAtEveryAlignment(t *testing.T) {
	for _, size := range []int{0, 1, blockSize, ChunkSize, ChunkSize + 1, 2*ChunkSize - 1, 3*ChunkSize + blockSize + 7} {
		s := newStore(size)
		l := openLayer(t, openCache(t, t.TempDir()), "a", s)
		for range 2 { // fetched, then from disk
			for _, off := range []int{0, 1, blockSize - 1, blockSize, ChunkSize - 3, ChunkSize, 2*ChunkSize + 11, size} {
				for _, n := range []int{0, 1, 511, blockSize, blockSize + 1, 2 * blockSize, 3*blockSize + 5, ChunkSize + 9} {
					check(t, l, s, off, n)
				}
			}
		}
	}
}

func TestReadBesideTheLayerIsRefusedOrEOF(t *testing.T) {
	s := newStore(100)
	l := openLayer(t, openCache(t, t.TempDir()), "a", s)
	if n, err := l.ReadAt(make([]byte, 1), 101); n != 0 || err != io.EOF {
		t.Errorf("behind the end: %d, %v", n, err)
	}
	_, err := l.ReadAt(make([]byte, 1), -1)
	wantErr(t, err, ErrInvalid)
}

func TestArgumentsAreChecked(t *testing.T) {
	c := openCache(t, t.TempDir())
	for _, id := range []string{"", "a/b", "..", "a.map"} {
		_, err := c.Layer(id, 1, nil)
		wantErr(t, err, ErrInvalid)
	}
	_, err := c.Layer("a", -1, nil)
	wantErr(t, err, ErrInvalid)
	openLayer(t, c, "a", newStore(10))
	_, err = c.Layer("a", 11, nil)
	wantErr(t, err, ErrInvalid)
	for _, o := range []Option{WithBudget(-1), WithFetchLimit(0), WithFetchTimeout(0), WithBandwidth(-1)} {
		_, err := Open(t.TempDir(), o)
		wantErr(t, err, ErrInvalid)
	}
}

func TestChunkIsFetchedOnceHoweverManyReadIt(t *testing.T) {
	s := newStore(2 * ChunkSize)
	s.gate = make(chan struct{})
	c := openCache(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 16 {
		l := openLayer(t, c, "a", s) // handles share
		wg.Go(func() { check(t, l, s, i*100, 1000) })
		wg.Go(func() { check(t, l, s, i*100, 1000) })
	}
	close(s.gate)
	wg.Wait()
	wantRequests(t, s, 1)
}

func TestRunOfMissingChunksIsOneRequest(t *testing.T) {
	s := newStore(6 * ChunkSize)
	l := openLayer(t, openCache(t, t.TempDir()), "a", s)
	check(t, l, s, ChunkSize+5, 3*ChunkSize-10)
	if diff := cmp.Diff([][2]int64{{ChunkSize, 3 * ChunkSize}}, s.requests()); diff != "" {
		t.Fatal(diff)
	}
	l.Refetch(ChunkSize, 1)
	l.Refetch(3*ChunkSize, 1)
	check(t, l, s, ChunkSize, 3*ChunkSize)
	if diff := cmp.Diff([][2]int64{{ChunkSize, ChunkSize}, {3 * ChunkSize, ChunkSize}}, s.requests()[1:]); diff != "" {
		t.Fatal("around a kept chunk:", diff)
	}
}

func TestPrefetchIsOneRequest(t *testing.T) {
	s := newStore(40*ChunkSize + 77)
	l := openLayer(t, openCache(t, t.TempDir()), "a", s)
	ok(t, l.Prefetch(t.Context(), 9*ChunkSize+5, l.Size()))
	ok(t, l.Prefetch(t.Context(), 20*ChunkSize, 100))
	if diff := cmp.Diff([][2]int64{{9 * ChunkSize, 31*ChunkSize + 77}}, s.requests()); diff != "" {
		t.Fatal(diff)
	}
	check(t, l, s, 9*ChunkSize, 31*ChunkSize+77)
	wantRequests(t, s, 1)
}

func TestSequentialReaderFetchesAhead(t *testing.T) {
	s := newStore(80 * ChunkSize)
	l := openLayer(t, openCache(t, t.TempDir()), "a", s)
	for off := 0; off < len(s.content); off += 100_000 {
		check(t, l, s, off, 100_000)
	}
	if n := len(s.requests()); n > 10 { // 1+2+4+8+16+16+16+16+1
		t.Errorf("%d requests", n)
	}
	random := newStore(80 * ChunkSize)
	l = openLayer(t, l.e.c, "b", random)
	for _, i := range []int{7, 50, 3, 61, 20} {
		check(t, l, random, i*ChunkSize+9, 4096)
	}
	for _, r := range random.requests() {
		if r[1] != ChunkSize {
			t.Errorf("a random read asked for %d bytes", r[1])
		}
	}
}

// what was fetched is there after a restart.
func TestRestartKeepsWhatWasFetched(t *testing.T) {
	dir, s := t.TempDir(), newStore(3*ChunkSize+9)
	c := openCache(t, dir)
	l := openLayer(t, c, "a", s)
	check(t, l, s, 0, len(s.content))
	ok(t, l.Close())
	ok(t, c.Close())
	s.set(func() { s.err, s.calls = errDown, nil })
	c = openCache(t, dir)
	check(t, openLayer(t, c, "a", s), s, 0, len(s.content))
	wantRequests(t, s, 0)
	if got := c.Stats(); got.Used != int64(len(s.content)) || got.Damaged != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWholeCopyIsKeptAndNothingIsFetched(t *testing.T) {
	dir, s := t.TempDir(), newStore(5*ChunkSize+3)
	c := openCache(t, dir)
	path := filepath.Join(t.TempDir(), "packed")
	ok(t, os.WriteFile(path, s.content, 0o600))
	ok(t, c.Keep(path, "a"))
	check(t, openLayer(t, c, "a", s), s, 0, len(s.content))
	// One that comes while the layer is open is not needed.
	ok(t, os.WriteFile(path, s.content, 0o600))
	ok(t, c.Keep(path, "a"))
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("the file is still there:", err)
	}
	wantRequests(t, s, 0)
	if used := c.Stats().Used; used != int64(len(s.content)) {
		t.Errorf("%d bytes used", used)
	}
}

func TestBareCopyOfAnOlderVersionIsAdopted(t *testing.T) {
	dir, s := t.TempDir(), newStore(2*ChunkSize+3)
	ok(t, os.WriteFile(filepath.Join(dir, "a"), s.content, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "b"), s.content[:99], 0o600)) // cut short
	c := openCache(t, dir)
	a := openLayer(t, c, "a", s)
	check(t, a, s, 0, len(s.content))
	ok(t, a.Verify(t.Context(), func(io.Reader) error { t.Error("checked again"); return nil }))
	wantRequests(t, s, 0)
	check(t, openLayer(t, c, "b", s), s, 0, len(s.content))
	wantRequests(t, s, 1)
}

func TestCachedReadAllocatesNothing(t *testing.T) {
	s := newStore(2 * ChunkSize)
	l := openLayer(t, openCache(t, t.TempDir()), "a", s)
	p := make([]byte, 6000)
	check(t, l, s, 0, 2*ChunkSize)
	got := testing.AllocsPerRun(100, func() {
		if _, err := l.ReadWithin(p, ChunkSize-3000, DefaultReadTimeout, nil); err != nil {
			t.Fatal(err)
		}
	})
	if got > 0.5 { // a pool may lose what it holds to the collector
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkReadCached(b *testing.B) {
	for _, n := range []int{2 << 10, 4 << 10, 128 << 10} {
		b.Run("bytes="+map[int]string{2 << 10: "2k", 4 << 10: "4k", 128 << 10: "128k"}[n], func(b *testing.B) {
			s := newStore(64 * ChunkSize)
			l := openLayer(b, openCache(b, b.TempDir()), "a", s)
			ok(b, l.Prefetch(b.Context(), 0, l.Size()))
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				if _, err := l.ReadAt(p, off); err != nil {
					b.Fatal(err)
				}
				off = (off + 7919*1237) % (l.Size() - int64(n))
			}
		})
	}
}
