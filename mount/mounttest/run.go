package mounttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
)

// Env is one exposer under test.
type Env struct {
	// Exposer is closed by the factory, with t.Cleanup.
	Exposer mount.Exposer
	// Open opens an exposure as a client; OpenFile if nil.
	Open func(path string, readOnly bool) (Client, error)
	// Vanish lets a client in another process open an exposure and die without a word; VanishFile if nil.
	Vanish func(t *testing.T, path string)
	// SectorsOnly says that clients can address whole sectors only.
	SectorsOnly bool
}

// limit bounds every wait of the suite: reaching it is a failure.
const limit = 10 * time.Second

const deviceSize = 8 << 20

// Run holds the exposer that factory makes to the contract of mount.Exposer. Each subtest gets its own.
func Run(t *testing.T, factory func(t *testing.T) Env) {
	for name, check := range map[string]func(*testing.T, *env){
		"bad names and devices are refused":                testBadInput,
		"a name is taken until its exposure is closed":     testNames,
		"sectors arrive as they were sent":                 testSectors,
		"any offset and length reads and writes bytes":     testBytes,
		"nothing is written past the end":                  testEnd,
		"disjoint writers at once do not disturb":          testConcurrent,
		"parts of one sector written at once all arrive":   testSharedSectors,
		"sync flushes what was acknowledged before":        testSync,
		"discarded ranges read as zeroes":                  testDiscard,
		"a read-only drive never writes to its device":     testReadOnly,
		"device errors reach the client":                   testErrors,
		"a grown device is seen after Resize":              testResize,
		"a name used again shows the new device":           testReuse,
		"close waits for clients":                          testCloseWaits,
		"close ends with its context and cuts clients off": testCloseCuts,
		"close with a hung device does not hang":           testCloseHung,
		"a client that dies leaves nothing open":           testVanish,
		"fifty cycles leak nothing":                        testCycles,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			e := &env{Env: factory(t)}
			if e.Open == nil {
				e.Open = OpenFile
			}
			if e.Vanish == nil {
				e.Vanish = VanishFile
			}
			check(t, e)
		})
	}
}

type env struct{ Env }

func (e *env) expose(t *testing.T, name string, dev overlaybd.Device, readOnly bool) mount.Exposure {
	t.Helper()
	x, err := e.Exposer.Expose(t.Context(), name, dev, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closeWithin(x, time.Second) }) // a test that cares has closed it
	return x
}

func (e *env) open(t *testing.T, x mount.Exposure, readOnly bool) Client {
	t.Helper()
	c, err := e.Open(x.Path(), readOnly)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // closed already where that is part of the test
	return c
}

// drive exposes a fresh device and opens it.
func (e *env) drive(t *testing.T) (*MemDevice, mount.Exposure, Client) {
	t.Helper()
	dev := NewMemDevice(deviceSize)
	x := e.expose(t, "drive", dev, false)
	return dev, x, e.open(t, x, false)
}

func closeWithin(x mount.Exposure, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return x.Close(ctx)
}

func write(t *testing.T, c Client, p []byte, off int64) {
	t.Helper()
	if _, err := c.WriteAt(p, off); err != nil {
		t.Fatalf("write %d bytes at %d: %v", len(p), off, err)
	}
}

func read(t *testing.T, r io.ReaderAt, n int, off int64) []byte {
	t.Helper()
	p := make([]byte, n)
	if _, err := r.ReadAt(p, off); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes at %d: %v", n, off, err)
	}
	return p
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Fatalf("%s: %d bytes, want %d; they differ from byte %d on: %x..., want %x...",
		what, len(got), len(want), at, got[at:min(at+8, len(got))], want[at:min(at+8, len(want))])
}

// span is a range of bytes.
type span struct{ off, n int64 }

// widened is the whole sectors that hold the span.
func (s span) widened() span {
	from, to := s.off&^(overlaybd.SectorSize-1), (s.off+s.n+overlaybd.SectorSize-1)&^(overlaybd.SectorSize-1)
	return span{from, to - from}
}

func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(p) // never fails
	return p
}

func testBadInput(t *testing.T, e *env) {
	dev := NewMemDevice(deviceSize)
	for _, name := range []string{"", ".", "..", "a/b", "a.b", "a b", "ä", "a\x00", strings.Repeat("x", 256)} {
		if _, err := e.Exposer.Expose(t.Context(), name, dev, false); !errors.Is(err, mount.ErrInvalid) {
			t.Errorf("name %q: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := e.Exposer.Expose(t.Context(), "empty", NewMemDevice(0), false); !errors.Is(err, mount.ErrInvalid) {
		t.Errorf("device of size 0: %v, want ErrInvalid", err)
	}
}

func testNames(t *testing.T, e *env) {
	x := e.expose(t, "same", NewMemDevice(deviceSize), false)
	if _, err := e.Exposer.Expose(t.Context(), "same", NewMemDevice(deviceSize), false); !errors.Is(err, mount.ErrExists) {
		t.Errorf("second exposure: %v, want ErrExists", err)
	}
	if err := closeWithin(x, limit); err != nil {
		t.Fatal(err)
	}
	if err := closeWithin(x, limit); err != nil {
		t.Errorf("closed again: %v, want the same answer", err)
	}
	if err := x.Resize(); !errors.Is(err, mount.ErrClosed) {
		t.Errorf("resize after close: %v, want ErrClosed", err)
	}
	if c, err := e.Open(x.Path(), true); err == nil {
		_ = c.Close()
		t.Error("opened after close")
	}
	e.expose(t, "same", NewMemDevice(deviceSize), false)
}
