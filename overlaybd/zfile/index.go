package zfile

import (
	"encoding/binary"
	"io"
	"math/bits"
)

const (
	entrySize = 4
	// MaxBlocks is how many blocks the format's readers accept in one file.
	MaxBlocks = 1_000_000_000
	// indexRead is how much of an index is read at once.
	indexRead = 1 << 20
	// groupBits: one full offset is kept for every 16 blocks.
	groupBits = 4
	groupSize = 1 << groupBits
)

// index maps a block's number to its place. The file holds the stored sizes; this holds what they add up to, in 4.5
// bytes a block: one offset for each group of blocks, and for each block the distance from it. A stored block is at
// most maxStored, so a distance fits.
type index struct {
	groups []int64
	inside []uint32
}

// add appends the offset of the next block; the last offset added is where the last block ends.
func (x *index) add(off int64) {
	if len(x.inside)%groupSize == 0 {
		x.groups = append(x.groups, off)
	}
	x.inside = append(x.inside, uint32(off-x.groups[len(x.groups)-1]))
}

// at returns where a block begins, and, for the number behind the last, where that one ends.
func (x *index) at(block int64) int64 { return x.groups[block>>groupBits] + int64(x.inside[block]) }

// layout is what is known of a file once its header, or trailer, has been checked against its length.
type layout struct {
	codec       Codec
	shift       uint  // log2 of the block size
	size        int64 // bytes of content
	blocks      int64
	first       int64 // where block 0 is stored
	indexOffset int64
	checksums   bool
}

func (l *layout) blockSize() int { return 1 << l.shift }

// length returns how many bytes of content a block holds.
func (l *layout) length(block int64) int {
	return int(min(int64(l.blockSize()), l.size-block<<l.shift))
}

// checkLayout checks every number of h, which is stored at off, against the others and against the size of the file.
// What it returns can be used without thought of overflow or of memory: an index of that many entries is in the file.
func checkLayout(h *header, part Part, off, fileSize int64) (layout, error) {
	switch {
	case !h.codec.known():
		return layout{}, unsupported("codec", uint8(h.codec), "1 (lz4) or 2 (zstd)")
	case h.useDict:
		return layout{}, unsupported("dictionary", h.useDict, "false")
	case bits.OnesCount32(h.blockSize) != 1 || h.blockSize > MaxBlockSize:
		return layout{}, unsupported("block size", h.blockSize, "a power of two up to 65536")
	}
	// All of this is unsigned, and each value is bounded before it is multiplied: size may be anything up to 2^64.
	shift := uint(bits.TrailingZeros32(h.blockSize))
	blocks := h.size >> shift
	if h.size&uint64(h.blockSize-1) != 0 {
		blocks++
	}
	// Also with a final header a trailer follows the index. Requiring it is what notices a file that lost its end.
	room := uint64(fileSize - HeaderSize) // in front of the trailer
	switch {
	// A writer that left a short block in the middle has one more; every block behind it would be misplaced.
	case h.blocks != blocks:
		return layout{}, corrupt(part, off+offBlocks, 8, "%d blocks, %d bytes of content need %d", h.blocks, h.size, blocks)
	case blocks > MaxBlocks:
		return layout{}, unsupported("number of blocks", blocks, "at most 1000000000")
	case h.indexOffset < h.first() || h.indexOffset > room:
		return layout{}, corrupt(part, off+offIndexOffset, 8, "index at byte %d of a file of %d", h.indexOffset, fileSize)
	case blocks*entrySize > room-h.indexOffset:
		return layout{}, corrupt(part, off+offBlocks, 8, "%d blocks, the file has room for an index of %d", blocks,
			(room-h.indexOffset)/entrySize)
	}
	return layout{
		codec: h.codec, shift: shift, size: int64(h.size), blocks: int64(blocks), first: int64(h.first()),
		indexOffset: int64(h.indexOffset), checksums: h.checksums,
	}, nil
}

// readIndex reads and checks the index: each block has a believable size, and they fill the file up to the index.
func readIndex(r io.ReaderAt, h *header, l *layout) (index, error) {
	least := uint32(1)
	if l.checksums {
		least += crcSize
	}
	most := uint32(maxStored(l.blockSize()))
	x := index{groups: make([]int64, 0, l.blocks>>groupBits+1), inside: make([]uint32, 0, l.blocks+1)}
	off, crc := l.first, uint32(0)
	x.add(off)
	buf := make([]byte, min(l.blocks*entrySize, indexRead))
	for at, end := l.indexOffset, l.indexOffset+l.blocks*entrySize; at < end; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), end-at)]
		if err := readFull(r, PartIndex, buf, at); err != nil {
			return index{}, err
		}
		crc = rawCRC(crc, buf)
		for i := 0; i < len(buf); i += entrySize {
			n := binary.LittleEndian.Uint32(buf[i:])
			if n < least || n > most {
				return index{}, corrupt(PartIndex, at+int64(i), entrySize, "a block of %d bytes, %d to %d can be", n, least, most)
			}
			off += int64(n)
			x.add(off)
		}
	}
	// The checksum first: it tells a damaged index from one that was written wrong.
	switch length := l.blocks * entrySize; {
	case h.has(flagDigest) && crc != h.indexCRC:
		return index{}, corrupt(PartIndex, l.indexOffset, length, "checksum is %08x, %08x is recorded", crc, h.indexCRC)
	case off != l.indexOffset:
		return index{}, corrupt(PartIndex, l.indexOffset, length, "the blocks end at byte %d, not at the index", off)
	}
	return x, nil
}
