package volume_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// marker is a Formatter whose file system is one recognisable sector: what the tests need of one.
type marker struct{ err error }

func (marker) Version() string               { return "marker/1" }
func (f marker) Check(context.Context) error { return f.err }
func (marker) Format(_ context.Context, dev overlaybd.Device) error {
	_, err := dev.WriteAt(sector('F'), 4096)
	return err
}

func sector(b byte) []byte { return bytes.Repeat([]byte{b}, overlaybd.SectorSize) }

// world is one store with nodes on it, each with its own directory.
type world struct {
	t     *testing.T
	st    store.Store
	opts  []volume.Option
	clock time.Time
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, st: memstore.New(), clock: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	w.opts = []volume.Option{volume.Quiet, volume.WithFormatter(marker{}), volume.WithClock(func() time.Time { return w.clock })}
	return w
}

// node opens a repository on a fresh directory, and its manager of tenant "team".
func (w *world) node(name string) *volume.Manager {
	w.t.Helper()
	return w.nodeAt(name, filepath.Join(w.t.TempDir(), name))
}

func (w *world) nodeAt(name, dir string) *volume.Manager {
	w.t.Helper()
	r, err := volume.Open(w.t.Context(), volume.Config{Store: w.st, Dir: dir, Node: name}, w.opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			w.t.Errorf("close node %s: %v", name, err)
		}
	})
	return w.tenant(r, "team")
}

func (w *world) tenant(r *volume.Repository, name string) *volume.Manager {
	w.t.Helper()
	m, err := r.Tenant(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error is %v, want class %v", err, class)
	}
}

func create(t *testing.T, m *volume.Manager, o volume.CreateOptions) volume.Volume {
	t.Helper()
	if o.Size == 0 && o.Source == volume.Empty() {
		o.Size = volume.MinSize
	}
	return must[volume.Volume](t)(m.Create(t.Context(), o))
}

func attach(t *testing.T, m *volume.Manager, ref, sandbox string) *volume.Session {
	t.Helper()
	return must[*volume.Session](t)(m.Attach(t.Context(), ref, sandbox))
}

func write(t *testing.T, dev io.WriterAt, off int64, b byte) {
	t.Helper()
	if _, err := dev.WriteAt(sector(b), off); err != nil {
		t.Fatal(err)
	}
}

// at returns the byte that fills the sector at off, and fails if it is not filled with one byte.
func at(t *testing.T, dev io.ReaderAt, off int64) byte {
	t.Helper()
	p := make([]byte, overlaybd.SectorSize)
	if _, err := dev.ReadAt(p, off); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	if !bytes.Equal(p, sector(p[0])) {
		t.Fatalf("sector at %d is torn: %q...", off, p[:8])
	}
	return p[0]
}

// pause seals for good and pauses.
func pause(t *testing.T, s *volume.Session) {
	t.Helper()
	c := must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Clean, true)))
	ok(t, s.Pause(t.Context(), c))
}

func release(t *testing.T, s *volume.Session) {
	t.Helper()
	c := must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Clean, true)))
	ok(t, s.Release(t.Context(), c))
}

// publish cuts a running device and publishes the cut.
func publish(t *testing.T, s *volume.Session) *volume.Sealed {
	t.Helper()
	c := must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Clean, false)))
	ok(t, s.Publish(t.Context(), c))
	return c
}
