package turbo

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
)

// bufferedSection reads n bytes of src from off on, ahead by 32 KiB.
func bufferedSection(src io.ReaderAt, off, n int64) *bufio.Reader {
	return bufio.NewReaderSize(io.NewSectionReader(src, off, n), 32<<10)
}

// startInflate decompresses from an entry on; window is the content in front of it.
func startInflate(gz io.ReaderAt, size int64, e entry, window []byte) (io.Reader, error) {
	if e.bits == 0 {
		return flate.NewReaderDict(bufferedSection(gz, e.stored, size-e.stored), window), nil
	}
	var shared [1]byte
	if err := readFull(gz, "gzip", shared[:], e.stored-1); err != nil {
		return nil, err
	}
	lead := leadIn(shared[0], e.bits)
	stream := io.MultiReader(bytes.NewReader(lead), io.NewSectionReader(gz, e.stored, size-e.stored))
	return flate.NewReaderDict(bufio.NewReaderSize(stream, 32<<10), window), nil
}

// leadIn returns bytes after which a decoder expects a block to begin at the last bits bits of shared, which are in the
// top of the last byte. Decoders begin at whole bytes only, so what fills the bits below are blocks without content:
// of 10 bits each, and, where an odd number of bits is needed, one of 93.
//
// To shift the stream instead would not do: uncompressed blocks are aligned to bytes of the original stream.
func leadIn(shared byte, bits uint8) []byte {
	var w bitWriter
	fill := 8 - int(bits)
	if fill%2 == 1 {
		w.emptyDynamicBlock()
	}
	for w.n%8 != fill {
		w.emptyFixedBlock()
	}
	w.put(uint(shared>>fill), int(bits))
	return w.b
}

// bitWriter writes bits as deflate does, from the bottom of each byte.
type bitWriter struct {
	b []byte
	n int // bits
}

func (w *bitWriter) put(v uint, n int) {
	for ; n > 0; n-- {
		if w.n%8 == 0 {
			w.b = append(w.b, 0)
		}
		w.b[w.n/8] |= byte(v&1) << (w.n % 8)
		v >>= 1
		w.n++
	}
}

// emptyFixedBlock writes a block in the fixed code with nothing but its end, which is seven zeroes.
func (w *bitWriter) emptyFixedBlock() {
	w.put(0, 1)
	w.put(1, 2)
	w.put(0, 7)
}

// emptyDynamicBlock writes a block with a code of its own, in which the end of the block is all there is.
func (w *bitWriter) emptyDynamicBlock() {
	w.put(0, 1)
	w.put(2, 2)
	w.put(0, 5)  // 257 literal codes
	w.put(0, 5)  // one distance code
	w.put(15, 4) // 19 lengths follow, of the codes that code lengths are written in, in the order of RFC 1951
	for i := range 19 {
		length := uint(0)
		if i == 2 || i == 17 { // "zero repeated", 18, and "length one", 1
			length = 1
		}
		w.put(length, 3)
	}
	// Of the two codes of length one, "length one" is 0 and "zero repeated" is 1.
	w.put(1, 1)
	w.put(138-11, 7)
	w.put(1, 1)
	w.put(118-11, 7) // 256 literals have no code
	w.put(0, 1)      // the end of the block has one of one bit
	w.put(0, 1)      // and so has the distance, which nothing uses
	w.put(0, 1)      // the end of the block
}

// isDamage tells an error that a decoder makes of bad bytes from one of the medium.
func isDamage(err error) bool {
	var input flate.CorruptInputError
	return errors.As(err, &input) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, zlib.ErrHeader) || errors.Is(err, zlib.ErrChecksum) || errors.Is(err, zlib.ErrDictionary) ||
		errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)
}
