package lsmt

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
)

func reclaim(t testing.TB, l *Log) {
	t.Helper()
	_, err := l.Reclaim(t.Context(), func() {})
	must(t, err)
}

// diskBytes returns the space that the files of a log take.
func diskBytes(t testing.TB, l *Log) (n int64) {
	t.Helper()
	for _, path := range []string{l.paths.Data, l.paths.Index} {
		info, err := os.Stat(path)
		must(t, err)
		n += allocated(info)
	}
	return n
}

// scatter overwrites and discards runs of a small disk at random and keeps want equal to it.
func scatter(t testing.TB, l *Log, rnd *rand.Rand, want []byte, n int) {
	t.Helper()
	sectors := len(want) / SectorSize
	for range n {
		lba, k := rnd.IntN(sectors-16), 1+rnd.IntN(16)
		p := want[lba*SectorSize : (lba+k)*SectorSize]
		if rnd.IntN(5) == 0 {
			clear(p)
			must(t, l.Discard(uint64(lba), uint64(k)))
			continue
		}
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		must(t, l.Append(p, uint64(lba)))
	}
}

func wantLog(t testing.TB, l *Log, want []byte) {
	t.Helper()
	if got := readLog(t, l, 0, uint64(len(want)/SectorSize)); !bytes.Equal(got, want) {
		for i := 0; i < len(got); i += SectorSize {
			if !bytes.Equal(got[i:i+SectorSize], want[i:i+SectorSize]) {
				t.Fatalf("sector %d differs", i/SectorSize)
			}
		}
	}
}

// Rewriting the same blocks for ever takes a bounded space, in both files, and loses nothing: not at once, not after a
// kill, not after a power cut, not when sealed.
func TestReclaimKeepsContentAndBoundsSpace(t *testing.T) {
	const size = 1 << 20
	p := logPaths(memoryDir(t))
	l, err := CreateLog(p, LogOptions{BootID: "boot", VirtualSize: size})
	must(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, size)
	for round := range 20 {
		scatter(t, l, rnd, want, 300)
		if round%3 == 0 {
			must(t, l.Sync())
		}
		reclaim(t, l)
		scatter(t, l, rnd, want, 20)
		wantLog(t, l, want)
		if n := diskBytes(t, l); n > 8*size {
			t.Fatalf("round %d: %d bytes for a disk of %d", round, n, size)
		}
		boot := "boot"
		if round%4 == 3 {
			must(t, l.Sync())
			boot = "another boot"
		}
		must(t, l.Close())
		l, _, err = OpenLog(p, LogOptions{BootID: boot})
		must(t, err)
		wantLog(t, l, want)
		// The files of the next rounds are made by a log of that boot.
		l.boot = "boot"
	}
	if l.DataBytes() < 5*size {
		t.Errorf("only %d bytes were written", l.DataBytes())
	}
	reclaim(t, l)
	_, err = l.Seal()
	must(t, err)
	layer := openLayerBytes(t, readAll(t, p.Data))
	view := View{Base: NewIndex(layer.Segments), Files: files(l.Data())}
	got := make([]byte, size)
	must(t, view.ReadAt(got, 0))
	if !bytes.Equal(got, want) {
		t.Error("content of the sealed layer differs")
	}
	must(t, l.Close())
}

// Records that wait when the index file is rewritten count as written, and later ones are found by number after a kill.
func TestReclaimedLogKeepsItsQueueAfterAKill(t *testing.T) {
	for _, synced := range []bool{true, false} {
		l := newTestLog(t, LogOptions{VirtualSize: goldenSize, BootID: "boot"})
		for i := range 100 {
			must(t, l.Append(bytes.Repeat([]byte{byte(i)}, SectorSize), uint64(i%7)))
		}
		if synced {
			must(t, l.Sync())
		}
		reclaim(t, l)
		reclaim(t, l)
		must(t, l.Append(bytes.Repeat([]byte{200}, SectorSize), 3))
		must(t, l.Append(bytes.Repeat([]byte{201}, SectorSize), 9))
		must(t, l.Close())
		again, r, err := OpenLog(l.paths, LogOptions{BootID: "boot"})
		must(t, err)
		if r.Replayed != 2 {
			t.Errorf("%d records replayed, want 2", r.Replayed)
		}
		if got := readLog(t, again, 0, 10); got[3*SectorSize] != 200 || got[9*SectorSize] != 201 || got[0] != 98 {
			t.Error("content differs after a kill")
		}
		must(t, again.Close())
	}
}

// A reader that looked up before begin may find zeroes, and never anything else that was not there; until begin all is
// as it was.
func TestReclaimFreesNothingBeforeItSaysSo(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	old := bytes.Repeat([]byte{1}, 64*SectorSize)
	must(t, l.Append(old, 0))
	before, _ := l.Next(0)
	must(t, l.Append(bytes.Repeat([]byte{2}, 64*SectorSize), 0))
	view := View{Base: NewIndex([]Segment{before}), Files: files(l.Data())}
	got := make([]byte, len(old))
	begun := false
	freed, err := l.Reclaim(t.Context(), func() {
		begun = true
		must(t, view.ReadAt(got, 0))
		if !bytes.Equal(got, old) {
			t.Error("bytes are gone before begin")
		}
		if n := l.records.Load(); n != 3 || l.indexEnd() != int64(len(readAll(t, l.paths.Index))) {
			t.Errorf("index file has %d entries at begin", n)
		}
	})
	must(t, err)
	if !begun || freed != int64(len(old)) {
		t.Errorf("begun: %v, %d bytes freed, want %d", begun, freed, len(old))
	}
	must(t, view.ReadAt(got, 0))
	if !bytes.Equal(got, make([]byte, len(old))) {
		t.Error("the space of overwritten data still holds it")
	}
	if garbage, _ := l.Garbage(); garbage != l.Unreclaimed() {
		t.Errorf("%d bytes of garbage after a Reclaim that left %d", garbage, l.Unreclaimed())
	}
}

// Other readers of the format skip padding entries and want each of the others within the data.
func TestRewrittenIndexIsOneOfTheFormat(t *testing.T) {
	l := newTestLog(t, LogOptions{UUID: goldenUUID(1), VirtualSize: goldenSize})
	runScript(t, l, "s1")
	want := logSegments(l)
	reclaim(t, l)
	must(t, l.Append(make([]byte, SectorSize), 3000))
	must(t, l.Sync())
	b := readAll(t, l.paths.Index)
	h, err := decodeHeader("header", b)
	must(t, err)
	if h.Flags != flagsIndex || h.IndexOffset != HeaderSize || h.IndexSize != 0 || h.UUID != goldenUUID(1) {
		t.Errorf("header is %+v", h)
	}
	var replayed liveIndex
	for b = b[HeaderSize:]; len(b) > 0; b = b[entrySize:] {
		s := decodeSegment(b)
		if s.LBA() == invalidLBA && s.Len() == 0 {
			continue
		}
		if !s.inRange(uint64(l.end.Load()) / SectorSize) {
			t.Errorf("record %v is outside the data", s)
		}
		replayed.insert(s)
	}
	want = append(want, DataSegment(3000, 1, uint64(l.end.Load())/SectorSize-1, 0))
	if got := replayed.appendTo(nil); !slices.Equal(got, want) {
		t.Errorf("another reader finds %v, want %v", got, want)
	}
}

// The records of a rewritten index file were durable before it got its name: whatever is missing of them was destroyed.
func TestRewrittenIndexCutShortIsCorrupt(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: historySectors * SectorSize})
	for i := range 6 {
		must(t, l.Append(bytes.Repeat([]byte{byte(i + 1)}, SectorSize), uint64(i)))
	}
	reclaim(t, l)
	base := l.indexEnd()
	must(t, l.Append(bytes.Repeat([]byte{9}, SectorSize), 0))
	must(t, l.Sync())
	data, index := readAll(t, l.paths.Data), readAll(t, l.paths.Index)
	dir := memoryDir(t)
	for n := int64(HeaderSize) + entrySize; n <= int64(len(index)); n++ {
		got, _, err := history{}.reopen(t, dir, data, index[:n])
		switch {
		case n < base:
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("cut at byte %d of a base that ends at %d: %v", n, base, err)
			}
		case err != nil || got[SectorSize] != 2 || got[0] != 1 && got[0] != 9:
			t.Fatalf("cut at byte %d: %v", n, err)
		}
	}
	for n := int64(HeaderSize) + entrySize; n < base; n += entrySize {
		damaged := slices.Clone(index)
		clear(damaged[n : n+entrySize])
		if _, _, err := (history{}).reopen(t, dir, data, damaged); !errors.Is(err, ErrCorrupt) {
			t.Errorf("entry at byte %d zeroed: %v", n, err)
		}
	}
}

func TestReclaimThatIsStoppedOrRefusedLosesNothing(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	want := make([]byte, goldenSize)
	scatter(t, l, rand.New(rand.NewPCG(3, 3)), want, 500)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := l.Reclaim(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	wantLog(t, l, want)
	must(t, os.Mkdir(l.paths.Index+RewriteExt, 0o700))
	if _, err := l.Reclaim(t.Context(), func() {}); err == nil {
		t.Error("no error without an index file")
	}
	must(t, os.Remove(l.paths.Index+RewriteExt))
	scatter(t, l, rand.New(rand.NewPCG(4, 4)), want, 50)
	reclaim(t, l)
	wantLog(t, l, want)
	must(t, l.Close())
	if _, err := l.Reclaim(t.Context(), func() {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A write and a flush cost one fsync of the data and one of the index, and those who flush together share them.
func TestFlushesShareTwoSyncs(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	p := make([]byte, 4096)
	for i := range 5 {
		before := l.Syncs()
		must(t, l.Append(p, uint64(i)*8))
		must(t, l.Sync())
		if n := l.Syncs() - before; n != 2 {
			t.Errorf("%d fsyncs for a write and a flush", n)
		}
		must(t, l.Sync())
		if n := l.Syncs() - before; n != 2 {
			t.Errorf("%d fsyncs after a flush of nothing", n)
		}
	}
	const writers = 16
	before := l.Syncs()
	for i := range writers {
		must(t, l.Append(p, uint64(i)*8))
	}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() { must(t, l.Sync()) })
	}
	wg.Wait()
	if n := l.Syncs() - before; n != 2 {
		t.Errorf("%d fsyncs for %d writers that flush together", n, writers)
	}
}
