package overlaybd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// checkLimit seals and checks that no layer has more segments than limit.
func checkLimit(t *testing.T, w *Writable, limit, atLeast int) []SealedLayer {
	t.Helper()
	layers := seal(t, w, SealOptions{Final: true})
	if len(layers) < atLeast {
		t.Errorf("%d layers, want at least %d", len(layers), atLeast)
	}
	for i, l := range layers {
		if l.Segments > limit {
			t.Errorf("layer %d has %d segments, above %d", i, l.Segments, limit)
		}
	}
	return layers
}

func TestDeviceRollsBeforeALayerIsFull(t *testing.T) {
	const limit, sectors = 100, 4096
	w := newDevice(t, sectors*SectorSize, WithSealAt(limit))
	want := make([]byte, sectors*SectorSize)
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range 1500 {
		lba := rnd.IntN(sectors - 4)
		writeSectors(t, w, lba, 3, byte(i+1))
		copy(want[lba*SectorSize:], bytes.Repeat([]byte{byte(i + 1)}, 3*SectorSize))
	}
	wantContent(t, w, want)
	layers := checkLimit(t, w, limit, 8)
	// Each can be published on its own, and together they are the disk.
	r := newRepo()
	s := emptyStack(sectors * SectorSize)
	for _, l := range layers {
		s.Layers = append(s.Layers, r.publish(t, l))
	}
	ro, err := newEngine(t, r).OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	wantContent(t, ro, want)
}

// One write or discard of many records rolls in the middle of itself.
func TestOneLargeWriteOrDiscardRolls(t *testing.T) {
	const size, written, kept = 256 * mib, 48 * mib, 20 * mib
	w := openDevice(t, newEngine(t, newRepo(), WithSealAt(8)), memoryDir(t), emptyStack(size))
	defer w.Close()
	p := bytes.Repeat([]byte{5}, written)
	if n, err := w.WriteAt(p, 0); n != len(p) || err != nil {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if err := w.Discard(kept, size-kept); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, written+mib)
	if _, err := w.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:kept], p[:kept]) || !bytes.Equal(got[kept:], make([]byte, len(got)-kept)) {
		t.Error("content differs")
	}
	checkLimit(t, w, 8, 2)
}

// The format has room for 255 layers below an upper. A device there goes on until its upper is full, then fails writes.
func TestTooManyLayersFailTheWrite(t *testing.T) {
	w := openDevice(t, newEngine(t, newRepo(), WithSealAt(3)), memoryDir(t)+"/a/b", emptyStack(mib))
	defer w.Close()
	written := 0
	var err error
	for i := 0; i < 2000 && err == nil; i++ {
		_, err = w.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, SectorSize), int64(i)*SectorSize)
		if err == nil {
			written++
		}
	}
	wantIs(t, err, ErrInvalid)
	if n := w.Stats().Layers; n != 255 {
		t.Errorf("%d layers", n)
	}
	got := content(t, w)
	for i := range written {
		if got[i*SectorSize] != byte(i+1) {
			t.Fatalf("sector %d of %d is lost", i, written)
		}
	}
	mustFlush(t, w)
	for _, final := range []bool{false, true} {
		_, err := w.Seal(t.Context(), SealOptions{Final: final})
		wantIs(t, err, ErrInvalid)
	}
}

// Writers, readers, flushes, seals, final seals and thaws at once. Each writer owns some sectors, so that each knows
// what its sectors must hold.
func TestDeviceConcurrentUse(t *testing.T) {
	const writers, each = 4, 32
	w := newDevice(t, writers*each*SectorSize, WithSealAt(60))
	var stop atomic.Bool
	var wg, helpers sync.WaitGroup
	for id := range writers {
		wg.Go(func() { ownSectors(t, w, id*each, each) })
	}
	background := func(f func() error) {
		helpers.Go(func() {
			for !stop.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	background(w.Flush)
	background(func() error {
		_, err := w.Seal(t.Context(), SealOptions{})
		return err
	})
	background(func() error {
		_, err := w.Seal(t.Context(), SealOptions{Final: true})
		if err == nil && w.Stats().Layers > 200 {
			stop.Store(true) // the layers are used up
		}
		return errors.Join(err, w.Thaw(t.Context()))
	})
	background(func() error {
		_, err := w.ReadAt(make([]byte, w.Size()), 0)
		return err
	})
	wg.Wait()
	stop.Store(true)
	helpers.Wait()
}

// ownSectors writes and reads back sectors that nobody else writes.
func ownSectors(t *testing.T, w *Writable, from, n int) {
	rnd := rand.New(rand.NewPCG(uint64(from), 1))
	want := make([]byte, n*SectorSize)
	got := make([]byte, n*SectorSize)
	off := int64(from) * SectorSize
	for i := range 150 {
		a := rnd.IntN(n)
		b := a + 1 + rnd.IntN(n-a)
		next := slices.Clone(want)
		var err error
		if i%4 == 3 {
			clear(next[a*SectorSize : b*SectorSize])
			err = w.Discard(off+int64(a)*SectorSize, int64(b-a)*SectorSize)
		} else {
			copy(next[a*SectorSize:], bytes.Repeat([]byte{byte(i + 1)}, (b-a)*SectorSize))
			_, err = w.WriteAt(next[a*SectorSize:b*SectorSize], off+int64(a)*SectorSize)
		}
		if errors.Is(err, ErrFinal) {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		want = next
		if _, err := w.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
			t.Errorf("sectors from %d: content differs after %d changes, %v", from, i, err)
			return
		}
	}
}

func TestNoAllocationOnReadAndWrite(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	dir := t.TempDir()
	w := openDevice(t, e, dir, emptyStack(16*mib))
	defer w.Close()
	for i := range 8 {
		writeSectors(t, w, i*1000, 512, byte(i))
		seal(t, w, SealOptions{})
	}
	p := make([]byte, 64<<10)
	i := 0
	for what, f := range map[string]func() error{
		"read":    func() error { return second(w.ReadAt(p, int64(i%200)*64<<10)) },
		"write":   func() error { return second(w.WriteAt(p[:4096], int64(i%4000)*4096)) },
		"discard": func() error { return w.Discard(int64(i%4000)*4096, 4096) },
	} {
		n := testing.AllocsPerRun(1000, func() {
			i++
			if err := f(); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
}
