package zfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// MinBlockSize is the least block size that is written. Smaller powers of two can be read.
	MinBlockSize = 4 << 10
	// MaxBlockSize is the greatest block size.
	MaxBlockSize = 64 << 10

	crcSize = 4
	// runSize is how many stored bytes are read at once: more than any block, less than a core's second-level cache.
	runSize = 128 << 10
)

// Reader is random access to the content of a ZFile. Its methods may be called concurrently. It owns no file and no
// goroutine, so it has no Close; at most 1 MiB of decoded blocks and 4.5 bytes for each block go with it.
type Reader struct {
	src      io.ReaderAt
	fileSize int64
	header   header // the one that counts: the trailer, or a final header
	layout   layout
	index    index
	cache    cache
	decoded  sync.Pool // of *buffer, a block each
}

// Open checks header, trailer and index of the ZFile in the size bytes of src, and returns a Reader of its content. It
// is ErrNotZFile if the file begins otherwise, ErrCorrupt with part and place if the parts contradict themselves, each
// other or size, and ErrUnsupported for a codec, block size or dictionary that is unknown. Blocks are checked when
// read.
func Open(src io.ReaderAt, size int64) (*Reader, error) {
	h, err := readFinal(src, size)
	if err != nil {
		return nil, err
	}
	return newReader(src, size, h)
}

// OpenTail is Open for a file of which it is known that it is a ZFile, and whose beginning is far away: it reads trailer and
// index, which stand at the end. The trailer says all that a header does. A file that does not end as a ZFile is
// ErrCorrupt.
func OpenTail(src io.ReaderAt, size int64) (*Reader, error) {
	if size < 2*HeaderSize {
		return nil, corrupt(PartTrailer, 0, max(size, 0), "the file ends at byte %d", size)
	}
	h, err := readTrailer(src, size)
	if err != nil {
		return nil, err
	}
	return newReader(src, size, h)
}

// newReader reads the index that h describes.
func newReader(src io.ReaderAt, size int64, h header) (*Reader, error) {
	l, err := checkLayout(&h, h.part(), h.offset(size), size)
	if err != nil {
		return nil, err
	}
	x, err := readIndex(src, &h, &l)
	if err != nil {
		return nil, err
	}
	r := &Reader{src: src, fileSize: size, header: h, layout: l, index: x, cache: newCache(l.blockSize(), l.blocks)}
	r.decoded.New = func() any { return &buffer{make([]byte, l.blockSize())} }
	return r, nil
}

// readFinal returns the header if it was rewritten with the final values, else the trailer.
func readFinal(src io.ReaderAt, size int64) (header, error) {
	if size < HeaderSize {
		return header{}, fmt.Errorf("%w: %d bytes, shorter than a header", ErrNotZFile, size)
	}
	b := make([]byte, HeaderSize)
	if err := readFull(src, PartHeader, b, 0); err != nil {
		return header{}, err
	}
	if !IsZFile(b) {
		return header{}, ErrNotZFile
	}
	h, err := decodeHeader(PartHeader, b, 0)
	if err != nil {
		return header{}, err
	}
	if !h.has(flagHeader | flagData) {
		return header{}, corrupt(PartHeader, offFlags, 8, "flags %#x are not those of a header", h.flags)
	}
	if size < 2*HeaderSize {
		return header{}, corrupt(PartTrailer, HeaderSize, HeaderSize, "the file ends at byte %d", size)
	}
	// A plain header was written before anything was known. Its index fields are zeroes, or garbage in old files.
	if h.has(flagFinal) {
		return h, nil
	}
	return readTrailer(src, size)
}

func readTrailer(src io.ReaderAt, size int64) (header, error) {
	b, at := make([]byte, HeaderSize), size-HeaderSize
	if err := readFull(src, PartTrailer, b, at); err != nil {
		return header{}, err
	}
	// The reference does not look at a trailer's digest. Whoever writes one writes it right, so it is checked here.
	t, err := decodeHeader(PartTrailer, b, at)
	if err != nil {
		return header{}, err
	}
	if !t.has(flagData|flagSealed) || t.has(flagHeader) {
		return header{}, corrupt(PartTrailer, at+offFlags, 8, "flags %#x are not those of a trailer", t.flags)
	}
	return t, nil
}

// part and offset say where h is stored.
func (h *header) part() Part {
	if h.has(flagHeader) {
		return PartHeader
	}
	return PartTrailer
}

func (h *header) offset(fileSize int64) int64 {
	if h.has(flagHeader) {
		return 0
	}
	return fileSize - HeaderSize
}

// Size returns the number of bytes of content.
func (r *Reader) Size() int64 { return r.layout.size }

// ReadAt reads content at off. It returns io.EOF with what there is when p reaches beyond Size. A block that cannot be
// decoded, or not to what its checksum says, is a CorruptError that names it; the bytes in front of it have been read,
// and of it nothing is returned. A read of whole blocks goes to p directly; no read allocates.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, invalid("offset", off, "at least 0")
	}
	if len(p) == 0 {
		return 0, nil
	}
	rest := r.layout.size - off
	if rest <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) <= rest {
		return r.read(p, off)
	}
	n, err := r.read(p[:rest], off)
	if err == nil {
		err = io.EOF
	}
	return n, err
}

// read reads content that is there.
func (r *Reader) read(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		at := off + int64(n)
		block, inside := at>>r.layout.shift, int(at)&(r.layout.blockSize()-1)
		var m int
		if inside == 0 && len(p)-n >= r.layout.length(block) {
			m, err = r.readRun(p[n:], block)
		} else {
			m, err = r.readPart(p[n:], block, inside)
		}
		n += m
	}
	return n, err
}

// readPart reads from one block of which p is a part.
func (r *Reader) readPart(p []byte, block int64, inside int) (int, error) {
	if n, ok := r.cache.read(p, block, inside); ok {
		return n, nil
	}
	// Decoded outside of the cache's locks, so that a slow source delays nobody who reads other blocks.
	buf := r.decoded.Get().(*buffer)
	buf.b = buf.b[:r.layout.length(block)]
	if _, err := r.readRun(buf.b, block); err != nil {
		r.release(buf)
		return 0, err
	}
	n := copy(p, buf.b[inside:])
	if old := r.cache.put(block, buf); old != nil {
		r.release(old)
	}
	return n, nil
}

// release gives a buffer back at full length: it may have held the short last block.
func (r *Reader) release(buf *buffer) {
	buf.b = buf.b[:cap(buf.b)]
	r.decoded.Put(buf)
}

// storedRuns serves all readers.
var storedRuns = sync.Pool{New: func() any { return &buffer{make([]byte, runSize)} }}

// readRun reads whole blocks, with one read of their stored bytes: as many as p and a buffer hold, and one at least.
func (r *Reader) readRun(p []byte, block int64) (n int, err error) {
	buf := storedRuns.Get().(*buffer)
	defer storedRuns.Put(buf)
	start, end := r.index.at(block), r.runEnd(block, len(p))
	stored := buf.b[:r.index.at(end)-start]
	err = readFull(r.src, PartBlock, stored, start)
	if errors.Is(err, ErrCorrupt) && end > block+1 {
		// The file ends inside the run. What is in front of that is whole, and the block where it ends has to be named.
		return r.readRun(p[:r.layout.length(block)], block)
	}
	if err != nil {
		return 0, atBlock(err, block)
	}
	for ; block < end; block++ {
		from, to := r.index.at(block)-start, r.index.at(block+1)-start
		length := r.layout.length(block)
		if err := r.decode(p[n:n+length], stored[from:to], block); err != nil {
			return n, err
		}
		n += length
	}
	return n, nil
}

// runEnd returns the block behind the last whose content fits into n bytes, and whose stored bytes fit into a buffer
// together with those before it.
func (r *Reader) runEnd(block int64, n int) int64 {
	limit := r.index.at(block) + runSize
	for n -= r.layout.length(block); ; n -= r.layout.length(block) {
		block++
		if block == r.layout.blocks || n < r.layout.length(block) || r.index.at(block+1) > limit {
			return block
		}
	}
}

// atBlock names the block whose bytes could not be read.
func atBlock(err error, block int64) error {
	var c *CorruptError
	if errors.As(err, &c) {
		c.Block = block
	}
	return err
}

// decode fills dst with the content of a block.
func (r *Reader) decode(dst, stored []byte, block int64) error {
	body := stored
	if r.layout.checksums {
		// The checksum comes first: decoders are for bytes that an encoder made.
		body = stored[:len(stored)-crcSize]
		if got, want := blockCRC(body), binary.LittleEndian.Uint32(stored[len(body):]); got != want {
			return r.corruptBlock(block, "checksum is %08x, %08x is recorded", got, want)
		}
	}
	// Without a checksum this is all that finds damage, so a block that is too short is as bad as one that breaks.
	n, err := r.layout.codec.decompress(dst, body)
	if err != nil {
		return r.corruptBlock(block, "%v: %v", r.layout.codec, err)
	}
	if n != len(dst) {
		return r.corruptBlock(block, "%v: %d bytes of content, %d expected", r.layout.codec, n, len(dst))
	}
	return nil
}

func (r *Reader) corruptBlock(block int64, format string, args ...any) error {
	at := r.index.at(block)
	return &CorruptError{
		Part: PartBlock, Block: block, Offset: at, Length: r.index.at(block+1) - at, Detail: fmt.Sprintf(format, args...),
	}
}
