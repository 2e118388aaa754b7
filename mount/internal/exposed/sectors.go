package exposed

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sandvol/sandvol/overlaybd"
)

const sector = overlaybd.SectorSize

// MaxRequest is how many bytes of a request that is not aligned to sectors are widened at a time.
const MaxRequest = 256 << 10

// Sectors gives a device, which takes whole sectors only, the shape of a slice of bytes.
type Sectors struct {
	dev  overlaybd.Device
	size atomic.Int64

	// merge orders requests that change part of a sector, which read it, change it and write it, against all others
	// that change the device: without it, an overlapping write that was acknowledged in between would be undone.
	merge sync.RWMutex
}

// NewSectors returns the bytes of a device.
func NewSectors(dev overlaybd.Device) *Sectors {
	s := &Sectors{dev: dev}
	s.Resize()
	return s
}

// Resize takes the device's present size over.
func (s *Sectors) Resize() { s.size.Store(s.dev.Size()) }

// Size is the size in bytes that clients know.
func (s *Sectors) Size() int64 { return s.size.Load() }

// Flush makes what was written before durable.
func (s *Sectors) Flush() error { return s.dev.Flush() }

// spare holds buffers for requests that are widened to whole sectors.
var spare = sync.Pool{New: func() any { b := make([]byte, MaxRequest+2*sector); return &b }}

func aligned(off int64, n int) bool { return (off|int64(n))%sector == 0 }
func roundDown(off int64) int64     { return off &^ (sector - 1) }
func roundUp(off int64) int64       { return roundDown(off + sector - 1) }

// Outside reports whether a range is not all on the drive.
func (s *Sectors) Outside(off, n int64) bool { return off < 0 || n < 0 || n > s.size.Load()-off }

// Read fills p from off, less at the end of the drive.
func (s *Sectors) Read(p []byte, off int64) (done int, err error) {
	size := s.size.Load()
	if off >= size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), size-off)]
	if aligned(off, len(p)) {
		return readFull(s.dev, p, off)
	}
	for len(p) > MaxRequest {
		n, err := s.Read(p[:MaxRequest], off)
		if err != nil || n < MaxRequest {
			return done + n, err
		}
		p, off, done = p[n:], off+int64(n), done+n
	}
	wide := spare.Get().(*[]byte)
	defer spare.Put(wide)
	from, to := roundDown(off), roundUp(off+int64(len(p)))
	n, err := readFull(s.dev, (*wide)[:to-from], from)
	return done + copy(p, (*wide)[min(off-from, int64(n)):n]), err
}

// readFull takes io.EOF as the end of what there is, and not as an error.
func readFull(r io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := r.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Write writes all of p or, past the end of the drive, nothing.
func (s *Sectors) Write(p []byte, off int64) error {
	if s.Outside(off, int64(len(p))) {
		return syscall.ENOSPC
	}
	if aligned(off, len(p)) {
		s.merge.RLock()
		defer s.merge.RUnlock()
		_, err := s.dev.WriteAt(p, off)
		return err
	}
	s.merge.Lock()
	defer s.merge.Unlock()
	for len(p) > MaxRequest {
		if err := s.mergeWrite(p[:MaxRequest], off); err != nil {
			return err
		}
		p, off = p[MaxRequest:], off+MaxRequest
	}
	return s.mergeWrite(p, off)
}

// mergeWrite writes p together with what surrounds it in its first and last sector. It holds merge.
func (s *Sectors) mergeWrite(p []byte, off int64) error {
	buf := spare.Get().(*[]byte)
	defer spare.Put(buf)
	from, to := roundDown(off), roundUp(off+int64(len(p)))
	wide := (*buf)[:to-from]
	if err := s.readSector(wide[:sector], from); err != nil {
		return err
	}
	if len(wide) > sector {
		if err := s.readSector(wide[len(wide)-sector:], to-sector); err != nil {
			return err
		}
	}
	copy(wide[off-from:], p)
	_, err := s.dev.WriteAt(wide, from)
	return err
}

// readSector insists on all of it: what is left in buf belongs to another request, perhaps of another drive.
func (s *Sectors) readSector(buf []byte, off int64) error {
	n, err := readFull(s.dev, buf, off)
	if err == nil && n < len(buf) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Zero makes n bytes at off read as zeroes. Whole sectors are discarded; parts of sectors are written.
func (s *Sectors) Zero(off, n int64) error {
	from, to := roundUp(off), roundDown(off+n)
	if from == off && to == off+n {
		s.merge.RLock()
		defer s.merge.RUnlock()
		return s.dev.Discard(off, n)
	}
	s.merge.Lock()
	defer s.merge.Unlock()
	var none [sector]byte
	if from > to { // inside one sector
		return s.mergeWrite(none[:n], off)
	}
	if from > off {
		if err := s.mergeWrite(none[:from-off], off); err != nil {
			return err
		}
	}
	if to < off+n {
		if err := s.mergeWrite(none[:off+n-to], to); err != nil {
			return err
		}
	}
	if from == to {
		return nil
	}
	return s.dev.Discard(from, to-from)
}

// Errno is what a client is told of a device's error. It is never ENOSYS, which the kernel would remember for a whole mount.
func Errno(err error) syscall.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, overlaybd.ErrInvalid):
		return syscall.EINVAL
	case errors.Is(err, overlaybd.ErrReadOnly):
		return syscall.EROFS
	case errors.Is(err, syscall.ENOSPC):
		return syscall.ENOSPC
	default:
		return syscall.EIO
	}
}
