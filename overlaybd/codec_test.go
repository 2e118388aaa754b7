package overlaybd

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// zfileDevice returns a stack of one layer in a ZFile, and its stored bytes.
func zfileDevice(t *testing.T, r *repo) (Stack, []byte) {
	t.Helper()
	r.blobs["odd"] = nil // the next layer is the second, and packed
	w := newDeviceOn(t, r)
	writeSectors(t, w, 0, 64, 'z')
	layers := seal(t, w, SealOptions{Final: true})
	l := r.publish(t, layers[0])
	if l.Codec != CodecZFile {
		t.Fatalf("codec is %q", l.Codec)
	}
	return Stack{VirtualSize: 1 << 20, Layers: []Layer{l}}, r.blobs[l.Key]
}

func newDeviceOn(t *testing.T, r *repo) *Writable {
	t.Helper()
	w := openDevice(t, newEngine(t, r), t.TempDir(), emptyStack(1<<20))
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestZFileLayersReadAsWhatWasWritten(t *testing.T) {
	r := newRepo()
	s, stored := zfileDevice(t, r)
	if len(stored) > 16<<10 {
		t.Errorf("32 KiB of one byte take %d bytes", len(stored))
	}
	dev, err := newEngine(t, r).OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want := make([]byte, 1<<20)
	copy(want, bytes.Repeat([]byte{'z'}, 64*SectorSize))
	wantContent(t, dev, want)
}

// A damaged block is an error where it is read, and never other bytes.
func TestADamagedBlockIsCorruptAndNamesItsLayer(t *testing.T) {
	r := newRepo()
	s, stored := zfileDevice(t, r)
	for i := 520; i < 560; i++ { // behind the header: the first block
		stored[i] ^= 0x55
	}
	dev, err := newEngine(t, r).OpenReadOnly(t.Context(), s)
	if err == nil {
		defer dev.Close()
		_, err = dev.ReadAt(make([]byte, 4096), 0)
	}
	wantIs(t, err, ErrCorrupt)
	if !strings.Contains(err.Error(), s.Layers[0].UUID) {
		t.Errorf("error does not name the layer: %v", err)
	}
}

func TestALayerThatIsNoZFileIsCorrupt(t *testing.T) {
	r := newRepo()
	s, stored := zfileDevice(t, r)
	clear(stored[:8])
	_, err := newEngine(t, r).OpenReadOnly(t.Context(), s)
	wantIs(t, err, ErrCorrupt)
}

// The store is asked through a ZFile as it is without one: within the time limit, and not beyond Close.
func TestADeadStoreHoldsNobodyBehindAZFile(t *testing.T) {
	r := newRepo()
	s, _ := zfileDevice(t, r)
	gate := &gatedSource{}
	e, err := New(Config{Open: func(ctx context.Context, l Layer) (Source, error) {
		src, err := r.open(ctx, l)
		gate.Source = src
		return gate, err
	}}, WithReadTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	gate.hold = hold
	_, err = dev.ReadAt(make([]byte, 4096), 0)
	wantIs(t, err, ErrUnavailable)
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	close(hold)
}

// gatedSource answers nothing while hold is open.
type gatedSource struct {
	Source
	hold chan struct{}
}

func (g *gatedSource) ReadAt(p []byte, off int64) (int, error) {
	if g.hold != nil {
		<-g.hold
		return 0, errors.New("too late")
	}
	return g.Source.ReadAt(p, off)
}
