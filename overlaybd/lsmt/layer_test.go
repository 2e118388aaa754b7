package lsmt

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

func putHeader(b []byte, at int, change func(*Header)) []byte {
	b = slices.Clone(b)
	h, err := decodeHeader("", b[at:at+HeaderSize])
	if err != nil {
		panic(err)
	}
	change(&h)
	copy(b[at:], h.encode())
	return b
}

func putEntry(b []byte, n int, s Segment) []byte {
	b = slices.Clone(b)
	h, _ := decodeHeader("", b[len(b)-HeaderSize:])
	s.encode(b[h.IndexOffset+int64(n)*entrySize:])
	return b
}

func TestOpenLayerRefusesWhatTheFormatForbids(t *testing.T) {
	good := golden(t, "lsmt/commit1.lsmt")
	at := len(good) - HeaderSize
	trailer := func(change func(*Header)) []byte { return putHeader(good, at, change) }
	l := openLayerBytes(t, good)
	first, second := l.Segments[0], l.Segments[1]
	limit := uint64(l.Segments[len(l.Segments)-1].MEnd())
	for name, b := range map[string][]byte{
		"empty file":               nil,
		"header only":              good[:HeaderSize],
		"cut by a byte":            good[:len(good)-1],
		"a byte too long":          append(slices.Clone(good), 0),
		"header is a trailer":      putHeader(good, 0, func(h *Header) { h.Flags &^= flagHeader }),
		"header of an index":       putHeader(good, 0, func(h *Header) { h.Flags &^= flagData }),
		"trailer is a header":      trailer(func(h *Header) { h.Flags |= flagHeader }),
		"trailer not sealed":       trailer(func(h *Header) { h.Flags &^= flagSealed }),
		"index in the header":      trailer(func(h *Header) { h.IndexOffset = 512 }),
		"index behind the trailer": trailer(func(h *Header) { h.IndexOffset = int64(at) + 1 }),
		"index offset near 2^63":   trailer(func(h *Header) { h.IndexOffset = 1<<63 - 1 }),
		"negative index offset":    trailer(func(h *Header) { h.IndexOffset = -4096 }),
		"index longer than file":   trailer(func(h *Header) { h.IndexSize = 257 }),
		"a million and one":        trailer(func(h *Header) { h.IndexSize = MaxEntries + 1 }),
		"index size near 2^63":     trailer(func(h *Header) { h.IndexSize = 1<<63 - 1 }),
		"negative virtual size":    trailer(func(h *Header) { h.VirtualSize = -1 }),
		"entries out of order":     putEntry(putEntry(good, 0, second), 1, first),
		"entries that overlap":     putEntry(good, 1, first),
		"entry of length 0":        putEntry(good, 0, DataSegment(0, 0, 8, 0)),
		"data inside the header":   putEntry(good, 0, DataSegment(0, 1, 7, 0)),
		"data behind the data":     putEntry(good, 0, DataSegment(0, 1, limit, 0)),
		"zeroes behind the data":   putEntry(good, 0, ZeroSegment(0, 1, limit+1, 0)),
	} {
		if _, err := OpenLayer(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: error is %v, want ErrCorrupt", name, err)
		}
	}
}

func TestOpenLayerAcceptsWhatOldWritersLeft(t *testing.T) {
	good := golden(t, "lsmt/commit1.lsmt")
	at := len(good) - HeaderSize
	b := putHeader(good, at, func(h *Header) { h.Flags |= 0xffffff28 })
	for _, start := range []int{0, at} {
		for i := headerBytes; i < HeaderSize; i++ {
			b[start+i] = byte(i) // garbage in the padding
		}
		copy(b[start+offSize:], "\xff\xff\xff\xff")
		copy(b[start+offVersion-2:], "\x07\x07\x63\x63")
	}
	copy(b[at+offUUID:], "not a uuid at all")
	l := openLayerBytes(t, putEntry(b, 12, paddingEntry))
	if l.UUID.String() != nullUUID || len(l.Segments) == 0 {
		t.Errorf("uuid %s, %d segments", l.UUID, len(l.Segments))
	}
}

const nullUUID = "00000000-0000-0000-0000-000000000000"

// A layer whose data ends too early is an error where the reference would answer zeroes.
func TestReadPastTheFileIsCorrupt(t *testing.T) {
	v := View{
		Base:  NewIndex([]Segment{DataSegment(0, 8, 8, 0)}),
		Files: []io.ReaderAt{bytes.NewReader(make([]byte, HeaderSize+7*SectorSize))},
	}
	err := v.ReadAt(make([]byte, 8*SectorSize), 0)
	var c *CorruptError
	if !errors.As(err, &c) || c.Offset != HeaderSize+7*SectorSize {
		t.Errorf("error is %v", err)
	}
}

func TestCompactRefusesWhatNoReaderTakes(t *testing.T) {
	zeroes := make([]Segment, MaxSegments+1)
	for i := range zeroes {
		zeroes[i] = ZeroSegment(uint64(i)*2, 1, 8, 0)
	}
	if err := Compact(t.Context(), io.Discard, zeroes, nil, CompactOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%d segments: %v", len(zeroes), err)
	}
	must(t, Compact(t.Context(), io.Discard, zeroes[1:], nil, CompactOptions{}))
	tag := string(make([]byte, MaxUserTag+1))
	if err := Compact(t.Context(), io.Discard, nil, nil, CompactOptions{UserTag: tag}); !errors.Is(err, ErrInvalid) {
		t.Errorf("long user tag: %v", err)
	}
}
