package lsmt

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// HeaderSize is the number of bytes that a header or a trailer takes in a file.
const HeaderSize = 4096

// Bits of Header.Flags. Other bits are written as zero and ignored.
const (
	flagHeader = 1 << 0 // a header; clear: a trailer
	flagData   = 1 << 1 // a data file; clear: an index file
	flagSealed = 1 << 2
	flagSparse = 1 << 4
)

// Flag values of the files this package writes.
const (
	flagsData    = flagHeader | flagData              // data file of an upper
	flagsIndex   = flagHeader                         // index file of an upper
	flagsLayer   = flagHeader | flagData | flagSealed // header of a compacted layer
	flagsTrailer = flagData | flagSealed
)

var magic = []byte("LSMT\x00\x01\x02\x00\x65\x7e\x63\xd2\x94\x44\x08\x4c\xa2\xd2\xc8\xec\x4f\xcf\xae\x8a")

// Byte offsets of the fields; doc.go has the table.
const (
	offSize        = 24
	offFlags       = 28
	offIndexOffset = 32
	offIndexSize   = 40
	offVirtualSize = 48
	offUUID        = 56
	offParent      = 93
	offVersion     = 132
	offTag         = 134
	headerBytes    = 390
	uuidField      = 37
)

// MaxUserTag is the longest user tag, in bytes.
const MaxUserTag = headerBytes - offTag

// Header is the header or the trailer of a file; both have the same fields.
type Header struct {
	Flags       uint32
	IndexOffset int64 // bytes
	IndexSize   int64 // entries of 16 bytes
	VirtualSize int64 // bytes
	UUID        uuid.UUID
	Parent      uuid.UUID // of the layer directly below; uuid.Nil if there is none
	UserTag     string    // at most MaxUserTag bytes
}

func (h Header) encode() []byte {
	b := make([]byte, HeaderSize)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[offSize:], headerBytes)
	le.PutUint32(b[offFlags:], h.Flags)
	le.PutUint64(b[offIndexOffset:], uint64(h.IndexOffset))
	le.PutUint64(b[offIndexSize:], uint64(h.IndexSize))
	le.PutUint64(b[offVirtualSize:], uint64(h.VirtualSize))
	copy(b[offUUID:], formatUUID(h.UUID))
	copy(b[offParent:], formatUUID(h.Parent))
	b[offVersion], b[offVersion+1] = 1, 1
	copy(b[offTag:headerBytes], h.UserTag)
	return b
}

// decodeHeader reads a header or trailer from HeaderSize bytes. Reserved bytes, unknown flags, size and versions are
// not looked at: old files of the reference carry garbage there. Offsets and sizes come back unchecked, except that
// none is negative.
func decodeHeader(part string, b []byte) (Header, error) {
	if !bytes.HasPrefix(b, magic) {
		return Header{}, corrupt(part, 0, "not an LSMT file: wrong magic")
	}
	le := binary.LittleEndian
	tag, _, _ := bytes.Cut(b[offTag:headerBytes], []byte{0})
	h := Header{
		Flags:       le.Uint32(b[offFlags:]),
		IndexOffset: int64(le.Uint64(b[offIndexOffset:])),
		IndexSize:   int64(le.Uint64(b[offIndexSize:])),
		VirtualSize: int64(le.Uint64(b[offVirtualSize:])),
		UUID:        parseUUID(b[offUUID : offUUID+uuidField]),
		Parent:      parseUUID(b[offParent : offParent+uuidField]),
		UserTag:     string(tag),
	}
	if h.IndexOffset < 0 || h.IndexSize < 0 || h.VirtualSize < 0 {
		return Header{}, corrupt(part, offIndexOffset, "a size is above %d", int64(1<<63-1))
	}
	return h, nil
}

// formatUUID writes a uuid as the reference does: upper-case, with a NUL behind it.
func formatUUID(u uuid.UUID) string { return strings.ToUpper(u.String()) + "\x00" }

// parseUUID reads a uuid field. A field that holds none means that there is none, which is never an error.
func parseUUID(field []byte) uuid.UUID {
	text, _, _ := bytes.Cut(field, []byte{0})
	u, err := uuid.ParseBytes(text)
	if len(text) != 36 || err != nil {
		return uuid.Nil
	}
	return u
}
