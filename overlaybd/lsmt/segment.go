package lsmt

import (
	"encoding/binary"
	"fmt"
)

// Limits of the format, in sectors unless said otherwise.
const (
	SectorSize = 512 // bytes; unit of every address

	MaxSegment   = 1<<14 - 1 // length of one segment
	MaxEntries   = 1_000_000 // index entries of a sealed layer, padding included
	MaxSegments  = 999_936   // real segments of a sealed layer: the last whole block of padding below MaxEntries
	MaxLowers    = 255       // sealed layers below an upper; a tag has 8 bits
	MaxRecords   = 128_000_000
	invalidLBA   = 1<<50 - 1       // address of a padding entry
	entrySize    = 16              // bytes of one encoded segment
	firstMOffset = HeaderSize >> 9 // data begins behind the header
)

// Segment maps a run of sectors to stored sectors, or to zeroes. It is kept in the two words of its encoded form, so
// that an index costs 16 bytes a segment in memory and encoding is a copy:
//
//	word 0: bits 0-49 address, bits 50-63 length
//	word 1: bits 0-54 stored sector, bit 55 zeroed, bits 56-63 tag
type Segment struct {
	addr, stored uint64
}

const (
	lenShift  = 50
	addrMask  = 1<<lenShift - 1
	zeroedBit = 1 << 55
	moffMask  = zeroedBit - 1
	tagShift  = 56
	tagMask   = uint64(0xff) << tagShift
)

// DataSegment maps n sectors from lba to the n sectors stored from sector moffset of file tag.
func DataSegment(lba, n, moffset uint64, tag uint8) Segment {
	return Segment{lba&addrMask | n<<lenShift, moffset&moffMask | uint64(tag)<<tagShift}
}

// ZeroSegment makes n sectors from lba read as zeroes and hides what lower layers have there. The stored sector moffset
// carries no data; the format wants it to be the end of data at the time.
func ZeroSegment(lba, n, moffset uint64, tag uint8) Segment {
	return Segment{lba&addrMask | n<<lenShift, moffset&moffMask | zeroedBit | uint64(tag)<<tagShift}
}

// paddingEntry fills blocks of entries; readers skip it.
var paddingEntry = Segment{invalidLBA, 0}

// LBA is the first mapped sector.
func (s Segment) LBA() uint64 { return s.addr & addrMask }

// Len is the number of mapped sectors.
func (s Segment) Len() uint64 { return s.addr >> lenShift }

// End is the sector behind the last mapped one.
func (s Segment) End() uint64 { return s.addr&addrMask + s.addr>>lenShift }

// MOffset is the first stored sector, counted from the start of the file.
func (s Segment) MOffset() uint64 { return s.stored & moffMask }

// MEnd is the sector behind the last stored one; a zeroed segment stores nothing.
func (s Segment) MEnd() uint64 {
	if s.Zeroed() {
		return s.MOffset()
	}
	return s.MOffset() + s.Len()
}

// Zeroed reports whether the segment reads as zeroes.
func (s Segment) Zeroed() bool { return s.stored&zeroedBit != 0 }

// Tag is the number of the file that stores the segment.
func (s Segment) Tag() uint8 { return uint8(s.stored >> tagShift) }

// WithTag returns the segment with another tag.
func (s Segment) WithTag(tag uint8) Segment {
	s.stored = s.stored&^tagMask | uint64(tag)<<tagShift
	return s
}

// Clip returns the part of the segment within [from, to), which must overlap it. A data segment cut on its left starts
// later in its file too.
func (s Segment) Clip(from, to uint64) Segment {
	lba, end, stored := s.LBA(), s.End(), s.stored
	if from > lba {
		if !s.Zeroed() {
			stored += from - lba
		}
		lba = from
	}
	return Segment{lba | (min(end, to)-lba)<<lenShift, stored}
}

// isPadding reports whether the entry maps nothing. Its stored word may carry a flush mark.
func (s Segment) isPadding() bool { return s.LBA() == invalidLBA }

// inRange reports whether the segment has a length, a legal address, and stored sectors within [8, limit].
func (s Segment) inRange(limit uint64) bool {
	if s.Len() == 0 || s.End() > invalidLBA || s.MOffset() < firstMOffset {
		return false
	}
	return s.MEnd() <= limit
}

// String shows address, length and place, in sectors.
func (s Segment) String() string {
	if s.Zeroed() {
		return fmt.Sprintf("[%d+%d zeroed]", s.LBA(), s.Len())
	}
	return fmt.Sprintf("[%d+%d at %d]", s.LBA(), s.Len(), s.MOffset())
}

func (s Segment) encode(b []byte) {
	binary.LittleEndian.PutUint64(b, s.addr)
	binary.LittleEndian.PutUint64(b[8:], s.stored)
}

func decodeSegment(b []byte) Segment {
	return Segment{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// SetTags gives all segments of a list one tag.
func SetTags(segs []Segment, tag uint8) {
	for i := range segs {
		segs[i] = segs[i].WithTag(tag)
	}
}
