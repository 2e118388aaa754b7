package overlaybd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/blockcache"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// far is a store that the engine reaches by range, through a cache.
type far struct {
	cache *blockcache.Cache
	repo  *repo
	delay time.Duration

	mu     sync.Mutex
	ranges []farRange
	down   error
	mangle func(p []byte, off int64) // changes what is sent
}

type farRange struct {
	key    string
	off, n int64
}

func newFar(t testing.TB) *far {
	t.Helper()
	c, err := blockcache.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &far{cache: c, repo: newRepo()}
}

func (f *far) open(_ context.Context, l Layer) (Source, error) {
	at, err := f.cache.Layer(l.Key, l.Size, &farLayer{f, l.Key})
	if err != nil {
		return nil, err
	}
	return &farSource{at, sha256.Sum256(f.repo.blobs[l.Key])}, nil
}

type farLayer struct {
	far *far
	key string
}

func (l *farLayer) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	f := l.far
	f.mu.Lock()
	f.ranges = append(f.ranges, farRange{l.key, off, int64(len(p))})
	down, mangle := f.down, f.mangle
	f.mu.Unlock()
	select {
	case <-time.After(f.delay):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if down != nil {
		return 0, down
	}
	n := copy(p, f.repo.blobs[l.key][off:])
	if mangle != nil {
		mangle(p, off)
	}
	return n, nil
}

func (f *far) requests() []farRange {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ranges)
}

func (f *far) set(down error, mangle func(p []byte, off int64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.mangle = down, mangle
}

type farSource struct {
	*blockcache.Layer
	sum [32]byte
}

func (s *farSource) Verify(ctx context.Context) error {
	return s.Layer.Verify(ctx, func(r io.Reader) error {
		h := sha256.New()
		if _, err := io.Copy(h, r); err != nil {
			return err
		}
		if !bytes.Equal(h.Sum(nil), s.sum[:]) {
			return ErrCorrupt
		}
		return nil
	})
}

func (f *far) engine(t testing.TB, opts ...Option) *Engine {
	t.Helper()
	e, err := New(Config{Open: f.open}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (f *far) openStack(t testing.TB, s Stack, opts ...Option) *ReadOnly {
	t.Helper()
	dev, err := f.engine(t, opts...).OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// noise is data that does not compress.
type noise byte

func (n noise) ReadAt(p []byte, off int64) (int, error) {
	for i := 0; i+8 <= len(p); i += 8 {
		x := (uint64(off+int64(i)) + uint64(n)<<56) * 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(p[i:], x^x>>27)
	}
	return len(p), nil
}

// put stores a layer of n segments of one sector each, every other sector of the disk, with content from data.
func (f *far) put(t testing.TB, n, shift int, data io.ReaderAt, wrap func([]byte) []byte, codec string) Layer {
	t.Helper()
	segs := make([]lsmt.Segment, n)
	for i := range segs {
		segs[i] = lsmt.DataSegment(uint64(2*i+shift), 1, uint64(8+i), 0)
	}
	id := uuid.New()
	var out bytes.Buffer
	err := lsmt.Compact(t.Context(), &out, segs, []io.ReaderAt{data}, lsmt.CompactOptions{VirtualSize: 1 << 40, UUID: id})
	if err != nil {
		t.Fatal(err)
	}
	b := wrap(out.Bytes())
	tail, err := TailSize(bytes.NewReader(b), int64(len(b)), codec)
	if err != nil {
		t.Fatal(err)
	}
	f.repo.blobs[id.String()] = b
	return Layer{Key: id.String(), Size: int64(len(b)), UUID: id.String(), Codec: codec, Tail: tail}
}

func bare(b []byte) []byte { return b }

func inTar(b []byte) []byte { return append(tarlayer.Header(int64(len(b))), b...) }

func withoutSums(b []byte) []byte {
	var out bytes.Buffer
	w, err := zfile.NewWriter(&out, zfile.Options{NoChecksums: true})
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func wantSector(t testing.TB, d Device, lba int64, n noise, stored int64) {
	t.Helper()
	got, want := make([]byte, SectorSize), make([]byte, SectorSize)
	if _, err := d.ReadAt(got, lba*SectorSize); err != nil {
		t.Fatal(err)
	}
	_, _ = n.ReadAt(want, stored*SectorSize)
	if !bytes.Equal(got, want) {
		t.Fatalf("sector %d holds something else", lba)
	}
}

// Index and tail of a layer come in one range, and data when it is read.
func TestRemoteLayerIsOpenedWithOneRequest(t *testing.T) {
	f := newFar(t)
	s := Stack{VirtualSize: 1 << 30}
	tails := int64(0)
	for i := range 4 {
		l := f.put(t, 15_000, i, noise(i), pack, CodecZFile)
		tails += l.Tail
		s.Layers = append(s.Layers, l)
	}
	dev := f.openStack(t, s)
	got := f.requests()
	if len(got) != 4 {
		t.Fatalf("%d requests for 4 layers: %v", len(got), got)
	}
	read := int64(0)
	for _, r := range got {
		read += r.n
	}
	if read > tails+4*blockcache.ChunkSize || tails < 4*20_000 {
		t.Errorf("%d bytes read, the indexes have %d", read, tails)
	}
	wantSector(t, dev, 2*77, 2, 8+76) // the third layer, shifted by 2, hides the first
	wantSector(t, dev, 2*77, 2, 8+76)
	if n := len(f.requests()); n != 5 {
		t.Errorf("%d requests after reading one sector twice", n)
	}
}

func TestRemoteLayerWithoutARecordedTailIsOpenedAllTheSame(t *testing.T) {
	f := newFar(t)
	l := f.put(t, 60_000, 0, noise(1), pack, CodecZFile)
	l.Tail = 0
	wantSector(t, f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}}), 20, 1, 18)
	l.Tail = 1 << 50 // and a record that says too much is not believed
	wantSector(t, f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}}), 20, 1, 18)
}

func TestRemoteLayersOfAllCodecsRead(t *testing.T) {
	for name, c := range map[string]struct {
		wrap  func([]byte) []byte
		codec string
		whole bool
	}{
		"zfile":             {pack, CodecZFile, false},
		"tar+zfile":         {func(b []byte) []byte { return inTar(pack(b)) }, CodecTarZFile, false},
		"bare":              {bare, "", true},
		"tar":               {inTar, CodecTar, true},
		"zfile without sum": {withoutSums, CodecZFile, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			l := f.put(t, 20_000, 0, noise(9), c.wrap, c.codec)
			dev := f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}})
			wantSector(t, dev, 2*19_999, 9, 8+19_999)
			read := int64(0)
			for _, r := range f.requests() {
				read += r.n
			}
			if c.whole != (read == l.Size) {
				t.Errorf("%d of %d bytes were read", read, l.Size)
			}
		})
	}
}

// A layer without checksums is compared with its digest before anybody sees a byte of it.
func TestRemoteLayerWithoutChecksumsIsVerifiedFirst(t *testing.T) {
	for _, codec := range []string{"", CodecZFile} {
		f := newFar(t)
		wrap := bare
		if codec != "" {
			wrap = withoutSums
		}
		l := f.put(t, 2000, 0, noise(9), wrap, codec)
		f.set(nil, func(p []byte, off int64) {
			if off == 0 {
				p[100_000] ^= 1
			}
		})
		_, err := f.engine(t).OpenReadOnly(t.Context(), Stack{VirtualSize: 1 << 30, Layers: []Layer{l}})
		wantIs(t, err, ErrCorrupt)
		f.set(nil, nil)
		wantSector(t, f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}}), 0, 9, 8)
	}
}

// A block that is damaged on its way is asked for once more; one that is damaged where it is stored is an error.
func TestBadBlockIsFetchedOnceMoreAndThenCorrupt(t *testing.T) {
	f := newFar(t)
	l := f.put(t, 20_000, 0, noise(3), pack, CodecZFile)
	dev := f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}})
	opened := len(f.requests())
	times := 0
	f.set(nil, func(p []byte, _ int64) {
		if times++; times == 1 {
			p[blockcache.ChunkSize/2] ^= 1
		}
	})
	p := make([]byte, 600*SectorSize) // one chunk's worth
	if _, err := dev.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	wantSector(t, dev, 20, 3, 18)
	if n := len(f.requests()) - opened; n > 3 {
		t.Errorf("%d requests", n)
	}
	f.set(nil, func(p []byte, _ int64) { p[blockcache.ChunkSize/2] ^= 1 })
	before := len(f.requests())
	var err error
	for range 3 { // the same block is not asked for again and again
		_, err = dev.ReadAt(make([]byte, 1200*SectorSize), 12_000*SectorSize)
		wantIs(t, err, ErrCorrupt)
	}
	if n := len(f.requests()) - before; n > 3 {
		t.Errorf("%d requests for one bad block", n)
	}
}

func TestDamagedTailIsFetchedOnceMore(t *testing.T) {
	for what, at := range map[string]int{"trailer": 512 - 60, "index": 600} {
		f := newFar(t)
		l := f.put(t, 30_000, 0, noise(3), pack, CodecZFile)
		times := 0
		f.set(nil, func(p []byte, _ int64) {
			if times++; times == 1 {
				p[len(p)-at] ^= 1
			}
		})
		wantSector(t, f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}}), 20, 3, 18)
		f.cache.SetBudget(1)
		f.cache.SetBudget(0)
		f.set(nil, func(p []byte, _ int64) { p[len(p)-at] ^= 1 })
		l2 := f.put(t, 30_000, 0, noise(3), pack, CodecZFile)
		_, err := f.engine(t).OpenReadOnly(t.Context(), Stack{VirtualSize: 1 << 30, Layers: []Layer{l2}})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// a store that is gone delays no read of what is here, and any other read no longer than the engine's limit.
func TestGoneStoreIsUnavailableWithinTheTimeoutAndComesBack(t *testing.T) {
	f := newFar(t)
	l := f.put(t, 20_000, 0, noise(3), pack, CodecZFile)
	dev := f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}}, WithReadTimeout(200*time.Millisecond))
	wantSector(t, dev, 20, 3, 18)
	f.set(errors.New("down"), nil)
	_, err := dev.ReadAt(make([]byte, SectorSize), 12_000*SectorSize)
	wantIs(t, err, ErrUnavailable)
	wantSector(t, dev, 20, 3, 18)
	f.set(nil, nil)
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err = dev.ReadAt(make([]byte, SectorSize), 12_000*SectorSize); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	wantSector(t, dev, 12_000, 3, 8+6000)
}

func TestCloseEndsAReadOfARemoteLayer(t *testing.T) {
	f := newFar(t)
	l := f.put(t, 20_000, 0, noise(3), pack, CodecZFile)
	dev := f.openStack(t, Stack{VirtualSize: 1 << 30, Layers: []Layer{l}})
	f.delay = time.Hour
	done := make(chan error, 1)
	go func() {
		_, err := dev.ReadAt(make([]byte, SectorSize), 0)
		done <- err
	}()
	for opened := len(f.requests()); len(f.requests()) == opened; {
		time.Sleep(time.Millisecond)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		wantIs(t, err, ErrClosed)
	case <-time.After(30 * time.Second):
		t.Fatal("the read goes on")
	}
}

// A cold mount of 4,000,000 segments in five layers, with 20 ms a request: it reads little more than the indexes.
func BenchmarkColdMount(b *testing.B) {
	const layers = 5
	b.Run("segments=4000000/layers=5/latency=20ms", func(b *testing.B) {
		f := newFar(b)
		s := Stack{VirtualSize: 1 << 40}
		tails := int64(0)
		for i := range layers {
			l := f.put(b, 4_000_000/layers, i*2_000_000, nothing{}, pack, CodecZFile)
			tails += l.Tail
			s.Layers = append(s.Layers, l)
		}
		f.delay = 20 * time.Millisecond
		var requests, read int64
		n := 0
		for b.Loop() {
			b.StopTimer()
			f.mu.Lock()
			f.ranges = nil
			f.mu.Unlock()
			f.cache.SetBudget(1)
			f.cache.SetBudget(0)
			b.StartTimer()
			dev, err := f.engine(b).OpenReadOnly(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			for _, r := range f.requests() {
				requests++
				read += r.n
			}
			n++
			if err := dev.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(requests)/float64(n), "requests/op")
		b.ReportMetric(float64(read)/float64(n), "read-B/op")
		b.ReportMetric(float64(read)/float64(n)/float64(tails), "read/indexes")
	})
}

type nothing struct{}

func (nothing) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }
