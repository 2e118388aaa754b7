package zfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/iotest"
)

func TestBytesDoNotDependOnCoresOrWriteSizes(t *testing.T) {
	content := append(pattern(7, 2<<20), pattern(20, 300_001)...)
	for _, o := range []Options{{}, {Codec: Zstd, BlockSize: 16 << 10}, {Codec: Zstd}} {
		o.Concurrency = 1
		want := pack(t, o, content)
		for concurrency, n := range map[int]int{0: len(content), 2: 100_000, 3: 777, 8: 4096} {
			o.Concurrency = concurrency
			var out bytes.Buffer
			w, err := NewWriter(&out, o)
			if err != nil {
				t.Fatal(err)
			}
			for rest := content; len(rest) > 0; rest = rest[min(n, len(rest)):] {
				if _, err := w.Write(rest[:min(n, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), want) {
				t.Errorf("%v, concurrency %d, writes of %d: other bytes", o.Codec, concurrency, n)
			}
		}
	}
}

// A pipe that gives little at a time is where the reference makes short blocks.
func TestShortReadsOfAPipeMakeWholeBlocks(t *testing.T) {
	content := pattern(7, 70_000)
	var out bytes.Buffer
	w, err := NewWriter(&out, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, iotest.OneByteReader(bytes.NewReader(content))); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), goldenBytes(t, "zfile/n70000-lz4-4k-crc.zf")) {
		t.Error("other bytes")
	}
}

func TestNoContentIsAWholeFile(t *testing.T) {
	f := pack(t, Options{}, nil)
	if !bytes.Equal(f, goldenBytes(t, "zfile/n0-lz4-4k-crc.zf")) {
		t.Error("other bytes")
	}
	r := open(t, f)
	if n, err := r.ReadAt(make([]byte, 10), 0); n != 0 || err != io.EOF {
		t.Error(n, err)
	}
}

func TestMemoryDoesNotGrowWithTheContent(t *testing.T) {
	content := pattern(7, 1<<20)
	for _, o := range []Options{{Concurrency: 4}, {Codec: Zstd, BlockSize: 64 << 10, Concurrency: 4}} {
		w, err := NewWriter(io.Discard, o)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds = 24
		for range rounds {
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		// All that was ever allocated: batches and compressors once, and an index of 4 bytes a block that grows by copies.
		limit := uint64(4*(3<<20) + 8*4*rounds<<20/o.options(t).BlockSize)
		if got := after.TotalAlloc - before.TotalAlloc; got > limit && !raceEnabled {
			t.Errorf("%v: %d bytes allocated for %d MiB, at most %d are allowed", o.Codec, got, rounds, limit)
		}
	}
}

func (o Options) options(t *testing.T) Options {
	t.Helper()
	o, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOptionsOutsideTheirLimitsAreNamed(t *testing.T) {
	for field, o := range map[string]Options{
		"Codec": {Codec: 3}, "BlockSize": {BlockSize: 12 << 10}, "Concurrency": {Concurrency: -1},
	} {
		var out bytes.Buffer
		_, err := NewWriter(&out, o)
		var l *LimitError
		if !errors.As(err, &l) || l.Field != field || !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
		if out.Len() != 0 {
			t.Errorf("%+v: %d bytes written", o, out.Len())
		}
	}
	for _, n := range []int{-4096, 1, 2048, 128 << 10} {
		if _, err := NewWriter(io.Discard, Options{BlockSize: n}); !errors.Is(err, ErrInvalid) {
			t.Errorf("block size %d: %v", n, err)
		}
	}
	if _, err := NewWriter(io.Discard, Options{Concurrency: maxConcurrency + 1}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestOnlyOversizeMakesBlocksThatTheReferenceCannotRead(t *testing.T) {
	random := pattern(20, 200_000)
	for _, codec := range []Codec{LZ4, Zstd} {
		w, err := NewWriter(io.Discard, Options{Codec: codec, BlockSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(random)
		err = errors.Join(err, w.Close())
		var l *LimitError
		if !errors.As(err, &l) || l.Field != "BlockSize" || !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", codec, err)
		}
		for _, o := range []Options{
			{Codec: codec, BlockSize: 64 << 10, Oversize: true},
			{Codec: codec, BlockSize: 32 << 10},
		} {
			if got, err := unpack(pack(t, o, random)); err != nil || !bytes.Equal(got, random) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		content := pattern(7, 200_000)
		got, err := unpack(pack(t, Options{Codec: codec, BlockSize: 64 << 10}, content))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%v: %v", codec, err)
		}
	}
}

// The reference reads blocks of up to 64 KiB, and its table in memory wants less than 65535 bytes in all blocks but the
// last of each 64 KiB of content.
func TestWhatIsWrittenFitsTheReferencesTable(t *testing.T) {
	for _, codec := range []Codec{LZ4, Zstd} {
		for _, bs := range blockSizes[:4] {
			r := open(t, pack(t, Options{Codec: codec, BlockSize: bs}, pattern(20, 256<<10)))
			group := int64(64 << 10 / bs)
			for b := int64(0); b+group <= r.layout.blocks; b += group {
				if n := r.index.at(b+group-1) - r.index.at(b); n >= 65535 {
					t.Errorf("%v, blocks of %d: %d bytes", codec, bs, n)
				}
			}
		}
	}
}

// limited fails, or takes less than it is given, from a number of bytes on.
type limited struct {
	left  int
	short bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left >= 0 {
		return len(p), nil
	}
	if l.short {
		return 0, nil
	}
	return 0, iotest.ErrTimeout
}

func TestAFailedWriteIsFinal(t *testing.T) {
	content := pattern(7, 1<<20)
	whole := len(pack(t, Options{}, content))
	for _, left := range []int{0, 511, 512, 60_000, whole - 600, whole - 1} {
		for short, want := range map[bool]error{false: iotest.ErrTimeout, true: io.ErrShortWrite} {
			w, err := NewWriter(&limited{left: left, short: short}, Options{Concurrency: 2})
			if w != nil {
				_, werr := w.Write(content)
				err = w.Close()
				if werr != nil && !errors.Is(err, want) {
					t.Errorf("%d: Close returns %v after %v", left, err, werr)
				}
				if again := w.Close(); !errors.Is(again, want) {
					t.Errorf("%d: Close again: %v", left, again)
				}
				if _, werr := w.Write(content); !errors.Is(werr, want) {
					t.Errorf("%d: Write after Close: %v", left, werr)
				}
			}
			if !errors.Is(err, want) {
				t.Errorf("%d bytes, short %v: %v", left, short, err)
			}
		}
	}
}

func TestCloseEndsTheFile(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("late")); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	if out.Len() != 2*HeaderSize {
		t.Errorf("%d bytes", out.Len())
	}
}

func TestTheFinalHeaderIsThatOfTheReference(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteFinalHeader(f); !errors.Is(err, errOpen) {
		t.Error("before Close:", err)
	}
	_, err = w.Write(pattern(7, 70_000))
	if err := errors.Join(err, w.Close(), w.WriteFinalHeader(f)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, goldenBytes(t, "zfile/n70000-lz4-4k-crc-ovw.zf")) {
		t.Error("other bytes")
	}
}

func TestErrorsReadWell(t *testing.T) {
	for want, err := range map[string]error{
		"corrupt ZFile: block 3, 80 bytes at 512: bad":            &CorruptError{PartBlock, 3, 512, 80, "bad"},
		"corrupt ZFile: trailer, 512 bytes at 1024: no magic":     corrupt(PartTrailer, 1024, 512, "no magic"),
		"invalid argument: Codec 3: must be 1 (lz4) or 2 (zstd)":  invalid("Codec", 3, "1 (lz4) or 2 (zstd)"),
		"unsupported ZFile: block size 3: must be a power of two": unsupported("block size", 3, "a power of two"),
	} {
		if got := err.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s := Zstd.String() + LZ4.String() + Codec(7).String(); s != "zstdlz4codec(7)" {
		t.Error(s)
	}
}

// Whole groups, the first block of the next, and the number behind the last have the right offsets.
func TestIndexOffsetsAreSums(t *testing.T) {
	for _, blocks := range []int{1, 15, 16, 17, 33} {
		r := open(t, pack(t, Options{}, pattern(7, blocks*4096)))
		f := pack(t, Options{}, pattern(7, blocks*4096))
		off := int64(HeaderSize)
		for i := range blocks {
			if got := r.index.at(int64(i)); got != off {
				t.Fatalf("%d blocks: block %d at %d, want %d", blocks, i, got, off)
			}
			off += int64(binary.LittleEndian.Uint32(f[r.layout.indexOffset+int64(4*i):]))
		}
		if got := r.index.at(int64(blocks)); got != off || got != r.layout.indexOffset {
			t.Fatalf("%d blocks end at %d, want %d", blocks, got, off)
		}
	}
}
