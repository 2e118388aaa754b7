package overlaybd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/internal/crashfs"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

func TestMain(m *testing.M) {
	crashfs.RunDaemon()
	if dir := os.Getenv(writerDirEnv); dir != "" {
		runWriter(dir)
	}
	goleak.VerifyTestMain(m)
}

const mib = 1 << 20

func emptyStack(size int64) Stack { return Stack{VirtualSize: size} }

func newDevice(t *testing.T, size int64, opts ...Option) *Writable {
	t.Helper()
	w := openDevice(t, newEngine(t, newRepo(), opts...), t.TempDir(), emptyStack(size))
	t.Cleanup(func() { w.Close() })
	return w
}

func TestBadArgumentsAreNamedAndChangeNothing(t *testing.T) {
	w := newDevice(t, mib)
	p := make([]byte, 4096)
	for name, err := range map[string]error{
		"offset -512: must":   second(w.WriteAt(p, -512)),
		"offset 100: must":    second(w.ReadAt(p, 100)),
		"length 100: must":    second(w.WriteAt(p[:100], 0)),
		"length 4095: must":   second(w.ReadAt(p[:4095], 0)),
		"4096 bytes at 10480": second(w.WriteAt(p, mib-512)),
		"length -512: must":   w.Discard(0, -512),
		"offset 1: must":      w.Discard(1, 512),
		"512 bytes at 104857": w.Discard(mib, 512),
		"size 512: must":      w.Grow(512),
		"size 1048577: must":  w.Grow(mib + 1),
	} {
		wantIs(t, err, ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("message is %q, want %q in it", err, name)
		}
	}
	if s := w.Stats(); s.Segments != 0 || w.Size() != mib {
		t.Errorf("something changed: %+v, size %d", s, w.Size())
	}
	e := w.engine
	for _, s := range []Stack{
		{VirtualSize: 0}, {VirtualSize: -512}, {VirtualSize: 511}, {VirtualSize: MaxVirtualSize + 512},
		{VirtualSize: 512, Layers: make([]Layer, 256)},
		{VirtualSize: 512, Layers: []Layer{{Codec: "brotli"}}}, {VirtualSize: 512, Layers: []Layer{{UUID: "x"}}},
	} {
		_, err := e.OpenReadOnly(t.Context(), s)
		wantIs(t, err, ErrInvalid)
		_, err = e.OpenWritable(t.Context(), t.TempDir(), s)
		wantIs(t, err, ErrInvalid)
	}
	for _, o := range []Option{WithSealAt(2), WithSealAt(lsmt.MaxSegments + 1), WithReadTimeout(0)} {
		_, err := New(Config{Open: newRepo().open}, o)
		wantIs(t, err, ErrInvalid)
	}
	_, err := New(Config{})
	wantIs(t, err, ErrInvalid)
}

func second[T any](_ T, err error) error { return err }

func TestReadsEndAtSize(t *testing.T) {
	w := newDevice(t, mib)
	writeSectors(t, w, mib/SectorSize-1, 1, 7)
	p := bytes.Repeat([]byte{1}, 4096)
	if n, err := w.ReadAt(p, mib-1024); n != 1024 || err != io.EOF || p[0] != 0 || p[512] != 7 {
		t.Errorf("read across the end: %d bytes, %v", n, err)
	}
	if n, err := w.ReadAt(p, mib); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d bytes, %v", n, err)
	}
	if n, err := w.ReadAt(p[:1024], mib-1024); n != 1024 || err != nil {
		t.Errorf("read up to the end: %d bytes, %v", n, err)
	}
	if n, err := w.ReadAt(nil, 0); n != 0 || err != nil {
		t.Errorf("empty read: %d, %v", n, err)
	}
}

func TestDirectoryBelongsToOneDevice(t *testing.T) {
	w := newDevice(t, mib)
	_, err := w.engine.OpenWritable(t.Context(), w.dir.path, emptyStack(mib))
	wantIs(t, err, ErrInUse)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again := openDevice(t, w.engine, w.dir.path, emptyStack(mib))
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestClosedDeviceRefusesEverything(t *testing.T) {
	w := newDevice(t, mib)
	writeSectors(t, w, 0, 8, 1)
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 512)
	_, sealErr := w.Seal(t.Context(), SealOptions{})
	for what, err := range map[string]error{
		"read": second(w.ReadAt(p, 0)), "write": second(w.WriteAt(p, 0)), "discard": w.Discard(0, 512),
		"flush": w.Flush(), "grow": w.Grow(2 * mib), "seal": sealErr, "thaw": w.Thaw(t.Context()),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestReadOnlyDevice(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	w := openDevice(t, e, t.TempDir(), emptyStack(mib))
	writeSectors(t, w, 3, 5, 9)
	l := r.publish(t, seal(t, w, SealOptions{})[0])
	want := content(t, w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ro, err := e.OpenReadOnly(t.Context(), Stack{VirtualSize: mib, Layers: []Layer{l}})
	if err != nil {
		t.Fatal(err)
	}
	wantContent(t, ro, want)
	wantIs(t, second(ro.WriteAt(make([]byte, 512), 0)), ErrReadOnly)
	wantIs(t, ro.Discard(0, 512), ErrReadOnly)
	if err := errors.Join(ro.Flush(), ro.Close(), ro.Close()); err != nil {
		t.Error(err)
	}
	wantIs(t, second(ro.ReadAt(make([]byte, 512), 0)), ErrClosed)
}

func TestFinalSealRefusesWritesUntilThaw(t *testing.T) {
	w := newDevice(t, mib)
	writeSectors(t, w, 0, 4, 1)
	if n := len(seal(t, w, SealOptions{Final: true})); n != 1 {
		t.Fatalf("%d layers, want 1", n)
	}
	want := content(t, w)
	p := make([]byte, 512)
	wantIs(t, second(w.WriteAt(p, 0)), ErrFinal)
	wantIs(t, w.Discard(0, 512), ErrFinal)
	wantIs(t, w.Grow(2*mib), ErrFinal)
	mustFlush(t, w)
	wantContent(t, w, want)
	if n := len(seal(t, w, SealOptions{})); n != 1 {
		t.Errorf("sealing again gives %d layers, want the same one", n)
	}
	if err := errors.Join(w.Thaw(t.Context()), w.Thaw(t.Context())); err != nil {
		t.Fatal(err)
	}
	writeSectors(t, w, 1, 1, 2)
	if n := len(seal(t, w, SealOptions{Final: true})); n != 2 {
		t.Errorf("%d layers after thaw and write, want 2", n)
	}
}

func TestSealGivesUnpublishedLayersOnly(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	dir := t.TempDir()
	w := openDevice(t, e, dir, emptyStack(mib))
	if n := len(seal(t, w, SealOptions{})); n != 0 {
		t.Errorf("%d layers of a device that was never written", n)
	}
	for i := range 3 {
		writeSectors(t, w, i, 1, byte(i+1))
		seal(t, w, SealOptions{})
	}
	layers := seal(t, w, SealOptions{Final: true})
	if len(layers) != 3 {
		t.Fatalf("%d layers, want 3", len(layers))
	}
	for i, l := range layers {
		if l.Segments != 1 || l.LiveBytes != 512 || l.VirtualSize != mib || i > 0 && l.ParentUUID != layers[i-1].UUID {
			t.Errorf("layer %d is %+v", i, l)
		}
		var a, b bytes.Buffer
		if err := errors.Join(l.Compact(t.Context(), &a), l.Compact(t.Context(), &b)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Error("compacting twice gives different bytes")
		}
		if n, err := l.CompactSize(); n != int64(a.Len()) || err != nil {
			t.Errorf("CompactSize is %d, %v; Compact wrote %d bytes", n, err, a.Len())
		}
	}
	w.Published(layers[1].UUID, Layer{UUID: layers[1].UUID})
	if got := seal(t, w, SealOptions{}); len(got) != 1 || got[0] != layers[2] {
		t.Errorf("after publishing two: %+v", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// What was published is known by the stack, not by the directory.
	s := emptyStack(mib)
	s.Layers = []Layer{r.publish(t, layers[0]), r.publish(t, layers[1])}
	again := openDevice(t, e, dir, s)
	defer again.Close()
	if got := seal(t, again, SealOptions{}); len(got) != 1 || got[0].UUID != layers[2].UUID {
		t.Errorf("after reopening: %+v", got)
	}
}

// a published layer is read from the file that was sealed here, not fetched, unless it was merged with others.
func TestReopeningReusesLocalLayers(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	dir := t.TempDir()
	w := openDevice(t, e, dir, emptyStack(mib))
	s := emptyStack(mib)
	for i := range 3 {
		writeSectors(t, w, i, 2, byte(i+1))
		for _, l := range seal(t, w, SealOptions{}) {
			published := r.publish(t, l)
			s.Layers = append(s.Layers, published)
			w.Published(l.UUID, published)
		}
	}
	want := content(t, w)
	if got := w.Stack(); !slices.Equal(got.Layers, s.Layers) {
		t.Errorf("the device knows %v, want %v", got.Layers, s.Layers)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = openDevice(t, e, dir, s)
	wantContent(t, w, want)
	if len(r.opens) != 0 {
		t.Errorf("layers were fetched that are here: %v", r.opens)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	merged := r.merge(t, s, 0, 2)
	clear(r.opens) // those of the merge itself
	w = openDevice(t, e, dir, merged)
	defer w.Close()
	wantContent(t, w, want)
	if r.opens[merged.Layers[0].Key] != 1 || len(r.opens) != 1 {
		t.Errorf("fetched %v, want the merged layer only", r.opens)
	}
	data := slices.DeleteFunc(dirNames(t, dir), func(name string) bool { return !strings.HasSuffix(name, dataExt) })
	if len(data) != 2 {
		t.Errorf("data files %v, want the third layer and the upper", data)
	}
}

func TestStackThatDoesNotFitIsRefused(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	dir := t.TempDir()
	w := openDevice(t, e, dir, emptyStack(mib))
	writeSectors(t, w, 0, 1, 1)
	first := r.publish(t, seal(t, w, SealOptions{})[0])
	other := openDevice(t, e, t.TempDir(), emptyStack(mib))
	writeSectors(t, other, 0, 1, 2)
	foreign := Stack{VirtualSize: mib, Layers: []Layer{r.publish(t, seal(t, other, SealOptions{})[0])}}
	if err := errors.Join(w.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	// The sealed layer of dir does not continue the foreign stack.
	_, err := e.OpenWritable(t.Context(), dir, foreign)
	wantIs(t, err, ErrInvalid)

	own := Stack{VirtualSize: mib, Layers: []Layer{first}}
	w = openDevice(t, e, dir, own)
	writeSectors(t, w, 1, 1, 3)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// Nor does an upper that was written.
	longer := Stack{VirtualSize: mib, Layers: append(slices.Clone(own.Layers), foreign.Layers...)}
	_, err = e.OpenWritable(t.Context(), dir, longer)
	wantIs(t, err, ErrInvalid)
	// Nothing was touched, so the right stack still opens.
	w = openDevice(t, e, dir, own)
	defer w.Close()
	if got := content(t, w); got[0] != 1 || got[512] != 3 {
		t.Error("content differs after refused opens")
	}
}

// A directory without an unpublished write may serve another stack, as when the volume was elsewhere in between.
func TestUnwrittenDirectoryServesALaterStack(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	here, there := t.TempDir(), t.TempDir()
	s := emptyStack(mib)
	for i, dir := range []string{here, there, here, there} {
		w := openDevice(t, e, dir, s)
		writeSectors(t, w, i, 1, byte(i+1))
		for _, l := range seal(t, w, SealOptions{Final: true}) {
			s.Layers = append(s.Layers, r.publish(t, l))
		}
		if err := errors.Join(w.Thaw(t.Context()), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	ro, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	for i := range 4 {
		if got := content(t, ro)[i*512]; got != byte(i+1) {
			t.Errorf("sector %d is %d", i, got)
		}
	}
}

func TestGrowPersists(t *testing.T) {
	e := newEngine(t, newRepo())
	dir := t.TempDir()
	for i, sealed := range []bool{false, true, true} {
		w := openDevice(t, e, dir, emptyStack(mib))
		if want := int64(mib + i*mib); w.Size() != want {
			t.Fatalf("size is %d, want %d", w.Size(), want)
		}
		if err := w.Grow(w.Size() + mib); err != nil {
			t.Fatal(err)
		}
		writeSectors(t, w, int(w.Size()/SectorSize)-1, 1, 5)
		if sealed { // then only the sealed layer knows
			seal(t, w, SealOptions{Final: true})
		}
		kill(t, w)
	}
	// A volume that was grown while nobody had it.
	w := openDevice(t, e, dir, emptyStack(8*mib))
	kill(t, w)
	w = openDevice(t, e, dir, emptyStack(mib))
	defer w.Close()
	if w.Size() != 8*mib {
		t.Errorf("size is %d, want %d", w.Size(), 8*mib)
	}
}

func TestDiscardOfAHoleRecordsNothing(t *testing.T) {
	w := newDevice(t, 64<<30)
	if err := w.Discard(0, 64<<30); err != nil {
		t.Fatal(err)
	}
	if n := w.Stats().Segments; n != 0 {
		t.Errorf("%d segments", n)
	}
	writeSectors(t, w, 1000, 1, 1)
	if err := w.Discard(0, 64<<30); err != nil {
		t.Fatal(err)
	}
	if n := w.Stats().Segments; n != 1 || content512(t, w, 1000) != 0 {
		t.Errorf("%d segments, want the one piece that was mapped", n)
	}
}

func content512(t *testing.T, d Device, lba int64) byte {
	t.Helper()
	p := make([]byte, 512)
	if _, err := d.ReadAt(p, lba*512); err != nil {
		t.Fatal(err)
	}
	return p[0]
}

func TestStateFileIsChecked(t *testing.T) {
	e := newEngine(t, newRepo())
	for text, class := range map[string]error{
		`{"format":2}`: ErrInvalid, `{"format":0}`: ErrCorrupt, `{"for`: ErrCorrupt, ``: ErrCorrupt,
		`{"format":1,"uppers":[{},{},{}]}`: ErrCorrupt,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := e.OpenWritable(t.Context(), dir, emptyStack(mib))
		wantIs(t, err, class)
	}
}

func TestOnlyOwnFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	const id = "0123abcd-0000-4000-8000-000000000000"
	leftovers := []string{id + dataExt, id + indexExt, id + pendingExt, tempStateAs}
	foreign := []string{"notes.data", id + ".lsmt", "journal", "x.index"}
	for _, name := range append(leftovers, foreign...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := openDevice(t, newEngine(t, newRepo()), dir, emptyStack(mib))
	defer w.Close()
	names := dirNames(t, dir)
	for _, n := range leftovers {
		if slices.Contains(names, n) {
			t.Errorf("%s is still there", n)
		}
	}
	for _, n := range foreign {
		if !slices.Contains(names, n) {
			t.Errorf("%s is gone", n)
		}
	}
}

// slowSource is a store that does not answer until it is released.
type slowSource struct {
	memSource
	stuck   func() bool
	release chan struct{}
	closed  chan struct{}
}

func (s *slowSource) ReadAt(p []byte, off int64) (int, error) {
	if s.stuck() {
		<-s.release
	}
	return s.memSource.ReadAt(p, off)
}

func (s *slowSource) Close() error { close(s.closed); return nil }

func TestDeadStoreHoldsNobody(t *testing.T) {
	r := newRepo()
	w := openDevice(t, newEngine(t, r), t.TempDir(), emptyStack(mib))
	writeSectors(t, w, 0, 8, 1)
	s := Stack{VirtualSize: mib, Layers: []Layer{r.publish(t, seal(t, w, SealOptions{})[0])}}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var stuck atomic.Bool
	src := &slowSource{stuck: stuck.Load, release: make(chan struct{}), closed: make(chan struct{})}
	open := func(_ context.Context, l Layer) (Source, error) {
		src.memSource = memSource{bytes.NewReader(r.blobs[l.Key])}
		return src, nil
	}
	p := make([]byte, 4096)

	t.Run("a read times out", func(t *testing.T) {
		e, err := New(Config{Open: open}, WithReadTimeout(20*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		ro, err := e.OpenReadOnly(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		stuck.Store(true)
		wantIs(t, second(ro.ReadAt(p, 0)), ErrUnavailable)
		if err := ro.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-src.closed:
			t.Error("the source was closed under a read")
		default:
		}
		close(src.release)
		<-src.closed
	})
	t.Run("close unblocks", func(t *testing.T) {
		stuck.Store(false)
		src.release, src.closed = make(chan struct{}), make(chan struct{})
		e, err := New(Config{Open: open})
		if err != nil {
			t.Fatal(err)
		}
		w := openDevice(t, e, t.TempDir(), s)
		stuck.Store(true)
		done := make(chan error)
		go func() { done <- second(w.ReadAt(make([]byte, 4096), 0)) }()
		time.Sleep(10 * time.Millisecond)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		wantIs(t, <-done, ErrClosed)
		close(src.release)
		<-src.closed
	})
	t.Run("an open is cancelled", func(t *testing.T) {
		src.release, src.closed = make(chan struct{}), make(chan struct{})
		e, err := New(Config{Open: open})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err = e.OpenWritable(ctx, t.TempDir(), s)
		wantIs(t, err, context.DeadlineExceeded)
		close(src.release)
		<-src.closed
	})
}

func TestLayerThatIsNotTheOneNamedIsCorrupt(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	w := openDevice(t, e, t.TempDir(), emptyStack(mib))
	defer w.Close()
	writeSectors(t, w, 0, 8, 1)
	good := r.publish(t, seal(t, w, SealOptions{})[0])
	for name, change := range map[string]func(*Layer){
		"uuid": func(l *Layer) { l.UUID = "0123abcd-0000-4000-8000-000000000000" },
		"size": func(l *Layer) { l.Size++ },
	} {
		l := good
		change(&l)
		_, err := e.OpenReadOnly(t.Context(), Stack{VirtualSize: mib, Layers: []Layer{l}})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The uuid's letter case is the writer's choice.
	good.UUID = strings.ToUpper(good.UUID)
	ro, err := e.OpenReadOnly(t.Context(), Stack{VirtualSize: mib, Layers: []Layer{good}})
	if err != nil {
		t.Fatal(err)
	}
	ro.Close()
}
