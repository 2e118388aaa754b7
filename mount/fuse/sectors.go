package fuse

import (
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/sandvol/sandvol/overlaybd"
)

const sector = overlaybd.SectorSize

// spare holds buffers for requests that are widened to whole sectors.
var spare = sync.Pool{New: func() any { b := make([]byte, maxRequest+2*sector); return &b }}

func aligned(off int64, n int) bool   { return (off|int64(n))%sector == 0 }
func roundDown(off int64) int64       { return off &^ (sector - 1) }
func roundUp(off int64) int64         { return roundDown(off + sector - 1) }
func outside(off, n, size int64) bool { return off < 0 || n < 0 || n > size-off }

// read fills p from off, less at the end of the drive.
func (d *drive) read(p []byte, off int64) (int, error) {
	size := d.size.Load()
	if off >= size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), size-off)]
	if aligned(off, len(p)) {
		return readFull(d.dev, p, off)
	}
	wide := spare.Get().(*[]byte)
	defer spare.Put(wide)
	from, to := roundDown(off), roundUp(off+int64(len(p)))
	n, err := readFull(d.dev, (*wide)[:to-from], from)
	return copy(p, (*wide)[min(off-from, int64(n)):n]), err
}

// readFull takes io.EOF as the end of what there is, and not as an error.
func readFull(r io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := r.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// write writes all of p or, past the end of the drive, nothing.
func (d *drive) write(p []byte, off int64) error {
	if outside(off, int64(len(p)), d.size.Load()) {
		return syscall.ENOSPC
	}
	if aligned(off, len(p)) {
		d.merge.RLock()
		defer d.merge.RUnlock()
		_, err := d.dev.WriteAt(p, off)
		return err
	}
	d.merge.Lock()
	defer d.merge.Unlock()
	return d.mergeWrite(p, off)
}

// mergeWrite writes p together with what surrounds it in its first and last sector. It holds merge.
func (d *drive) mergeWrite(p []byte, off int64) error {
	buf := spare.Get().(*[]byte)
	defer spare.Put(buf)
	from, to := roundDown(off), roundUp(off+int64(len(p)))
	wide := (*buf)[:to-from]
	if err := d.readSector(wide[:sector], from); err != nil {
		return err
	}
	if len(wide) > sector {
		if err := d.readSector(wide[len(wide)-sector:], to-sector); err != nil {
			return err
		}
	}
	copy(wide[off-from:], p)
	_, err := d.dev.WriteAt(wide, from)
	return err
}

// readSector insists on all of it: what is left in buf belongs to another request, perhaps of another drive.
func (d *drive) readSector(buf []byte, off int64) error {
	n, err := readFull(d.dev, buf, off)
	if err == nil && n < len(buf) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// zero makes n bytes at off read as zeroes. Whole sectors are discarded; parts of sectors are written.
func (d *drive) zero(off, n int64) error {
	from, to := roundUp(off), roundDown(off+n)
	if from == off && to == off+n {
		d.merge.RLock()
		defer d.merge.RUnlock()
		return d.dev.Discard(off, n)
	}
	d.merge.Lock()
	defer d.merge.Unlock()
	var none [sector]byte
	if from > to { // inside one sector
		return d.mergeWrite(none[:n], off)
	}
	if from > off {
		if err := d.mergeWrite(none[:from-off], off); err != nil {
			return err
		}
	}
	if to < off+n {
		if err := d.mergeWrite(none[:off+n-to], to); err != nil {
			return err
		}
	}
	if from == to {
		return nil
	}
	return d.dev.Discard(from, to-from)
}
