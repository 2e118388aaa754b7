package zfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchContent has each word four times: 38 % of it is left by LZ4, 26 % by zstd.
func benchContent(n int) []byte { return pattern(6, n) }

// benchFile returns content as a ZFile on disk, which is in the page cache, and a Reader of it.
func benchFile(b *testing.B, o Options, content []byte) (*os.File, *Reader) {
	b.Helper()
	packed := pack(b, o, content)
	name := filepath.Join(b.TempDir(), "layer")
	if err := os.WriteFile(name, packed, 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	r, err := Open(f, int64(len(packed)))
	if err != nil {
		b.Fatal(err)
	}
	return f, r
}

// offsets returns where reads of 4 KiB go.
func offsets(pattern string, size int64, seed uint64) func() int64 {
	rnd := rand.New(rand.NewPCG(1, seed))
	pages := size / 4096
	at, left := int64(0), 0
	return func() int64 {
		switch pattern {
		case "seq":
			at = (at + 1) % pages
		case "local": // 64 reads somewhere in 256 KiB, and then elsewhere
			if left--; left < 0 {
				at, left = rnd.Int64N(pages/64)*64, 63
			}
			return (at + rnd.Int64N(64)) * 4096
		default:
			at = rnd.Int64N(pages)
		}
		return at * 4096
	}
}

// BenchmarkRead reads 4 KiB at a time. Reads by the Reader alternate with the parts they are made of, alone: a pread of
// the block, its checksum, its decompression. That way both see the same machine; of-parts is the ratio of their
// medians.
func BenchmarkRead(b *testing.B) {
	content := benchContent(64 << 20)
	for _, c := range []struct {
		o       Options
		pattern string
	}{
		{Options{}, "rand"},
		{Options{Codec: Zstd}, "rand"},
		{Options{BlockSize: 64 << 10}, "rand"},
		{Options{BlockSize: 64 << 10}, "local"},
		{Options{BlockSize: 64 << 10}, "seq"},
		{Options{Codec: Zstd, BlockSize: 64 << 10}, "local"},
	} {
		o, _ := c.o.complete()
		b.Run(fmt.Sprintf("codec=%v/block=%dk/bs=4k/pattern=%s", o.Codec, o.BlockSize>>10, c.pattern), func(b *testing.B) {
			f, r := benchFile(b, o, content)
			p, block, stored := make([]byte, 4096), make([]byte, o.BlockSize), make([]byte, 2*MaxBlockSize)
			// Other offsets for each, or one would find what the other has just warmed.
			next, nextParts := offsets(c.pattern, r.Size(), 1), offsets(c.pattern, r.Size(), 2)
			const round = 64
			var at, atParts [round]int64
			reader, parts := make([]time.Duration, 0, 1<<16), make([]time.Duration, 0, 1<<16)
			b.SetBytes(2 * round * 4096)
			b.ReportAllocs()
			for b.Loop() {
				for i := range at {
					at[i], atParts[i] = next(), nextParts()
				}
				t0 := time.Now()
				for _, off := range at {
					if _, err := r.ReadAt(p, off); err != nil {
						b.Fatal(err)
					}
				}
				t1 := time.Now()
				for _, off := range atParts {
					if err := readParts(f, r, block, stored, off); err != nil {
						b.Fatal(err)
					}
				}
				reader, parts = append(reader, t1.Sub(t0)), append(parts, time.Since(t1))
			}
			b.ReportMetric(round/median(reader), "reads/s")
			b.ReportMetric(round/median(parts), "parts/s")
			b.ReportMetric(median(parts)/median(reader), "of-parts")
		})
	}
}

// median returns seconds: of many short rounds, so that being interrupted does not count.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return d[len(d)/2].Seconds()
}

func readParts(f *os.File, r *Reader, dst, stored []byte, off int64) error {
	block := off >> r.layout.shift
	start, end := r.index.at(block), r.index.at(block+1)
	stored = stored[:end-start]
	if _, err := f.ReadAt(stored, start); err != nil {
		return err
	}
	body := stored[:len(stored)-crcSize]
	if blockCRC(body) != binary.LittleEndian.Uint32(stored[len(body):]) {
		return ErrCorrupt
	}
	_, err := r.layout.codec.decompress(dst, body)
	return err
}

func BenchmarkReadSequential(b *testing.B) {
	content := benchContent(64 << 20)
	for _, o := range []Options{{Codec: LZ4}, {Codec: LZ4, BlockSize: 64 << 10}, {Codec: Zstd}} {
		o, _ = o.complete()
		b.Run(fmt.Sprintf("codec=%v/block=%dk/bs=1m", o.Codec, o.BlockSize>>10), func(b *testing.B) {
			_, r := benchFile(b, o, content)
			p := make([]byte, 1<<20)
			off := int64(0)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.ReadAt(p, off); err != nil {
					b.Fatal(err)
				}
				off = (off + 1<<20) % r.Size()
			}
		})
	}
}

// BenchmarkReadParallel reads 4 KiB at random from as many goroutines as cores.
func BenchmarkReadParallel(b *testing.B) {
	_, r := benchFile(b, Options{}, benchContent(64<<20))
	b.SetBytes(4096)
	var seed atomic.Uint64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		next := offsets("rand", r.Size(), seed.Add(1))
		p := make([]byte, 4096)
		for pb.Next() {
			if _, err := r.ReadAt(p, next()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkWrite writes 8 MiB, in turns: the encoder alone, and the Writer, each on one core and on two. The figures
// are the best of all rounds, and the ratios of those: that of one to two cores says little on a machine that has other
// work, that of the Writer to the encoder alone on the same cores still does.
func BenchmarkWrite(b *testing.B) {
	content := benchContent(8 << 20)
	for _, o := range []Options{
		{Codec: LZ4}, {Codec: LZ4, BlockSize: 64 << 10},
		{Codec: Zstd}, {Codec: Zstd, BlockSize: 64 << 10},
	} {
		o, _ = o.complete()
		b.Run(fmt.Sprintf("codec=%v/block=%dk", o.Codec, o.BlockSize>>10), func(b *testing.B) {
			best := map[string]float64{}
			timed := func(name string, f func()) {
				t := time.Now()
				f()
				best[name] = max(best[name], float64(len(content))/1e6/time.Since(t).Seconds())
			}
			b.SetBytes(int64(4 * len(content)))
			for b.Loop() {
				timed("alone1", func() { compressAlone(b, o, 1, content) })
				timed("writer1", func() { writeAll(b, o, 1, content) })
				timed("alone2", func() { compressAlone(b, o, 2, content) })
				timed("writer2", func() { writeAll(b, o, 2, content) })
			}
			for name, mbs := range best {
				b.ReportMetric(mbs, name+"-MB/s")
			}
			b.ReportMetric(best["writer1"]/best["alone1"], "of-alone1")
			b.ReportMetric(best["writer2"]/best["alone2"], "of-alone2")
			b.ReportMetric(best["writer2"]/best["writer1"], "two-of-one")
		})
	}
}

// compressAlone compresses the blocks of content in as many goroutines as asked for, and drops the result.
func compressAlone(b *testing.B, o Options, concurrency int, content []byte) {
	var wg sync.WaitGroup
	for share := range slices.Chunk(content, len(content)/concurrency) {
		wg.Go(func() {
			c, err := newCompressor(o.Codec)
			if err != nil {
				b.Error(err)
				return
			}
			dst := make([]byte, 0, maxStored(o.BlockSize))
			for block := range slices.Chunk(share, o.BlockSize) {
				if _, err := c.compress(dst, block); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func writeAll(b *testing.B, o Options, concurrency int, content []byte) {
	o.Concurrency = concurrency
	w, err := NewWriter(io.Discard, o)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpen opens a file of 4 GiB of content, of which only the index is real.
func BenchmarkOpen(b *testing.B) {
	const blocks = 1 << 20
	f := make([]byte, HeaderSize, HeaderSize+blocks*(entrySize+5)+HeaderSize)
	f = append(f, make([]byte, blocks*5)...)
	h := header{
		flags: flagData | flagSealed, codec: LZ4, blockSize: 4096, checksums: true,
		size: blocks * 4096, blocks: blocks, indexOffset: uint64(len(f)),
	}
	for range blocks {
		f = binary.LittleEndian.AppendUint32(f, 5)
	}
	h.indexCRC = rawCRC(0, f[h.indexOffset:])
	h.flags |= flagDigest
	f = append(f, h.encode()...)
	h.flags = flagHeader | flagData
	copy(f, h.encode())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Open(bytes.NewReader(f), int64(len(f))); err != nil {
			b.Fatal(err)
		}
	}
}
