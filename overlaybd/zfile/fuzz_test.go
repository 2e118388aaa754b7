package zfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// fuzzRead bounds the content that is read of one input.
const fuzzRead = 1 << 20

// FuzzOpen opens hostile bytes. With repair they get the checksums that belong to them first, so that what is behind
// the checks meets them too. Whatever they are: no panic, errors of the known classes, and two ways of reading agree.
func FuzzOpen(f *testing.F) {
	small := pattern(7, 9000)
	for _, repair := range []bool{false, true} {
		f.Add(pack(f, Options{}, small), repair)
		f.Add(pack(f, Options{Codec: Zstd, BlockSize: 8 << 10}, small), repair)
		f.Add(pack(f, Options{NoChecksums: true}, small), repair)
		f.Add(finalHeader(f, pack(f, Options{}, small)), repair)
		f.Add(pack(f, Options{}, nil), repair)
	}
	names, err := filepath.Glob("testdata/golden/zfile/n*-*k-*.zf")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = repaired(b)
		}
		r, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			if !known(err) {
				t.Fatal(err)
			}
			return
		}
		n := min(r.Size(), fuzzRead)
		whole := make([]byte, n)
		m, err := r.ReadAt(whole, 0)
		if err != nil && !known(err) {
			t.Fatal(err)
		}
		got, err := io.ReadAll(onlyReader{io.NewSectionReader(r, 0, int64(m))})
		if err != nil || !bytes.Equal(got, whole[:m]) {
			t.Fatalf("%d bytes were read, then %d: %v", m, len(got), err)
		}
		if r.Size() <= fuzzRead {
			if err := r.Verify(t.Context()); err != nil && !known(err) {
				t.Fatal(err)
			}
		}
	})
}

// onlyReader makes ReadAll read in its own small, growing steps.
type onlyReader struct{ io.Reader }

func known(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotZFile) || errors.Is(err, ErrUnsupported)
}

// repaired returns b with right digests, index checksum and block checksums, as far as they can be found.
func repaired(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < 2*HeaderSize || !IsZFile(b) {
		return b
	}
	head, trailer := b[:HeaderSize], b[len(b)-HeaderSize:]
	final := head
	if binary.LittleEndian.Uint64(head[offFlags:])&flagFinal == 0 {
		final = trailer
	}
	at, n := binary.LittleEndian.Uint64(final[offIndexOffset:]), binary.LittleEndian.Uint64(final[offBlocks:])
	if room := uint64(len(b)); at < room && n < (room-at)/entrySize {
		x := b[at : at+n*entrySize]
		binary.LittleEndian.PutUint32(final[offIndexCRC:], rawCRC(0, x))
		if final[offChecksums] != 0 {
			repairBlocks(b[:at], x, HeaderSize+uint64(binary.LittleEndian.Uint32(final[offDictSize:])))
		}
	}
	for _, h := range [][]byte{head, trailer} {
		binary.LittleEndian.PutUint32(h[offDigest:], digest(h))
	}
	return b
}

func repairBlocks(b, x []byte, at uint64) {
	for ; len(x) > 0; x = x[entrySize:] {
		n := uint64(binary.LittleEndian.Uint32(x))
		if n < crcSize || at+n > uint64(len(b)) {
			return
		}
		body := b[at : at+n-crcSize]
		binary.LittleEndian.PutUint32(b[at+n-crcSize:], blockCRC(body))
		at += n
	}
}
