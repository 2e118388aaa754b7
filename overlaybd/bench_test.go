package overlaybd

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// turns times a device and a plain file on the same file system, in turns, so that both see the same machine. A figure
// is that of the turn that nine of ten were slower than: what other work on the machine does only ever adds.
type turns struct {
	b     *testing.B
	times map[string][]float64 // seconds an operation
}

func newTurns(b *testing.B) *turns { return &turns{b, map[string][]float64{}} }

// take runs f, which is n operations of that name.
func (t *turns) take(name string, n int, f func()) {
	start := time.Now()
	f()
	t.times[name] = append(t.times[name], time.Since(start).Seconds()/float64(n))
}

// seconds returns what one operation takes.
func (t *turns) seconds(name string) float64 {
	s := slices.Sorted(slices.Values(t.times[name]))
	return s[len(s)/10]
}

// compare reports how many operations a second both make, and the ratio.
func (t *turns) compare(name, twin string) {
	t.b.ReportMetric(1/t.seconds(name), name+"/s")
	t.b.ReportMetric(1/t.seconds(twin), twin+"/s")
	t.b.ReportMetric(t.seconds(twin)/t.seconds(name), "of-"+twin)
}

// words fills p with words of eight bytes, each four times.
func words(p []byte, seed uint64) {
	rnd := rand.New(rand.NewPCG(1, seed))
	for i := 0; i+32 <= len(p); i += 32 {
		w := rnd.Uint64()
		for j := range 32 {
			p[i+j] = byte(w >> (j % 8 * 8))
		}
	}
}

// fileEngine opens layers by the path in their key.
func fileEngine(b *testing.B) *Engine {
	b.Helper()
	e, err := New(Config{Open: func(_ context.Context, l Layer) (Source, error) { return OpenFile(l.Key) }})
	noError(b, err)
	return e
}

func noError(b *testing.B, errs ...error) {
	b.Helper()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// create makes a file that the benchmark closes.
func create(b *testing.B, name string) *os.File {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), name))
	noError(b, err)
	b.Cleanup(func() { f.Close() })
	return f
}

// plainFile returns a file of size bytes in the page cache.
func plainFile(b *testing.B, size int64) *os.File {
	b.Helper()
	f, p := create(b, "plain"), make([]byte, mib)
	for off := int64(0); off < size; off += mib {
		words(p, uint64(off))
		_, err := f.WriteAt(p, off)
		noError(b, err)
	}
	return f
}

// writeAll writes the whole device, 1 MiB at a time.
func writeAll(b *testing.B, w *Writable) {
	b.Helper()
	p := make([]byte, mib)
	for off := int64(0); off < w.Size(); off += mib {
		words(p, uint64(off))
		noError(b, second(w.WriteAt(p, off)))
	}
}

// scatter writes 4 KiB to n random pages, none twice and none beside another.
func scatter(b *testing.B, w *Writable, n int, seed uint64) {
	b.Helper()
	p := make([]byte, 4096)
	words(p, seed)
	for _, page := range rand.New(rand.NewPCG(2, seed)).Perm(int(w.Size() / 8192))[:n] {
		noError(b, second(w.WriteAt(p, int64(page)*8192)))
	}
}

// compactLayer writes a sealed layer as it is published, in a ZFile if o is not nil.
func compactLayer(b *testing.B, s SealedLayer, o *zfile.Options) Layer {
	b.Helper()
	f := create(b, "layer")
	l := Layer{Key: f.Name(), UUID: s.UUID}
	if o == nil {
		noError(b, s.Compact(b.Context(), f))
		return l
	}
	z, err := zfile.NewWriter(f, *o)
	noError(b, err)
	noError(b, s.Compact(b.Context(), z), z.Close())
	l.Codec = CodecZFile
	return l
}

// buildStack makes a disk: one layer that was written from front to end, and layers above it of as many random pages.
func buildStack(b *testing.B, size int64, layers, pages int, o *zfile.Options) Stack {
	b.Helper()
	w := openDevice(b, newEngine(b, newRepo()), b.TempDir(), emptyStack(size))
	defer w.Close()
	writeAll(b, w)
	for i := range layers - 1 {
		seal(b, w, SealOptions{})
		scatter(b, w, pages, uint64(i))
	}
	s := Stack{VirtualSize: size}
	for _, l := range seal(b, w, SealOptions{}) {
		s.Layers = append(s.Layers, compactLayer(b, l, o))
	}
	return s
}

func openStack(b *testing.B, s Stack) *ReadOnly {
	b.Helper()
	r, err := fileEngine(b).OpenReadOnly(b.Context(), s)
	noError(b, err)
	b.Cleanup(func() { r.Close() })
	return r
}

// pages returns random offsets of pages.
func pages(size int64, seed uint64) func() int64 {
	rnd := rand.New(rand.NewPCG(3, seed))
	return func() int64 { return rnd.Int64N(size/4096) * 4096 }
}

const readsATurn = 512

// readPages reads so many random pages.
func readPages(b *testing.B, r io.ReaderAt, p []byte, next func() int64) {
	for range readsATurn {
		if _, err := r.ReadAt(p, next()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads 4 KiB at random from disks of 512 MiB, and from a plain file.
func BenchmarkRead(b *testing.B) {
	const size = 512 * mib
	for _, c := range []struct {
		name          string
		layers, pages int
	}{
		{"layers=1/segments=65", 1, 0},
		{"layers=32/segments=16k", 32, 256},
		{"layers=8/segments=100k", 8, 9000},
		{"layers=2/segments=100k", 2, 50_000},
	} {
		b.Run(c.name+"/bs=4k/pattern=rand", func(b *testing.B) {
			one := openStack(b, buildStack(b, size, 1, 0, nil))
			many, plain := one, plainFile(b, size)
			if c.layers > 1 {
				many = openStack(b, buildStack(b, size, c.layers, c.pages, nil))
			}
			p, t := make([]byte, 4096), newTurns(b)
			next := pages(size, 1)
			b.ReportAllocs()
			for b.Loop() {
				t.take("read", readsATurn, func() { readPages(b, many, p, next) })
				t.take("pread", readsATurn, func() { readPages(b, plain, p, next) })
				t.take("one-layer", readsATurn, func() { readPages(b, one, p, next) })
			}
			t.compare("read", "pread")
			b.ReportMetric(float64(len(many.view.Base.Segments())), "segments")
			b.ReportMetric(t.seconds("read")/t.seconds("one-layer"), "x-one-layer")
		})
	}
}

// BenchmarkReadParallel reads 4 KiB at random in eight goroutines and in one.
func BenchmarkReadParallel(b *testing.B) {
	const size, readers = 256 * mib, 8
	r, plain := openStack(b, buildStack(b, size, 8, 4096, nil)), plainFile(b, size)
	t := newTurns(b)
	all := func(r io.ReaderAt) {
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() {
				next := pages(size, uint64(i))
				readPages(b, r, make([]byte, 4096), next)
			})
		}
		wg.Wait()
	}
	p, next := make([]byte, 4096), pages(size, readers)
	for b.Loop() {
		t.take("read", readsATurn*readers, func() { all(r) })
		t.take("pread", readsATurn*readers, func() { all(plain) })
		t.take("one-reader", readsATurn, func() { readPages(b, r, p, next) })
	}
	t.compare("read", "pread")
	b.ReportMetric(t.seconds("one-reader")/t.seconds("read"), "x-one-reader")
}
