package zfile

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// HeaderSize is the size of the header and of the trailer, in bytes.
const HeaderSize = 512

// Offsets in the header and the trailer; see the table in the package comment.
const (
	offMagic       = 0
	offStructSize  = 24
	offDigest      = 28
	offFlags       = 32
	offIndexOffset = 40
	offBlocks      = 48
	offSize        = 56
	offIndexCRC    = 64
	offBlockSize   = 72
	offCodec       = 76
	offUseDict     = 78
	offDictSize    = 84
	offChecksums   = 88

	structSize = 96
)

const (
	flagHeader = 1 << iota // else a trailer
	flagData
	flagSealed // trailers only
	flagFinal  // the header holds the final values, the trailer is not needed
	flagDigest // digest and index checksum are valid
)

var magic = []byte("ZFile\x00\x01\x00tuji.yyf@Alibaba")

// header is what a header or a trailer says, unchecked but for magic and digest. Reserved bytes and unknown flags are
// dropped: old writers left garbage there, in layers that everybody uses.
type header struct {
	flags       uint64
	indexOffset uint64 // bytes
	blocks      uint64 // entries of the index
	size        uint64 // bytes of content
	indexCRC    uint32
	blockSize   uint32
	codec       Codec
	useDict     bool
	dictSize    uint32
	checksums   bool
}

// IsZFile reports whether a file that begins with head is a ZFile. It needs 24 bytes.
func IsZFile(head []byte) bool {
	return len(head) >= len(magic) && string(head[:len(magic)]) == string(magic)
}

func (h *header) has(flags uint64) bool { return h.flags&flags == flags }

// first returns where block 0 is stored.
func (h *header) first() uint64 { return HeaderSize + uint64(h.dictSize) }

func (h *header) encode() []byte {
	b := make([]byte, HeaderSize)
	copy(b[offMagic:], magic)
	binary.LittleEndian.PutUint32(b[offStructSize:], structSize)
	binary.LittleEndian.PutUint64(b[offFlags:], h.flags)
	binary.LittleEndian.PutUint64(b[offIndexOffset:], h.indexOffset)
	binary.LittleEndian.PutUint64(b[offBlocks:], h.blocks)
	binary.LittleEndian.PutUint64(b[offSize:], h.size)
	binary.LittleEndian.PutUint32(b[offIndexCRC:], h.indexCRC)
	binary.LittleEndian.PutUint32(b[offBlockSize:], h.blockSize)
	b[offCodec] = byte(h.codec)
	if h.useDict {
		b[offUseDict] = 1
	}
	binary.LittleEndian.PutUint32(b[offDictSize:], h.dictSize)
	if h.checksums {
		b[offChecksums] = 1
	}
	// The digest covers its own field as zeroes, so it is computed last.
	binary.LittleEndian.PutUint32(b[offDigest:], rawCRC(0, b))
	return b
}

// decodeHeader reads the HeaderSize bytes of b, which are stored at off.
func decodeHeader(part Part, b []byte, off int64) (header, error) {
	// The magic is all there is to tell a ZFile by: size and version fields have held anything.
	if !bytes.Equal(b[offMagic:offMagic+len(magic)], magic) {
		return header{}, corrupt(part, off, int64(len(magic)), "no magic")
	}
	h := header{
		flags:       binary.LittleEndian.Uint64(b[offFlags:]),
		indexOffset: binary.LittleEndian.Uint64(b[offIndexOffset:]),
		blocks:      binary.LittleEndian.Uint64(b[offBlocks:]),
		size:        binary.LittleEndian.Uint64(b[offSize:]),
		indexCRC:    binary.LittleEndian.Uint32(b[offIndexCRC:]),
		blockSize:   binary.LittleEndian.Uint32(b[offBlockSize:]),
		codec:       Codec(b[offCodec]),
		useDict:     b[offUseDict] != 0,
		dictSize:    binary.LittleEndian.Uint32(b[offDictSize:]),
		checksums:   b[offChecksums] != 0,
	}
	if h.has(flagDigest) {
		if got, want := digest(b), binary.LittleEndian.Uint32(b[offDigest:]); got != want {
			return header{}, corrupt(part, off, HeaderSize, "digest is %08x, %08x is recorded", got, want)
		}
	}
	return h, nil
}

// digest is the checksum of a header whose digest field counts as zeroes.
func digest(b []byte) uint32 {
	var zero [4]byte
	c := rawCRC(0, b[:offDigest])
	c = rawCRC(c, zero[:])
	return rawCRC(c, b[offDigest+len(zero):])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// rawCRC updates a CRC-32C register with p. The format uses the register as it is, where the usual checksum inverts it
// before and after: so the two inversions that crc32.Update makes are undone.
func rawCRC(register uint32, p []byte) uint32 { return ^crc32.Update(^register, castagnoli, p) }

// blockSeed is the register's value before a block.
const blockSeed = 100007

func blockCRC(p []byte) uint32 { return rawCRC(blockSeed, p) }
