package mounttest

import (
	"fmt"
	"io"
	"sync"

	"github.com/sandvol/sandvol/overlaybd"
)

// Op names a method of a device, for hooks.
type Op string

// The operations of a device.
const (
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpDiscard Op = "discard"
	OpFlush   Op = "flush"
)

// Counts is what has reached a MemDevice and was not refused.
type Counts struct {
	Reads, Writes, Discards, Flushes int64
	BytesRead, BytesWritten          int64
	BytesDiscarded                   int64
	// Unflushed is the number of writes and discards that no later flush has covered.
	Unflushed int64
}

const chunkSize = 64 << 10

// MemDevice is an overlaybd.Device in memory. Chunks that were never written, or were discarded whole, take none.
type MemDevice struct {
	// Hook, if set before the device is used, is called before each operation, outside the device's lock; off and n
	// are 0 for a flush. An error is returned to the caller in place of the operation.
	Hook func(op Op, off, n int64) error

	mu       sync.RWMutex
	size     int64
	chunks   map[int64][]byte
	readOnly bool
	closed   bool

	statMu sync.Mutex
	counts Counts
}

var _ overlaybd.Device = (*MemDevice)(nil)

// NewMemDevice returns a device of size bytes, all zero. Size is a multiple of the sector size.
func NewMemDevice(size int64) *MemDevice {
	return &MemDevice{size: size, chunks: make(map[int64][]byte)}
}

// Size is the device's size in bytes.
func (d *MemDevice) Size() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.size
}

// Grow changes the size, as an engine's device does: only upwards.
func (d *MemDevice) Grow(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size < d.size || size%overlaybd.SectorSize != 0 {
		return fmt.Errorf("%w: size %d, want a multiple of %d, at least %d",
			overlaybd.ErrInvalid, size, overlaybd.SectorSize, d.size)
	}
	d.size = size
	return nil
}

// SetReadOnly makes writes and discards fail with overlaybd.ErrReadOnly.
func (d *MemDevice) SetReadOnly(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readOnly = on
}

// Close makes every later call fail with overlaybd.ErrClosed.
func (d *MemDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// Counts returns what has reached the device so far.
func (d *MemDevice) Counts() Counts {
	d.statMu.Lock()
	defer d.statMu.Unlock()
	return d.counts
}

// ReadAt reads whole sectors; at the end of the device it returns io.EOF with what there was.
func (d *MemDevice) ReadAt(p []byte, off int64) (int, error) {
	if err := d.enter(OpRead, off, int64(len(p))); err != nil {
		return 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(off, int64(len(p)), false); err != nil {
		return 0, err
	}
	var short error
	if rest := max(d.size-off, 0); int64(len(p)) > rest {
		p, short = p[:rest], io.EOF
	}
	d.each(off, int64(len(p)), func(index, from, to, at int64) {
		if c := d.chunks[index]; c != nil {
			copy(p[at:], c[from:to])
			return
		}
		clear(p[at : at+to-from])
	})
	d.count(func(c *Counts) { c.Reads++; c.BytesRead += int64(len(p)) })
	return len(p), short
}

// WriteAt writes whole sectors inside the device.
func (d *MemDevice) WriteAt(p []byte, off int64) (int, error) {
	if err := d.enter(OpWrite, off, int64(len(p))); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check(off, int64(len(p)), true); err != nil {
		return 0, err
	}
	d.each(off, int64(len(p)), func(index, from, to, at int64) {
		c := d.chunks[index]
		if c == nil {
			c = make([]byte, chunkSize)
			d.chunks[index] = c
		}
		copy(c[from:to], p[at:])
	})
	d.count(func(c *Counts) { c.Writes++; c.BytesWritten += int64(len(p)); c.Unflushed++ })
	return len(p), nil
}

// Discard makes whole sectors read as zeroes.
func (d *MemDevice) Discard(off, n int64) error {
	if err := d.enter(OpDiscard, off, n); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check(off, n, true); err != nil {
		return err
	}
	d.each(off, n, func(index, from, to, _ int64) {
		if to-from == chunkSize {
			delete(d.chunks, index)
		} else if c := d.chunks[index]; c != nil {
			clear(c[from:to])
		}
	})
	d.count(func(c *Counts) { c.Discards++; c.BytesDiscarded += n; c.Unflushed++ })
	return nil
}

// Flush covers every write and discard that returned before it began.
func (d *MemDevice) Flush() error {
	covered := d.Counts().Unflushed
	if err := d.enter(OpFlush, 0, 0); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return overlaybd.ErrClosed
	}
	d.count(func(c *Counts) { c.Flushes++; c.Unflushed = max(c.Unflushed-covered, 0) })
	return nil
}

func (d *MemDevice) enter(op Op, off, n int64) error {
	if d.Hook == nil {
		return nil
	}
	return d.Hook(op, off, n)
}

// check holds the lock, of either kind.
func (d *MemDevice) check(off, n int64, change bool) error {
	switch {
	case d.closed:
		return overlaybd.ErrClosed
	case off < 0 || off%overlaybd.SectorSize != 0:
		return fmt.Errorf("%w: offset %d, want a multiple of %d", overlaybd.ErrInvalid, off, overlaybd.SectorSize)
	case n < 0 || n%overlaybd.SectorSize != 0:
		return fmt.Errorf("%w: length %d, want a multiple of %d", overlaybd.ErrInvalid, n, overlaybd.SectorSize)
	case change && d.readOnly:
		return overlaybd.ErrReadOnly
	case change && n > d.size-off:
		return fmt.Errorf("%w: range %d+%d, want at most size %d", overlaybd.ErrInvalid, off, n, d.size)
	}
	return nil
}

// each calls f for the part of every chunk that the range covers: bytes from to to of the chunk, at bytes into the
// range.
func (d *MemDevice) each(off, n int64, f func(index, from, to, at int64)) {
	for at := int64(0); at < n; {
		index, from := (off+at)/chunkSize, (off+at)%chunkSize
		to := min(chunkSize, from+n-at)
		f(index, from, to, at)
		at += to - from
	}
}

func (d *MemDevice) count(f func(*Counts)) {
	d.statMu.Lock()
	defer d.statMu.Unlock()
	f(&d.counts)
}
