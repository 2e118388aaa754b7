package lsmt

import (
	"errors"
	"io"

	"github.com/google/uuid"
)

// Layer is a sealed layer: its trailer and its segments. It keeps no file open.
type Layer struct {
	UUID        uuid.UUID
	Parent      uuid.UUID // of the layer below; uuid.Nil if unknown or none
	VirtualSize int64     // bytes; 0: that of the layer below
	UserTag     string
	Segments    []Segment // sorted, disjoint, tag 0
}

// indexRead is how much of an index is read at once.
const indexRead = 1 << 20

// OpenLayer reads and checks the trailer and the index of the sealed layer in the size bytes of r. Whatever a hostile
// file holds, it allocates at most 16 MiB, and only for entries that the file is long enough to hold.
func OpenLayer(r io.ReaderAt, size int64) (*Layer, error) {
	t, err := ReadTrailer(r, size)
	if err != nil {
		return nil, err
	}
	return layerOf(r, t)
}

// OpenTail is OpenLayer for a layer whose beginning is far away: it reads trailer and index, which stand at the end. The
// header that it does not look at is stale in a log that was sealed in place, and otherwise says what the trailer says.
func OpenTail(r io.ReaderAt, size int64) (*Layer, error) {
	t, err := readTrailer(r, size)
	if err != nil {
		return nil, err
	}
	return layerOf(r, t)
}

// layerOf reads the index that a trailer points to.
func layerOf(r io.ReaderAt, t Header) (*Layer, error) {
	segs, err := readIndex(r, t.IndexOffset, t.IndexSize)
	if err != nil {
		return nil, err
	}
	return &Layer{
		UUID: t.UUID, Parent: t.Parent, VirtualSize: t.VirtualSize, UserTag: t.UserTag, Segments: segs,
	}, nil
}

func readHeader(r io.ReaderAt, part string, off int64) (Header, error) {
	b := make([]byte, HeaderSize)
	if err := readFull(r, part, b, off); err != nil {
		return Header{}, err
	}
	h, err := decodeHeader(part, b)
	if c, ok := errors.AsType[*CorruptError](err); ok {
		c.Offset += off
	}
	return h, err
}

// readIndex reads n entries, drops padding and checks the rest.
func readIndex(r io.ReaderAt, off, n int64) ([]Segment, error) {
	segs := make([]Segment, 0, n)
	buf := make([]byte, min(n*entrySize, indexRead))
	for at, end := off, off+n*entrySize; at < end; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), end-at)]
		if err := readFull(r, "index", buf, at); err != nil {
			return nil, err
		}
		for i := 0; i < len(buf); i += entrySize {
			s := decodeSegment(buf[i:]).WithTag(0)
			if s.isPadding() {
				continue
			}
			if !s.inRange(uint64(off / SectorSize)) {
				return nil, corrupt("index", at+int64(i), "segment %v outside the layer's data", s)
			}
			if len(segs) > 0 && segs[len(segs)-1].End() > s.LBA() {
				return nil, corrupt("index", at+int64(i), "segment %v is not behind the one before it", s)
			}
			segs = append(segs, s)
		}
	}
	return segs, nil
}

// readFull reads exactly p.
func readFull(r io.ReaderAt, part string, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	return shortRead(part, off, n, len(p), err)
}

// shortRead is the error of a read that got n of want bytes. A file that ends too early is corrupt: it was longer when
// it was written. (The reference takes the missing bytes for zeroes.)
func shortRead(part string, off int64, n, want int, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return corrupt(part, off+int64(n), "the file ends here, %d bytes too early", want-n)
	}
	return err
}

// MappedBytes returns how many bytes of the disk the layer stores.
func (l *Layer) MappedBytes() int64 {
	n := uint64(0)
	for _, s := range l.Segments {
		if !s.Zeroed() {
			n += s.Len()
		}
	}
	return int64(n) * SectorSize
}
