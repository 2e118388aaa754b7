package lsmt

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// OpenSparse returns the content of a sparse upper, the other kind that the reference writes: one file in which byte
// x of the disk is byte HeaderSize+x, and in which a hole of the file is a hole of the layer. The result can be read,
// compacted and sealed; this package writes logs instead, because a sparse upper loses discards when it is reopened,
// and widens writes to whole blocks of the file system.
//
// Where the file system cannot tell holes, everything is data.
func OpenSparse(f *os.File) (*Layer, error) {
	h, err := readSparseHeader(f)
	if err != nil {
		return nil, fmt.Errorf("open sparse upper %s: %w", f.Name(), err)
	}
	l := &Layer{UUID: h.UUID, Parent: h.Parent, VirtualSize: h.VirtualSize, UserTag: h.UserTag}
	if l.Segments, err = sparseSegments(f, HeaderSize+h.VirtualSize); err != nil {
		return nil, fmt.Errorf("open sparse upper %s: %w", f.Name(), err)
	}
	return l, nil
}

func readSparseHeader(f *os.File) (Header, error) {
	h, err := readHeader(f, "header", 0)
	if err != nil {
		return h, err
	}
	if want := uint32(flagHeader | flagData | flagSparse); h.Flags&want != want {
		return h, corrupt("header", offFlags, "flags %#x are not those of a sparse upper", h.Flags)
	}
	info, err := f.Stat()
	if err != nil {
		return h, err
	}
	if room := info.Size() - HeaderSize; h.VirtualSize > room || h.VirtualSize/SectorSize > invalidLBA {
		return h, corrupt("header", offVirtualSize, "a disk of %d bytes in a file with room for %d", h.VirtualSize, room)
	}
	return h, nil
}

// sparseSegments maps what is no hole in [HeaderSize, end).
func sparseSegments(f *os.File, end int64) (segs []Segment, err error) {
	for at := int64(HeaderSize); at < end; {
		from, to, err := nextData(f, at, end)
		if err != nil {
			return nil, err
		}
		for lba, stop := diskSector(from), diskSector(to); lba < stop; {
			n := min(stop-lba, MaxSegment)
			segs = append(segs, DataSegment(lba, n, lba+firstMOffset, 0))
			lba += n
		}
		if len(segs) > MaxRecords {
			return nil, Invalid("sparse upper", "with holes", fmt.Sprintf("of at most %d segments", MaxRecords))
		}
		at = to
	}
	return segs, nil
}

// diskSector returns the disk's sector at a file offset. The end of the disk may lie inside one, which is none of it.
func diskSector(off int64) uint64 { return uint64(off-HeaderSize) / SectorSize }

// nextData returns the first run of [at, end) that is no hole, or an empty one at end.
func nextData(f *os.File, at, end int64) (from, to int64, err error) {
	from, err = seek(f, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // holes up to the end of the file
		return end, end, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, errors.ErrUnsupported):
		return at, end, nil
	case err != nil:
		return 0, 0, err
	}
	if to, err = seek(f, from, unix.SEEK_HOLE); err != nil {
		return 0, 0, err
	}
	// Blocks of a file system are sectors or more, but the end of a file may lie anywhere.
	from = HeaderSize + int64(diskSector(min(from, end)))*SectorSize
	return max(from, at), min(roundUp(to, SectorSize), end), nil
}

func seek(f *os.File, off int64, whence int) (int64, error) {
	n, err := unix.Seek(int(f.Fd()), off, whence)
	if err != nil {
		return 0, &os.PathError{Op: "seek", Path: f.Name(), Err: err}
	}
	return n, nil
}

// SealSparse turns a sparse upper into a sealed layer where it lies, fsynced: index and trailer go behind the disk.
// Its holes stay holes. A SealSparse that failed can be repeated.
func SealSparse(f *os.File) (*Layer, error) {
	l, err := OpenSparse(f)
	if err != nil {
		return nil, err
	}
	if n := len(l.Segments); n > MaxSegments {
		return nil, fmt.Errorf("seal %s: %w", f.Name(),
			Invalid("sparse upper", fmt.Sprintf("of %d segments", n), fmt.Sprintf("at most %d", MaxSegments)))
	}
	end := roundUp(HeaderSize+l.VirtualSize, SectorSize)
	h := Header{Flags: flagSparse, VirtualSize: l.VirtualSize, UUID: l.UUID, Parent: l.Parent}
	// What an earlier try left would stand between the trailer and the end of the file.
	if err := f.Truncate(end); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	if err := writeTail(io.NewOffsetWriter(f, end), h, l.Segments, end); err != nil {
		return nil, fmt.Errorf("seal %s: %w", f.Name(), err)
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("seal: %w: %w", ErrFailed, err)
	}
	return l, nil
}
