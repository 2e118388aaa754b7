package turbo

import (
	"context"
	"errors"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Layer is a layer and its target as one plain LSMT file, which exists only as it is read:
//
//	own header and data | zeroes to a whole sector | target | zeroes | index | trailer
type Layer struct {
	meta, target Blob
	own          int64  // bytes of own header and data
	targetAt     int64  // where the target begins
	tailAt       int64  // where index and trailer begin
	tail         []byte // these, made anew
}

// Open returns the layer whose metadata is the LSMT file meta, with the contents that are in target: a tar file, or the
// content of a compressed one. The Layer closes both; if Open fails they stay open.
//
// A TurboOCI layer's metadata is stored in a ZFile as a rule: overlaybd.Unwrap takes it out.
func Open(meta, target Blob) (*Layer, error) {
	t, err := lsmt.ReadTrailer(meta, meta.Size())
	if err != nil {
		return nil, err
	}
	segs, err := lsmt.ReadRemoteIndex(meta, t)
	if err != nil {
		return nil, err
	}
	l := &Layer{meta: meta, target: target, own: t.IndexOffset, targetAt: wholeSectors(t.IndexOffset)}
	end, err := l.place(segs)
	if err != nil {
		return nil, err
	}
	t.IndexOffset = end
	l.tailAt, l.tail = end, lsmt.Tail(t, segs)
	return l, nil
}

// place makes the segments point into the one file, and returns where its data ends.
func (l *Layer) place(segs []lsmt.Segment) (int64, error) {
	base, sectors := uint64(l.targetAt/lsmt.SectorSize), uint64(wholeSectors(l.target.Size())/lsmt.SectorSize)
	end := base + sectors
	for i, s := range segs {
		switch {
		case s.Zeroed():
			segs[i] = lsmt.ZeroSegment(s.LBA(), s.Len(), lsmt.HeaderSize/lsmt.SectorSize, 0)
		case s.Tag() == lsmt.TagTarget:
			// Where the file in front of it ends in the middle of a block, the last segment may run over the target's end.
			if s.MOffset() >= sectors {
				return 0, corrupt("index", l.own, "segment %v begins behind the target's %d bytes", s, l.target.Size())
			}
			segs[i] = lsmt.DataSegment(s.LBA(), s.Len(), base+s.MOffset(), 0)
			end = max(end, segs[i].MEnd())
		}
	}
	return int64(end) * lsmt.SectorSize, nil
}

func wholeSectors(n int64) int64 { return (n + lsmt.SectorSize - 1) &^ (lsmt.SectorSize - 1) }

// Size returns the number of bytes of the file.
func (l *Layer) Size() int64 { return l.tailAt + int64(len(l.tail)) }

// ReadAt reads the file.
func (l *Layer) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, lsmt.Invalid("offset", off, "at least 0")
	}
	for n < len(p) && err == nil {
		var m int
		m, err = l.readPart(p[n:], off+int64(n))
		n += m
	}
	return n, err
}

// readPart reads up to the end of the part that off is in.
func (l *Layer) readPart(p []byte, off int64) (int, error) {
	targetEnd := l.targetAt + l.target.Size()
	switch {
	case off < l.own:
		return readWhole(l.meta, clip(p, l.own-off), off)
	case off < l.targetAt:
		return zero(clip(p, l.targetAt-off)), nil
	case off < targetEnd:
		return readWhole(l.target, clip(p, targetEnd-off), off-l.targetAt)
	case off < l.tailAt:
		return zero(clip(p, l.tailAt-off)), nil
	case off < l.Size():
		return copy(p, l.tail[off-l.tailAt:]), nil
	}
	return 0, io.EOF
}

func clip(p []byte, n int64) []byte { return p[:min(int64(len(p)), n)] }

func zero(p []byte) int {
	clear(p)
	return len(p)
}

// readWhole takes no end of file in front of the size for an answer.
func readWhole(b Blob, p []byte, off int64) (int, error) {
	n, err := b.ReadAt(p, off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Verify checks the content of a compressed target with the checksum that the gzip file has at its end, and the windows
// of its index. For a target that is not compressed there is nothing to check.
func (l *Layer) Verify(ctx context.Context) error {
	if v, ok := l.target.(interface{ Verify(context.Context) error }); ok {
		return v.Verify(ctx)
	}
	return nil
}

// Close closes metadata and target.
func (l *Layer) Close() error { return errors.Join(l.meta.Close(), l.target.Close()) }
