package lsmt

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readLog reads sectors of a log without layers below.
func readLog(t testing.TB, l *Log, lba, n uint64) []byte {
	t.Helper()
	v := View{Logs: []*Log{l}, Base: NewIndex(nil), Files: files(l.Data())}
	p := make([]byte, n*SectorSize)
	if err := v.ReadAt(p, int64(lba*SectorSize)); err != nil {
		t.Fatal(err)
	}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLogAddressLimits(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: 1 << 58})
	for _, lba := range []uint64{0, 1<<32 - 1, 1 << 32, 1<<40 + 3, invalidLBA - MaxSegment} {
		p := bytes.Repeat([]byte{byte(lba>>3) | 1}, MaxSegment*SectorSize)
		must(t, l.Append(p, lba))
		if got := readLog(t, l, lba, MaxSegment); !bytes.Equal(got, p) {
			t.Errorf("content at sector %d differs", lba)
		}
	}
	segs, err := l.Seal()
	must(t, err)
	layer := openLayerBytes(t, readAll(t, l.Path()))
	if len(layer.Segments) != len(segs) {
		t.Errorf("sealed layer has %d segments, want %d", len(layer.Segments), len(segs))
	}
}

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

// A sealed layer can be sealed again after a failure in between, also when something was written behind it.
func TestSealCanBeRepeated(t *testing.T) {
	l := newTestLog(t, LogOptions{UUID: goldenUUID(1), VirtualSize: goldenSize})
	runScript(t, l, "s1")
	_, err := l.Seal()
	must(t, err)
	first := readAll(t, l.Path())
	_, err = l.Seal()
	must(t, err)
	if !bytes.Equal(first, readAll(t, l.Path())) {
		t.Error("the second seal gives another file")
	}
	// Given up: the log goes on, and the trailer in its middle is garbage.
	must(t, l.Append(bytes.Repeat([]byte{9}, 4096), 0))
	must(t, l.Close())
	again, _, err := OpenLog(l.paths, LogOptions{BootID: "boot"})
	must(t, err)
	defer again.Close()
	if got := readLog(t, again, 0, 8); !bytes.Equal(got, bytes.Repeat([]byte{9}, 4096)) {
		t.Error("the write after the given-up seal is lost")
	}
}

func TestRetireLeavesOnlyTheLayer(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	must(t, l.Append(bytes.Repeat([]byte{7}, 512), 5))
	_, err := l.Seal()
	must(t, err)
	must(t, l.Retire())
	must(t, l.Retire())
	must(t, l.Sync()) // nothing left to do
	for _, path := range []string{l.paths.Index, l.paths.Pending} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", path)
		}
	}
	if got := readLog(t, l, 5, 1); got[0] != 7 {
		t.Error("a retired log cannot be read")
	}
}

func TestGrowIsDurableInBothHeaders(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	must(t, l.Grow(2*goldenSize))
	must(t, l.Close())
	for _, path := range []string{l.paths.Data, l.paths.Index} {
		h, err := decodeHeader("header", readAll(t, path)[:HeaderSize])
		must(t, err)
		if h.VirtualSize != 2*goldenSize {
			t.Errorf("%s has size %d", path, h.VirtualSize)
		}
	}
}

// More records than the queue holds go round in it, and a kill in the middle loses none.
func TestQueueGoesRound(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: 1 << 40, BootID: "boot"})
	const n = pendingSlots + syncThreshold + 10
	for i := range uint64(n) {
		must(t, l.Discard(i*3, 1))
	}
	if !l.Waiting() {
		t.Error("a queue above 1 MiB does not say that a sync is due")
	}
	must(t, l.Close())
	again, r, err := OpenLog(l.paths, LogOptions{BootID: "boot"})
	must(t, err)
	defer again.Close()
	if again.Segments() != n || r.Replayed == 0 {
		t.Errorf("%d segments, want %d; %+v", again.Segments(), n, r)
	}
}

// A disk without room for the queue fails the write that would need it; a later one succeeds.
func TestNoRoomForTheQueueFailsTheWrite(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	real := l.queue.path
	l.queue.path = "/dev/full/pending"
	if err := l.Append(make([]byte, 512), 0); err == nil {
		t.Error("a write without a queue is acknowledged")
	}
	if l.Segments() != 0 || l.DataBytes() != 0 {
		t.Error("a refused write left something")
	}
	l.queue.path = real
	must(t, l.Append(make([]byte, 512), 0))
}

// A descriptor that cannot be synced stands for a disk that lost what was written.
func TestFailedSyncIsForEver(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	must(t, l.Append(bytes.Repeat([]byte{3}, 512), 0))
	must(t, l.Sync())
	must(t, l.Append(bytes.Repeat([]byte{4}, 512), 1))
	data := l.data
	var fds [2]int
	must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	l.data = os.NewFile(uintptr(fds[1]), "pipe")
	defer unix.Close(fds[0])
	if err := l.Sync(); !errors.Is(err, ErrFailed) {
		t.Fatalf("sync: %v, want ErrFailed", err)
	}
	must(t, l.data.Close())
	l.data = data
	for what, err := range map[string]error{
		"sync": l.Sync(), "append": l.Append(make([]byte, 512), 2), "discard": l.Discard(2, 1), "grow": l.Grow(1 << 30),
	} {
		if !errors.Is(err, ErrFailed) {
			t.Errorf("%s after a failed sync: %v", what, err)
		}
	}
	if got := readLog(t, l, 0, 2); got[0] != 3 || got[512] != 4 {
		t.Error("reads do not go on")
	}
}

// However many ask at once, each is covered by a run that began after it asked, and runs are shared.
func TestRoundsAreShared(t *testing.T) {
	var r rounds
	var asked, runs atomic.Int64
	covered := int64(0)
	work := func() error {
		covered = asked.Load()
		runs.Add(1)
		time.Sleep(time.Millisecond)
		return nil
	}
	var wg sync.WaitGroup
	const callers, each = 16, 20
	for range callers {
		wg.Go(func() {
			for range each {
				mine := asked.Add(1)
				must(t, r.do(work))
				r.run.Lock()
				if covered < mine {
					t.Errorf("request %d returned, covered are %d", mine, covered)
				}
				r.run.Unlock()
			}
		})
	}
	wg.Wait()
	if n := runs.Load(); n > callers*each/2 {
		t.Errorf("%d runs for %d requests", n, callers*each)
	}
}

// Readers, a writer and syncs at once, for the race detector; a reader sees each sector whole.
func TestLogConcurrentUse(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				p := readLog(t, l, 0, 64)
				for s := p; len(s) > 0; s = s[SectorSize:] {
					if !bytes.Equal(s[:SectorSize], bytes.Repeat(s[:1], SectorSize)) {
						t.Error("a sector is mixed")
						return
					}
				}
			}
		})
		wg.Go(func() {
			for !stop.Load() {
				if err := l.Sync(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 3000 {
		if i%5 == 4 {
			must(t, l.Discard(uint64(i%61), 3))
		} else {
			must(t, l.Append(bytes.Repeat([]byte{byte(i)}, 4*SectorSize), uint64(i*13%60)))
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestNoAllocationOnReadAndWrite(t *testing.T) {
	l := newTestLog(t, LogOptions{VirtualSize: goldenSize})
	p := make([]byte, 4096)
	must(t, l.Append(p, 0))
	v := View{Logs: []*Log{l}, Base: NewIndex([]Segment{ZeroSegment(100, 8, 8, 0)}), Files: files(l.Data())}
	i := uint64(0)
	for what, f := range map[string]func(){
		"append":  func() { i++; must(t, l.Append(p, i*8%1024)) },
		"discard": func() { i++; must(t, l.Discard(i*8%1024, 8)) },
		"read":    func() { i++; must(t, v.ReadAt(p, int64(i*4096%goldenSize))) },
	} {
		if n := testing.AllocsPerRun(2000, f); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
}
