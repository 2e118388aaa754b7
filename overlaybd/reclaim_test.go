package overlaybd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// diskBytes returns the space that a directory's files take.
func diskBytes(t testing.TB, dir string) (n int64) {
	t.Helper()
	for _, name := range dirNames(t, dir) {
		var st syscall.Stat_t
		if err := syscall.Stat(dir+"/"+name, &st); err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Fatal(err)
		}
		n += st.Blocks * 512
	}
	return n
}

// The same 64 MiB written again and again take a bounded space, without a call to Reclaim, and hold what was written.
func TestRewritingTheSameBlocksDoesNotGrowTheUpper(t *testing.T) {
	const window, rounds = 64 * mib, 50
	const most = 4 * window
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := memoryDir(t)
	var room syscall.Statfs_t
	if err := syscall.Statfs(dir, &room); err != nil || int64(room.Bavail)*room.Bsize < 2*most {
		dir = t.TempDir()
	}
	w := openDevice(t, newEngine(t, newRepo()), dir, emptyStack(2*window))
	model := make([]byte, window)
	p := make([]byte, mib)
	greatest := int64(0)
	for round := range rounds {
		for off := int64(0); off < window; off += mib {
			for i := range p {
				p[i] = byte(round) ^ byte(i>>8) ^ byte(off>>20)
			}
			copy(model[off:], p)
			if _, err := w.WriteAt(p, off); err != nil {
				t.Fatal(err)
			}
		}
		greatest = max(greatest, diskBytes(t, dir))
		waitReclaimed(t, w)
	}
	if greatest > most {
		t.Errorf("%d MiB on the disk for %d MiB of content", greatest/mib, window/mib)
	}
	if s := w.Stats(); s.UnsealedBytes != rounds*window || s.LogBytes > most || s.GarbageRatio() > 0.9 {
		t.Errorf("stats are %+v, garbage %v", s, s.GarbageRatio())
	}
	got := make([]byte, window)
	if _, err := w.ReadAt(got, 0); err != nil || !bytes.Equal(got, model) {
		t.Errorf("content differs, %v", err)
	}
	if _, err := w.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := w.Stats(); s.GarbageBytes > mib || s.GarbageRatio() > 0.05 {
		t.Errorf("after Reclaim: %+v", s)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// waitReclaimed waits until no space is being given back in the background.
func waitReclaimed(t testing.TB, w *Writable) {
	t.Helper()
	for until := time.Now().Add(time.Minute); w.reclaiming.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a reclaim does not end")
		}
	}
}

// Records of discards take space too, and are given back with the rest.
func TestDiscardingForEverDoesNotGrowTheIndex(t *testing.T) {
	w := openDevice(t, newEngine(t, newRepo(), WithReclaim(0.5, 64<<10)), memoryDir(t), emptyStack(mib))
	defer w.Close()
	writeSectors(t, w, 0, 2048, 1)
	for i := range 20_000 {
		if err := w.Discard(int64(i%2048)*SectorSize, SectorSize); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			mustFlush(t, w)
			waitReclaimed(t, w)
		}
	}
	mustFlush(t, w)
	if s := w.Stats(); s.IndexBytes > 200<<10 {
		t.Errorf("%d bytes of records", s.IndexBytes)
	}
	wantContent(t, w, make([]byte, mib))
}

// Readers, writers that own their sectors, flushes, seals and reclaims at once: each reads what it wrote, whole.
func TestReclaimWithIOGoingOn(t *testing.T) {
	const writers, each = 4, 64
	w := newDevice(t, writers*each*SectorSize, WithReclaim(0.2, 32<<10))
	var stop atomic.Bool
	var wg, helpers sync.WaitGroup
	for id := range writers {
		wg.Go(func() {
			for range 4 {
				ownSectors(t, w, id*each, each)
				if err := w.Discard(int64(id*each)*SectorSize, each*SectorSize); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, f := range []func() error{
		w.Flush,
		func() error { return second(w.Reclaim(t.Context())) },
		func() error {
			time.Sleep(5 * time.Millisecond)
			return second(w.Seal(t.Context(), SealOptions{}))
		},
		func() error { return second(w.ReadAt(make([]byte, w.Size()), 0)) },
	} {
		helpers.Go(func() {
			for !stop.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
				if w.Stats().Layers > 240 {
					return
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	helpers.Wait()
}

// A read that looked up what is given back meanwhile reads again: it never finds zeroes.
func TestReadersNeverSeeSpaceThatIsGivenBack(t *testing.T) {
	const sectors = 64
	w := openDevice(t, newEngine(t, newRepo(), WithReclaim(2, mib)), memoryDir(t), emptyStack(sectors*SectorSize))
	defer w.Close()
	writeSectors(t, w, 0, sectors, 1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			p := make([]byte, sectors*SectorSize)
			for !stop.Load() {
				if _, err := w.ReadAt(p, 0); err != nil {
					t.Error(err)
					return
				}
				if i := bytes.IndexByte(p, 0); i >= 0 {
					t.Errorf("byte %d is zero", i)
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range 280 {
		writeSectors(t, w, rnd.IntN(sectors/8)*8, 8, byte(1+i%255))
		if _, err := w.Reclaim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// What a crash left of a rewritten index file goes at the next open.
func TestLeftoverOfARewriteIsRemoved(t *testing.T) {
	e, dir := newEngine(t, newRepo()), t.TempDir()
	w := openDevice(t, e, dir, emptyStack(mib))
	writeSectors(t, w, 3, 1, 9)
	left := w.dir.logPaths(w.upper.UUID()).Index + lsmt.RewriteExt
	if err := errors.Join(w.Close(), os.WriteFile(left, make([]byte, 5000), 0o600)); err != nil {
		t.Fatal(err)
	}
	w = openDevice(t, e, dir, emptyStack(mib))
	defer w.Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", left, err)
	}
	if got := content(t, w); got[3*SectorSize] != 9 {
		t.Error("content differs")
	}
}

// A write and a flush are one fsync of the data and one of the index, and writers that flush at once share them.
func TestWriteAndFlushCostTwoSyncs(t *testing.T) {
	w := newDevice(t, mib)
	for i := range 10 {
		writeSectors(t, w, i*8, 8, 1)
		mustFlush(t, w)
		mustFlush(t, w) // nothing to do
		if n := w.Stats().Syncs; n != int64(2*(i+1)) {
			t.Fatalf("%d fsyncs for %d writes with a flush each", n, i+1)
		}
	}
	const writers, each = 8, 10
	before := w.Stats().Syncs
	var wg sync.WaitGroup
	for id := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := w.WriteAt(make([]byte, 4096), int64(id*each+i)*4096); err != nil {
					t.Error(err)
				}
				if err := w.Flush(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := w.Stats().Syncs - before
	t.Logf("%d fsyncs for %d flushes of %d writers", n, writers*each, writers)
	if n > 2*writers*each {
		t.Errorf("%d fsyncs for %d flushes", n, writers*each)
	}
}

func TestReclaimOfASealedOrClosedDevice(t *testing.T) {
	w := newDevice(t, mib)
	writeSectors(t, w, 0, 8, 1)
	seal(t, w, SealOptions{Final: true})
	if n, err := w.Reclaim(t.Context()); n != 0 || err != nil {
		t.Errorf("sealed: %d, %v", n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := w.Reclaim(t.Context())
	wantIs(t, err, ErrClosed)
	_, err = New(Config{Open: newRepo().open}, WithReclaim(0, 1))
	wantIs(t, err, ErrInvalid)
	_, err = New(Config{Open: newRepo().open}, WithReclaim(1, 0))
	wantIs(t, err, ErrInvalid)
}
