package overlaybd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// mergeParts merges a run and stores what it becomes.
func (r *repo) mergeParts(t tb, e *Engine, run []Layer) (MergedRun, []Layer) {
	t.Helper()
	var parts []*bytes.Buffer
	m, err := e.MergeParts(context.Background(), run, func(i int) (io.Writer, error) {
		if i != len(parts) {
			t.Fatalf("part %d comes after %d", i, len(parts))
		}
		parts = append(parts, new(bytes.Buffer))
		return parts[i], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var layers []Layer
	for i, b := range parts {
		l, err := lsmt.OpenLayer(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if l.UUID.String() != m.Layers[i].UUID || l.Parent.String() != m.Layers[i].ParentUUID {
			t.Fatalf("part %d is %s above %s, MergeParts says %+v", i, l.UUID, l.Parent, m.Layers[i])
		}
		layers = append(layers, r.put(b.Bytes()))
	}
	return m, layers
}

// publishAll seals a device and tells it that all of its layers are published.
func publishAll(t tb, r *repo, w *Writable) {
	t.Helper()
	for _, l := range seal(t, w, SealOptions{}) {
		w.Published(l.UUID, r.publish(t, l))
	}
}

// layeredDevice is a device above some published layers of random writes and discards.
func layeredDevice(t testing.TB, e *Engine, r *repo, dir string, layers, sectors int) (w *Writable, want []byte) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(uint64(layers), 7))
	w = openDevice(t, e, dir, emptyStack(int64(sectors)*SectorSize))
	want = make([]byte, sectors*SectorSize)
	for i := range layers {
		for range 20 {
			lba, n := rnd.IntN(sectors-8), 1+rnd.IntN(8)
			p := want[lba*SectorSize : (lba+n)*SectorSize]
			if rnd.IntN(4) == 0 {
				clear(p)
				if err := w.Discard(int64(lba)*SectorSize, int64(n)*SectorSize); err != nil {
					t.Fatal(err)
				}
				continue
			}
			writeSectors(t, w, lba, n, byte(1+i*20+lba))
			copy(p, bytes.Repeat([]byte{byte(1 + i*20 + lba)}, len(p)))
		}
		publishAll(t, r, w)
	}
	return w, want
}

// A run becomes as many layers as it needs, which have the run's place in the chain and its content, zeroes included.
func TestMergePartsSplitsByAddress(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r, WithChainCheck())
	w, want := layeredDevice(t, e, r, t.TempDir(), 5, 400)
	defer w.Close()
	s := w.Stack()
	whole, _ := r.mergeParts(t, e, s.Layers[1:4])
	e.splitAt = 16
	m, layers := r.mergeParts(t, e, s.Layers[1:4])
	if len(layers) < 2 || m.Content != whole.Content {
		t.Errorf("%d layers with content %s, want %s", len(layers), m.Content, whole.Content)
	}
	for _, l := range m.Layers {
		if l.Segments > 16 {
			t.Errorf("layer of %d segments", l.Segments)
		}
	}
	again, _ := r.mergeParts(t, e, s.Layers[1:4])
	if d := cmp.Diff(m, again); d != "" {
		t.Errorf("merged again (-first +second):\n%s", d)
	}
	s.Layers = slices.Concat(s.Layers[:1], layers, s.Layers[4:])
	ro, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	wantContent(t, ro, want)
	_, err = e.Merge(t.Context(), s.Layers, io.Discard)
	wantIs(t, err, ErrInvalid)
}

// A device moves to merged layers and goes on: reads, writes, seals, and a restart on the old stack or on the new one.
func TestReplaceLayersKeepsContentAndStack(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r, WithChainCheck())
	dir := t.TempDir()
	w, want := layeredDevice(t, e, r, dir, 6, 300)
	before := w.Stack()
	writeSectors(t, w, 100, 5, 0xaa)
	copy(want[100*SectorSize:], bytes.Repeat([]byte{0xaa}, 5*SectorSize))
	for _, split := range []int{40, lsmt.MaxSegments} { // the second time what the first split becomes one
		e.splitAt = split
		run := w.Stack().Layers[1:]
		run = run[:len(run)-1]
		m, by := r.mergeParts(t, e, run)
		if err := w.ReplaceLayers(t.Context(), run, by, m.Content); err != nil {
			t.Fatal(err)
		}
		wantContent(t, w, want)
		writeSectors(t, w, 7, 1, byte(split))
		copy(want[7*SectorSize:], bytes.Repeat([]byte{byte(split)}, SectorSize))
		wantContent(t, w, want)
	}
	after := w.Stack()
	if len(after.Layers) != 3 || after.Layers[0] != before.Layers[0] || after.Layers[2] != before.Layers[5] {
		t.Errorf("stack has %d layers", len(after.Layers))
	}
	if n := w.Stats().Layers; n != 3 {
		t.Errorf("stats say %d layers", n)
	}
	for range 10 { // the tags of replaced layers are used again
		writeSectors(t, w, 8, 1, 0xbb)
		copy(want[8*SectorSize:], bytes.Repeat([]byte{0xbb}, SectorSize))
		seal(t, w, SealOptions{})
	}
	if n := len(w.view.Load().Files); n > 14 {
		t.Errorf("%d slots for 13 layers and an upper", n)
	}
	wantContent(t, w, want)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Stack{before, after} {
		w := openDevice(t, e, dir, s)
		wantContent(t, w, want)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A tag has eight bits. A device that compacts its layers as fast as it seals never runs out of them.
func TestReplacedLayersFreeTheirTags(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	w := openDevice(t, e, memoryDir(t), emptyStack(64*SectorSize))
	defer w.Close()
	want := make([]byte, 64*SectorSize)
	for i := range 280 {
		writeSectors(t, w, i%64, 1, byte(1+i%250))
		copy(want[i%64*SectorSize:], bytes.Repeat([]byte{byte(1 + i%250)}, SectorSize))
		publishAll(t, r, w)
		if s := w.Stack(); len(s.Layers) >= 8 {
			m, by := r.mergeParts(t, e, s.Layers[1:])
			if err := w.ReplaceLayers(t.Context(), s.Layers[1:], by, m.Content); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantContent(t, w, want)
	if n := len(w.retired); n > 10 {
		t.Errorf("%d replaced layers are still open", n)
	}
}

// Layers with another content, uuid or number than the run's are refused, and nothing changes.
func TestReplaceLayersRefusesWhatIsNotTheRun(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	w, want := layeredDevice(t, e, r, t.TempDir(), 5, 300)
	s := w.Stack()
	m, by := r.mergeParts(t, e, s.Layers[1:4])
	other, otherBy := r.mergeParts(t, e, s.Layers[1:3])
	replace := func(run, by []Layer, content string) error {
		return w.ReplaceLayers(t.Context(), run, by, content)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	wantIs(t, replace(s.Layers[1:4], by, other.Content), ErrCorrupt)
	wantIs(t, replace(s.Layers[1:4], otherBy, m.Content), ErrCorrupt)
	wantIs(t, replace(s.Layers[1:4], otherBy, other.Content), ErrInvalid) // its uuid is not the run's
	wantIs(t, replace(s.Layers[1:4], nil, m.Content), ErrInvalid)
	wantIs(t, replace(s.Layers[1:2], s.Layers[1:3], m.Content), ErrInvalid)
	wantIs(t, replace(slices.Concat(s.Layers[:1], s.Layers[2:4]), by, m.Content), ErrInvalid)
	wantIs(t, w.ReplaceLayers(cancelled, s.Layers[1:4], by, m.Content), context.Canceled)
	wantContent(t, w, want)
	if d := cmp.Diff(s, w.Stack()); d != "" {
		t.Errorf("stack changed:\n%s", d)
	}
	if err := replace(s.Layers[1:4], by, m.Content); err != nil {
		t.Error(err)
	}
	wantIs(t, replace(s.Layers[1:4], by, m.Content), ErrInvalid) // it is gone
	wantContent(t, w, want)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	wantIs(t, replace(s.Layers[:2], by, m.Content), ErrClosed)
}

// A damaged copy of the merged layer is found before the device moves to it.
func TestReplaceLayersReadsTheNewLayersBack(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	w, want := layeredDevice(t, e, r, t.TempDir(), 4, 300)
	defer w.Close()
	run := w.Stack().Layers[1:4]
	var out bytes.Buffer
	m, err := e.MergeParts(t.Context(), run, func(int) (io.Writer, error) { return &out, nil })
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Clone(out.Bytes())
	b[lsmt.HeaderSize+100] ^= 1
	r.blobs["damaged"] = b
	err = w.ReplaceLayers(t.Context(), run, []Layer{{Key: "damaged", Size: int64(len(b))}}, m.Content)
	wantIs(t, err, ErrCorrupt)
	wantContent(t, w, want)
}

// Merging and moving with I/O going on: no read fails, and each writer finds what it wrote.
func TestReplaceLayersWithIOGoingOn(t *testing.T) {
	const writers, each = 3, 48
	r := newRepo()
	e := newEngine(t, r, WithReclaim(0.2, 64<<10))
	w := openDevice(t, e, memoryDir(t), emptyStack((writers+1)*each*SectorSize))
	defer w.Close()
	last := bytes.Repeat([]byte{0xcc}, each*SectorSize) // nobody writes these again
	if _, err := w.WriteAt(last, writers*each*SectorSize); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg, helpers sync.WaitGroup
	for id := range writers {
		wg.Go(func() {
			for range 3 {
				ownSectors(t, w, id*each, each)
				if err := w.Discard(int64(id*each)*SectorSize, each*SectorSize); err != nil {
					t.Error(err)
				}
			}
		})
	}
	helpers.Go(func() {
		p := make([]byte, len(last))
		for !stop.Load() {
			if _, err := w.ReadAt(p, writers*each*SectorSize); err != nil || !bytes.Equal(p, last) {
				t.Errorf("a sector that nobody writes differs, %v", err)
				return
			}
		}
	})
	helpers.Go(func() {
		for !stop.Load() {
			publishAll(t, r, w)
			run := w.Stack().Layers
			if len(run) < 3 {
				continue
			}
			m, by := r.mergeParts(t, e, run)
			if err := w.ReplaceLayers(t.Context(), run, by, m.Content); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	stop.Store(true)
	helpers.Wait()
}

// Close ends a merge's reading back, which a rate may make long.
func TestCloseEndsAReplaceUnderWay(t *testing.T) {
	r := newRepo()
	w, _ := layeredDevice(t, newEngine(t, r), r, t.TempDir(), 3, 300)
	run := w.Stack().Layers
	m, by := r.mergeParts(t, newEngine(t, r), run)
	w.engine.mergeRate = 1
	done := make(chan error, 1)
	go func() { done <- w.ReplaceLayers(context.Background(), run, by, m.Content) }()
	time.Sleep(10 * time.Millisecond) // before or after it began, it ends
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed) {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := w.engine.Merge(ctx, run, io.Discard)
	wantIs(t, err, context.DeadlineExceeded)
}
