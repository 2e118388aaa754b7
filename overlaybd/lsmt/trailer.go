package lsmt

import (
	"bytes"
	"io"
)

// ReadTrailer reads header and trailer of the sealed layer in the size bytes of r, checks that they are those of one and
// that its index lies between them, and returns the trailer. The header of a log that was sealed in place is stale.
func ReadTrailer(r io.ReaderAt, size int64) (Header, error) {
	if size < 2*HeaderSize {
		return Header{}, corrupt("layer", 0, "%d bytes, shorter than a header and a trailer", size)
	}
	head, err := readHeader(r, "header", 0)
	if err != nil {
		return Header{}, err
	}
	if head.Flags&(flagHeader|flagData) != flagHeader|flagData {
		return Header{}, corrupt("header", offFlags, "flags %#x are not those of a data file", head.Flags)
	}
	return readTrailer(r, size)
}

// readTrailer reads and checks the trailer alone.
func readTrailer(r io.ReaderAt, size int64) (Header, error) {
	if size < 2*HeaderSize {
		return Header{}, corrupt("layer", 0, "%d bytes, shorter than a header and a trailer", size)
	}
	at := size - HeaderSize
	t, err := readHeader(r, "trailer", at)
	if err != nil {
		return Header{}, err
	}
	if t.Flags&(flagHeader|flagData|flagSealed) != flagData|flagSealed {
		return Header{}, corrupt("trailer", at+offFlags, "flags %#x are not those of a sealed data file", t.Flags)
	}
	if t.IndexOffset < HeaderSize || t.IndexOffset > at {
		return Header{}, corrupt("trailer", at+offIndexOffset, "index at byte %d, outside the data", t.IndexOffset)
	}
	if t.IndexSize > MaxEntries || t.IndexSize*entrySize > at-t.IndexOffset {
		return Header{}, corrupt("trailer", at+offIndexSize, "%d index entries in %d bytes", t.IndexSize, at-t.IndexOffset)
	}
	return t, nil
}

// IsLSMT reports whether a file that begins with head is an LSMT file. It needs 24 bytes.
func IsLSMT(head []byte) bool { return bytes.HasPrefix(head, magic) }

// ReadHeader returns the header at the beginning of r, unchecked but for its magic. Of a sealed layer the trailer
// counts: see ReadTrailer.
func ReadHeader(r io.ReaderAt) (Header, error) { return readHeader(r, "header", 0) }
