package lsmt

import "io"

// OpenTail is OpenLayer for a layer whose beginning is far away: it reads trailer and index, which stand at the end. The
// header that it does not look at is stale in a log that was sealed in place, and otherwise says what the trailer says.
func OpenTail(r io.ReaderAt, size int64) (*Layer, error) {
	t, err := readTrailer(r, size)
	if err != nil {
		return nil, err
	}
	segs, err := readIndex(r, t.IndexOffset, t.IndexSize)
	if err != nil {
		return nil, err
	}
	return &Layer{
		UUID: t.UUID, Parent: t.Parent, VirtualSize: t.VirtualSize, UserTag: t.UserTag, Segments: segs,
	}, nil
}
