package overlaybd

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// BenchmarkWrite writes to a disk of 512 MiB, pages at random and 1 MiB in order, and appends the same bytes to a plain
// file. A file is begun anew when it has grown to the size of the disk.
func BenchmarkWrite(b *testing.B) {
	const size = 512 * mib
	for _, bs := range []int{4 << 10, mib} {
		b.Run(fmt.Sprintf("bs=%dk", bs>>10), func(b *testing.B) {
			perTurn := 4 * mib / bs
			p, t, next := make([]byte, bs), newTurns(b), pages(size, 1)
			words(p, 1)
			var w *Writable
			var plain *os.File
			written := int64(size)
			b.ReportAllocs()
			for b.Loop() {
				if written == size {
					b.StopTimer()
					closeBoth(b, w, plain)
					w, plain = openDevice(b, newEngine(b, newRepo()), b.TempDir(), emptyStack(size)), create(b, "plain")
					written = 0
					b.StartTimer()
				}
				t.take("write", perTurn, func() {
					for i := range perTurn {
						off := written + int64(i*bs)
						if bs == 4096 {
							off = next()
						}
						if _, err := w.WriteAt(p, off); err != nil {
							b.Fatal(err)
						}
					}
				})
				t.take("append", perTurn, func() {
					for i := range perTurn {
						if _, err := plain.WriteAt(p, written+int64(i*bs)); err != nil {
							b.Fatal(err)
						}
					}
				})
				written += 4 * mib
			}
			closeBoth(b, w, plain)
			t.compare("write", "append")
		})
	}
}

// closeBoth ends a device and its twin, whose files are empty from then on: they are not to be written to disk later.
func closeBoth(b *testing.B, w *Writable, plain *os.File) {
	b.Helper()
	if w == nil {
		return
	}
	noError(b, w.Close(), os.RemoveAll(w.dir.path), plain.Truncate(0))
}

// BenchmarkWriteFlush writes 4 KiB and flushes, in one goroutine and in eight at once. Its twin makes a file durable after
// each write.
func BenchmarkWriteFlush(b *testing.B) {
	const perTurn = 16
	for _, writers := range []int{1, 8} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			w := openDevice(b, newEngine(b, newRepo()), b.TempDir(), emptyStack(mib))
			defer w.Close()
			plain, t := create(b, "plain"), newTurns(b)
			inAll := func(f func(i int)) {
				var wg sync.WaitGroup
				for i := range writers {
					wg.Go(func() {
						for range perTurn {
							f(i)
						}
					})
				}
				wg.Wait()
			}
			p, end := make([]byte, 4096), int64(0)
			for b.Loop() {
				t.take("flush", writers*perTurn, func() {
					inAll(func(i int) {
						if _, err := w.WriteAt(p, int64(i)*4096); err != nil {
							b.Error(err)
						}
						if err := w.Flush(); err != nil {
							b.Error(err)
						}
					})
				})
				t.take("fdatasync", perTurn, func() {
					for range perTurn {
						if _, err := plain.WriteAt(p, end); err != nil {
							b.Fatal(err)
						}
						end += 4096
						noError(b, unix.Fdatasync(int(plain.Fd())))
					}
				})
			}
			t.compare("flush", "fdatasync")
		})
	}
}

// compactTurn empties f, which is not part of the time, and compacts a layer into it.
func compactTurn(b *testing.B, t *turns, name string, l SealedLayer, f *os.File, o *zfile.Options) {
	b.Helper()
	emptied(b, f)
	t.take(name, 1, func() {
		if o == nil {
			noError(b, l.Compact(b.Context(), f))
			return
		}
		z, err := zfile.NewWriter(f, *o)
		noError(b, err)
		noError(b, l.Compact(b.Context(), z), z.Close())
	})
}

func emptied(b *testing.B, f *os.File) {
	b.Helper()
	_, err := f.Seek(0, io.SeekStart)
	noError(b, err, f.Truncate(0))
}

// copyFile copies by reads and writes of 1 MiB, as a compaction does.
func copyFile(b *testing.B, from string, to *os.File) {
	b.Helper()
	f, err := os.Open(from)
	noError(b, err)
	defer f.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{f}, make([]byte, mib))
	noError(b, err)
}

// writtenLayer seals a disk of size bytes that was written in order.
func writtenLayer(b *testing.B, size int64) SealedLayer {
	b.Helper()
	w := openDevice(b, newEngine(b, newRepo()), b.TempDir(), emptyStack(size))
	b.Cleanup(func() { noError(b, w.Close()) })
	writeAll(b, w)
	return seal(b, w, SealOptions{})[0]
}

// BenchmarkCompact compacts a layer of 1 GiB of live data that was written in order, to a file in the page cache, and
// copies its file.
func BenchmarkCompact(b *testing.B) {
	const size = 1024 * mib
	layer, t := writtenLayer(b, size), newTurns(b)
	out, copied := create(b, "layer"), create(b, "copy")
	for b.Loop() {
		compactTurn(b, t, "compact", layer, out, nil)
		emptied(b, copied)
		t.take("copy", 1, func() { copyFile(b, layer.Path, copied) })
	}
	b.ReportMetric(size/1e6/t.seconds("compact"), "MB/s")
	b.ReportMetric(size/1e6/t.seconds("copy"), "copy-MB/s")
	b.ReportMetric(t.seconds("copy")/t.seconds("compact"), "of-copy")
}

// BenchmarkCompactZFile compacts a layer into a ZFile with blocks of 4 KiB, on one core and on two. What the encoder takes
// alone for as much is the measure.
func BenchmarkCompactZFile(b *testing.B) {
	for codec, size := range map[zfile.Codec]int64{zfile.LZ4: 1024 * mib, zfile.Zstd: 256 * mib} {
		b.Run(fmt.Sprintf("codec=%v", codec), func(b *testing.B) {
			layer, t, out := writtenLayer(b, size), newTurns(b), create(b, "layer")
			for b.Loop() {
				for _, cores := range []int{1, 2} {
					before := runtime.GOMAXPROCS(cores)
					o := zfile.Options{Codec: codec, Concurrency: cores}
					compactTurn(b, t, fmt.Sprint("compact", cores), layer, out, &o)
					t.take(fmt.Sprint("alone", cores), 1, func() { encodeAlone(b, codec, cores, size) })
					runtime.GOMAXPROCS(before)
				}
			}
			for _, cores := range []string{"1", "2"} {
				b.ReportMetric(float64(size)/1e6/t.seconds("compact"+cores), "MB/s-on-"+cores)
				b.ReportMetric(t.seconds("alone"+cores)/t.seconds("compact"+cores), "of-alone-on-"+cores)
			}
			b.ReportMetric(t.seconds("compact1")/t.seconds("compact2"), "two-of-one")
		})
	}
}

// encodeAlone compresses size bytes in blocks of 4 KiB on so many cores and drops the result.
func encodeAlone(b *testing.B, codec zfile.Codec, cores int, size int64) {
	b.Helper()
	content := make([]byte, 8*mib)
	words(content, 1)
	var wg sync.WaitGroup
	for range cores {
		wg.Go(func() {
			encode := encoder(b, codec)
			for n := int64(0); n < size/int64(cores); n += 4096 {
				encode(content[n%int64(len(content)):][:4096])
			}
		})
	}
	wg.Wait()
}

// encoder returns the encoder of a codec as zfile sets it up.
func encoder(b *testing.B, codec zfile.Codec) func([]byte) {
	dst := make([]byte, 0, 8192)
	if codec == zfile.LZ4 {
		var c lz4.CompressorCCompat
		return func(p []byte) {
			if _, err := c.CompressBlock(p, dst[:cap(dst)]); err != nil {
				b.Error(err)
			}
		}
	}
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(3)),
		zstd.WithWindowSize(zfile.MaxBlockSize), zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false))
	if err != nil {
		b.Error(err)
	}
	return func(p []byte) { e.EncodeAll(p, dst) }
}

// BenchmarkRoll writes four million random sectors, four times what a layer may have segments, and seals. It fails if a
// layer has more than the format's readers take.
func BenchmarkRoll(b *testing.B) {
	const writes = 4_000_000
	p := make([]byte, SectorSize)
	for b.Loop() {
		w := openDevice(b, newEngine(b, newRepo()), b.TempDir(), emptyStack(64*writes*SectorSize))
		next := pages(w.Size(), 1)
		for range writes {
			if _, err := w.WriteAt(p, next()); err != nil {
				b.Fatal(err)
			}
		}
		layers := seal(b, w, SealOptions{})
		segments := 0
		for _, l := range layers {
			segments += l.Segments
			if l.Segments > lsmt.MaxSegments {
				b.Errorf("a layer of %d segments", l.Segments)
			}
		}
		noError(b, w.Close(), os.RemoveAll(w.dir.path))
		b.ReportMetric(float64(len(layers)), "layers")
		b.ReportMetric(float64(segments), "segments")
		b.ReportMetric(writes/b.Elapsed().Seconds(), "writes/s")
	}
}
