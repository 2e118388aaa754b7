package lsmt

import "io"

// Tags of the segments of a layer with remote data.
const (
	TagOwn    = 0 // stored in the layer's own file
	TagTarget = 1 // stored in another file, the target
)

// ReadRemoteIndex reads the index of a layer with remote data (a TurboOCI layer), whose trailer is t. Segments come
// back with tag TagOwn or TagTarget. Those of the layer's own data lie within it; where those of the target end is for
// whoever knows the target to check. It allocates at most 32 MiB, and only for entries that the file is long enough to
// hold.
func ReadRemoteIndex(r io.ReaderAt, t Header) ([]Segment, error) {
	b := make([]byte, t.IndexSize*entrySize)
	if err := readFull(r, "index", b, t.IndexOffset); err != nil {
		return nil, err
	}
	lowest := lowestTag(b)
	segs := make([]Segment, 0, t.IndexSize)
	for i := 0; i < len(b); i += entrySize {
		s, at := decodeSegment(b[i:]), t.IndexOffset+int64(i)
		if s.isPadding() {
			continue
		}
		if s = s.WithTag(s.Tag() - lowest); s.Tag() > TagTarget {
			return nil, corrupt("index", at, "tags %d and %d in one layer", lowest, lowest+s.Tag())
		}
		if s.Len() == 0 || s.End() > invalidLBA {
			return nil, corrupt("index", at, "segment %v without a length or beyond the last address", s)
		}
		if s.Tag() == TagOwn && !s.Zeroed() && !s.inRange(uint64(t.IndexOffset/SectorSize)) {
			return nil, corrupt("index", at, "segment %v outside the layer's data", s)
		}
		if len(segs) > 0 && segs[len(segs)-1].End() > s.LBA() {
			return nil, corrupt("index", at, "segment %v is not behind the one before it", s)
		}
		segs = append(segs, s)
	}
	return segs, nil
}

// lowestTag returns the least tag of encoded entries. A layer that was written above others has their number added to
// its tags; some of its own data there always is, so the least tag stands for that.
func lowestTag(b []byte) uint8 {
	lowest := uint8(0xff)
	for i := 0; i < len(b); i += entrySize {
		if s := decodeSegment(b[i:]); !s.isPadding() {
			lowest = min(lowest, s.Tag())
		}
	}
	return lowest
}

// Tail returns what stands behind the data of a sealed layer: the index with segs, and the trailer. The data ends at
// h.IndexOffset; Flags and IndexSize of h are not used.
func Tail(h Header, segs []Segment) []byte {
	b := make([]byte, len(segs)*entrySize, len(segs)*entrySize+HeaderSize)
	for i, s := range segs {
		s.encode(b[i*entrySize:])
	}
	h.Flags, h.IndexSize = flagsTrailer, int64(len(segs))
	return append(b, h.encode()...)
}
