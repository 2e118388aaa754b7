package zfile

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

var blockSizes = []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10}

func drawOptions(t *rapid.T) Options {
	return Options{
		Codec:       rapid.SampledFrom([]Codec{LZ4, Zstd}).Draw(t, "codec"),
		BlockSize:   rapid.SampledFrom(blockSizes).Draw(t, "block size"),
		NoChecksums: rapid.Bool().Draw(t, "no checksums"),
		Concurrency: rapid.IntRange(1, 3).Draw(t, "concurrency"),
		Oversize:    true,
	}
}

// drawContent makes content of runs that compress more or less, of which the last block is seldom whole.
func drawContent(t *rapid.T) (content []byte) {
	for range rapid.IntRange(0, 5).Draw(t, "runs") {
		n := rapid.SampledFrom([]int{1, 511, 4095, 4096, 16384, 65536, 140_000}).Draw(t, "length")
		if rapid.Bool().Draw(t, "zeroes") {
			content = append(content, make([]byte, n)...)
			continue
		}
		content = append(content, pattern(rapid.Uint64Range(0, 99).Draw(t, "seed"), n)...)
	}
	return content
}

func write(t *rapid.T, o Options, content []byte) []byte {
	var out bytes.Buffer
	w, err := NewWriter(&out, o)
	if err != nil {
		t.Fatal(err)
	}
	for rest := content; len(rest) > 0; {
		n := min(len(rest), rapid.IntRange(1, 200_000).Draw(t, "write"))
		if m, err := w.Write(rest[:n]); m != n || err != nil {
			t.Fatal(m, err)
		}
		rest = rest[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestModelReadsAreTheContentThatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := drawContent(t)
		o := drawOptions(t)
		f := write(t, o, content)
		r, err := Open(bytes.NewReader(f), int64(len(f)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Size() != int64(len(content)) {
			t.Fatalf("size %d, want %d", r.Size(), len(content))
		}
		if err := r.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			off := rapid.IntRange(0, len(content)+10).Draw(t, "offset")
			p := make([]byte, rapid.SampledFrom([]int{0, 1, 512, 4096, 5000, 65536, 300_000}).Draw(t, "length"))
			if rapid.Bool().Draw(t, "aligned") {
				off -= off % o.BlockSize
			}
			checkRead(t, r, content, p, off)
		}
	})
}

// checkRead compares a read with what io.ReaderAt promises of content.
func checkRead(t *rapid.T, r *Reader, content, p []byte, off int) {
	want := content[min(off, len(content)):]
	want = want[:min(len(want), len(p))]
	n, err := r.ReadAt(p, int64(off))
	if n != len(want) || !bytes.Equal(p[:n], want) {
		t.Fatalf("read %d bytes at %d: %d bytes, want %d, or other content", len(p), off, n, len(want))
	}
	if short := n < len(p); short != errors.Is(err, io.EOF) || !short && err != nil {
		t.Fatalf("read %d bytes at %d: %d, %v", len(p), off, n, err)
	}
}
