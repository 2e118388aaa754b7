package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// raw writes the disk that segs make as a file with holes where it is zero.
func (o *outputFlags) raw(c *call, segs []lsmt.Segment, files []io.ReaderAt, size int64) (int64, error) {
	return o.create(func(f *os.File) error {
		if err := f.Truncate(size); err != nil {
			return err
		}
		for _, s := range segs {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			off := int64(s.LBA()) * lsmt.SectorSize
			n := min(int64(s.Len())*lsmt.SectorSize, size-off)
			if s.Zeroed() || n <= 0 {
				continue
			}
			from := io.NewSectionReader(files[s.Tag()], int64(s.MOffset())*lsmt.SectorSize, n)
			if m, err := io.Copy(io.NewOffsetWriter(f, off), from); err != nil || m < n {
				return fmt.Errorf("copy %d bytes at %d: %w", n, off, errors.Join(err, short(m, n)))
			}
		}
		return nil
	})
}

func short(got, want int64) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%w: the layer ends after %d", overlaybd.ErrCorrupt, got)
}

// dataBlocks returns segments for what of a raw image is not zero, by blocks of 4 KiB. Holes are not read.
func dataBlocks(c *call, f *os.File, size int64) (segs []lsmt.Segment, err error) {
	buf := make([]byte, 1<<20)
	run := blockRun{}
	for off := int64(0); off < size; {
		if err := c.ctx.Err(); err != nil {
			return nil, err
		}
		at, err := f.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err == nil {
			off = max(off, at&^(rawBlock-1))
		} // else the file system does not tell, and all is read
		p := buf[:min(int64(len(buf)), size-off)]
		if _, err := f.ReadAt(p, off); err != nil {
			return nil, err
		}
		run.scan(p, off)
		off += int64(len(p))
	}
	run.end()
	if len(run.segs) > lsmt.MaxSegments {
		return nil, lsmt.Invalid("image", fmt.Sprintf("of %d runs of data", len(run.segs)), fmt.Sprintf("at most %d", lsmt.MaxSegments))
	}
	return run.segs, nil
}

const rawBlock = 4096

// blockRun collects blocks that are not zero.
type blockRun struct {
	segs     []lsmt.Segment
	from, to int64 // bytes; the run that is open
}

func (r *blockRun) scan(p []byte, off int64) {
	for i := 0; i < len(p); i += rawBlock {
		block := p[i:min(i+rawBlock, len(p))]
		if isZero(block) {
			continue
		}
		at := off + int64(i)
		if at != r.to || r.to-r.from >= (lsmt.MaxSegment-8)*lsmt.SectorSize {
			r.end()
			r.from = at
		}
		r.to = at + int64(len(block))
	}
}

func (r *blockRun) end() {
	if r.to > r.from {
		lba, n := uint64(r.from/lsmt.SectorSize), uint64((r.to-r.from)/lsmt.SectorSize)
		r.segs = append(r.segs, lsmt.DataSegment(lba, n, lba, 0))
	}
	r.from, r.to = 0, 0
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
