package overlaybd

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandvol/sandvol/internal/crashfs"
)

const crashSectors = 24

// witness runs a device and remembers what it acknowledged. It goes on until the first error.
type witness struct {
	w       *Writable
	states  [][]byte // content after each change since the last acknowledged flush, attempted ones included
	size    int64    // acknowledged
	maxSize int64    // attempted
	fill    byte
}

func newWitness() *witness {
	return &witness{states: [][]byte{make([]byte, crashSectors*SectorSize)}, size: crashSectors * SectorSize,
		maxSize: crashSectors * SectorSize}
}

func (a *witness) attempt(change func(p []byte)) {
	next := slices.Clone(a.states[len(a.states)-1])
	change(next)
	a.states = append(a.states, next)
}

func (a *witness) write(lba, n int) error {
	a.fill++
	p := bytes.Repeat([]byte{a.fill}, n*SectorSize)
	a.attempt(func(q []byte) { copy(q[lba*SectorSize:], p) })
	_, err := a.w.WriteAt(p, int64(lba)*SectorSize)
	return err
}

func (a *witness) discard(lba, n int) error {
	a.attempt(func(q []byte) { clear(q[lba*SectorSize : (lba+n)*SectorSize]) })
	return a.w.Discard(int64(lba)*SectorSize, int64(n)*SectorSize)
}

// durable says that everything so far was acknowledged as durable.
func (a *witness) durable(err error) error {
	if err == nil {
		a.states = a.states[len(a.states)-1:]
	}
	return err
}

func (a *witness) flush() error { return a.durable(a.w.Flush()) }

func (a *witness) seal(t *testing.T, final bool) error {
	_, err := a.w.Seal(t.Context(), SealOptions{Final: final})
	return a.durable(err)
}

// reclaim gives space back; everything written before it is durable then.
func (a *witness) reclaim(t *testing.T) error {
	_, err := a.w.Reclaim(t.Context())
	return a.durable(err)
}

// rewrite overwrites a few whole blocks again and again, so that there is something to give back.
func (a *witness) rewrite() error {
	for range 4 {
		if err := a.write(8, 8); err != nil {
			return err
		}
	}
	return nil
}

func (a *witness) grow() error {
	a.maxSize = a.size + SectorSize
	err := a.w.Grow(a.maxSize)
	if err == nil {
		a.size = a.maxSize
	}
	return err
}

// run does what a device does in its life: writes, flushes, rolls, seals, a final seal, thaw, growth and reopening.
func (a *witness) run(t *testing.T, e *Engine, dir string) error {
	open := func() (err error) {
		a.w, err = e.OpenWritable(t.Context(), dir, emptyStack(crashSectors*SectorSize))
		return err
	}
	closeDevice := func() error {
		w := a.w
		a.w = nil
		return a.durable(w.Close())
	}
	for _, step := range []func() error{
		open,
		func() error { return a.write(0, 4) },
		a.flush,
		func() error { return a.write(2, 4) },
		func() error { return a.discard(3, 1) },
		a.flush,
		a.rewrite,
		func() error { return a.reclaim(t) },
		func() error { return a.write(20, 1) },
		func() error { return a.seal(t, false) },
		func() error { return a.write(1, 6) },
		a.grow,
		a.rewrite,
		func() error { return a.reclaim(t) },
		func() error { return a.write(9, 2) },
		func() error { return a.reclaim(t) },
		closeDevice, open,
		a.rewrite,
		a.flush,
		func() error { return a.write(0, 2) },
		func() error { return a.reclaim(t) },
		func() error { return a.rolls() }, // with a limit of 8 segments, twice
		a.flush,
		func() error { return a.write(5, 2) },
		func() error { return a.seal(t, true) },
		func() error { return a.w.Thaw(t.Context()) },
		func() error { return a.write(9, 3) },
		closeDevice,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (a *witness) rolls() error {
	for i := range 11 {
		if err := a.write(i%12*2, 1); err != nil {
			return err
		}
	}
	return nil
}

// check opens the directory after a power cut and compares with what was acknowledged. Then the device must be as good
// as new.
func (a *witness) check(t *testing.T, e *Engine, dir string) error {
	w, err := e.OpenWritable(t.Context(), dir, emptyStack(crashSectors*SectorSize))
	if err != nil {
		return err
	}
	defer w.Close()
	if w.Size() != a.size && w.Size() != a.maxSize {
		return fmt.Errorf("size is %d, acknowledged %d, attempted %d", w.Size(), a.size, a.maxSize)
	}
	got := content(t, w)[:crashSectors*SectorSize]
	if !slices.ContainsFunc(a.states, func(s []byte) bool { return bytes.Equal(s, got) }) {
		return fmt.Errorf("content is none of the %d states since the last flush", len(a.states))
	}
	p := bytes.Repeat([]byte{0xee}, SectorSize)
	if _, err := w.WriteAt(p, 0); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if _, err := w.Seal(t.Context(), SealOptions{}); err != nil {
		return err
	}
	copy(got, p)
	if again := content(t, w)[:len(got)]; !bytes.Equal(again, got) {
		return errors.New("content differs after a write and a seal")
	}
	return nil
}

// the machine dies at each operation on its disk in turn. What was acknowledged as flushed is there, whatever
// else the disk kept, and of the rest a prefix.
func TestPowerCutAtEveryDiskOperation(t *testing.T) {
	for i, name := range []string{"only what was synced is left", "some of the rest is left"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := crashfs.New(t)
			total := lifeAndDeath(t, fs, 1<<30, 0)
			if total < 100 {
				t.Fatalf("only %d operations", total)
			}
			for k := 1 + i; k <= total; k += crashStride {
				lifeAndDeath(t, fs, k, int64(k*i))
			}
		})
	}
}

// lifeAndDeath runs a device on an empty disk that dies at its k-th operation, and checks what a power cut then
// leaves. It returns how many operations there were.
func lifeAndDeath(t *testing.T, fs *crashfs.FS, k int, seed int64) int {
	t.Helper()
	fs.Erase()
	dir := filepath.Join(fs.Dir(), "volume")
	e := newEngine(t, newRepo(), WithSealAt(8))
	e.boot = "boot-0"
	a := newWitness()
	start := fs.Ops()
	fs.StopAt(start + k)
	if err := a.run(t, e, dir); err != nil && k == 1<<30 {
		t.Fatal(err)
	}
	if a.w != nil {
		_ = a.w.Close() // fails: the disk is dead
	}
	total := fs.Ops() - start
	fs.PowerCut(seed)
	e.boot = "boot-1"
	if err := a.check(t, e, dir); err != nil {
		t.Errorf("power cut at operation %d, seed %d: %v", k, seed, err)
	}
	return total
}

// A sync that fails once has lost what it should have written, and says so only once: from then on nothing may be
// acknowledged.
func TestFailedSyncRefusesWritesAndFlushesForEver(t *testing.T) {
	fs := crashfs.New(t)
	dir := filepath.Join(fs.Dir(), "volume")
	e := newEngine(t, newRepo())
	e.boot = "boot-0"
	a := newWitness()
	w, err := e.OpenWritable(t.Context(), dir, emptyStack(crashSectors*SectorSize))
	if err != nil {
		t.Fatal(err)
	}
	a.w = w
	if err := errors.Join(a.write(0, 4), a.flush(), a.write(2, 4)); err != nil {
		t.Fatal(err)
	}
	fs.FailSync()
	wantIs(t, w.Flush(), ErrFailed)
	_, sealErr := w.Seal(t.Context(), SealOptions{})
	for what, err := range map[string]error{
		"write": second(w.WriteAt(make([]byte, 512), 0)), "discard": w.Discard(0, 512), "flush": w.Flush(),
		"grow": w.Grow(mib), "seal": sealErr, "thaw": w.Thaw(t.Context()),
	} {
		if !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := content(t, w); got[2*SectorSize] != 2 {
		t.Error("reads do not go on")
	}
	wantIs(t, w.Close(), ErrFailed)
	fs.PowerCut(0)
	e.boot = "boot-1"
	if err := a.check(t, e, dir); err != nil {
		t.Error(err)
	}
}
