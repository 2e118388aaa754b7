package fuse

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
)

// drive is one exposed device: the exposure, and the node that the kernel talks to.
type drive struct {
	fs.Inode
	server   *Server
	name     string
	dev      overlaybd.Device
	readOnly bool
	size     atomic.Int64

	// merge orders requests that change part of a sector, which read it, change it and write it, against all others
	// that change the device: without it, an overlapping write that was acknowledged in between would be undone.
	merge sync.RWMutex

	mu       sync.Mutex
	uid, gid uint32
	mode     uint32
	handles  int           // opened and not yet released
	ops      int           // calls into the device
	closing  bool          // takes no new opens
	ended    bool          // takes no more I/O: idle while closing, or cut off
	over     chan struct{} // closed when ended; closeErr is final then
	closeErr error

	hide, forget sync.Once // the steps of Close that only its first caller takes
}

var _ mount.Exposure = (*drive)(nil)

func newDrive(s *Server, name string, dev overlaybd.Device, readOnly bool) *drive {
	d := &drive{
		server:   s,
		name:     name,
		dev:      dev,
		readOnly: readOnly,
		mode:     0o600,
		over:     make(chan struct{}),
	}
	if readOnly {
		d.mode = 0o400
	}
	d.size.Store(dev.Size())
	return d
}

// Path is the drive's file.
func (d *drive) Path() string { return d.server.dir + "/" + d.name }

// Resize makes the kernel see the device's present size.
func (d *drive) Resize() error {
	if err := d.enter(); err != nil {
		return mount.ErrClosed
	}
	d.size.Store(d.dev.Size())
	d.leave()
	// Attributes are not cached, so that any stat sees the new size. This one makes the kernel store it in its inode,
	// where a loop device of older kernels looks when its capacity is set anew.
	var st unix.Stat_t
	if err := unix.Stat(d.Path(), &st); err != nil {
		return fmt.Errorf("resize drive %s: %w", d.name, err)
	}
	return nil
}

// Close implements mount.Exposure. Each caller waits no longer than its own context; the first to give up cuts the
// drive off for all.
func (d *drive) Close(ctx context.Context) error {
	d.hide.Do(func() { d.server.root.RmChild(d.name) })
	// The name went first: who looks it up from now on does not find it. Who found it before and opens it now is
	// refused.
	d.mu.Lock()
	d.closing = true
	d.checkIdle()
	d.mu.Unlock()
	select {
	case <-d.over:
	case <-ctx.Done():
		d.cutOff(ctx.Err())
	}
	d.forget.Do(func() { d.server.forget(d) })
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closeErr
}

// cutOff keeps every later call from the device. Those inside return by themselves: its owner may close it meanwhile.
func (d *drive) cutOff(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(&mount.DetachedError{Name: d.name, Handles: d.handles, Ops: d.ops, Cause: cause})
}

// enter is called before each use of the device, and leave after it.
func (d *drive) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return syscall.EIO
	}
	d.ops++
	return nil
}

func (d *drive) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops--
	d.checkIdle()
}

func (d *drive) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return syscall.ENOENT
	}
	d.handles++
	return nil
}

func (d *drive) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles--
	d.checkIdle()
}

// checkIdle is called with mu held, after each change that could make the drive idle.
func (d *drive) checkIdle() {
	if d.closing && d.handles == 0 && d.ops == 0 {
		d.end(nil)
	}
}

// end is called with mu held. The first reason stands.
func (d *drive) end(err error) {
	if d.ended {
		return
	}
	d.ended, d.closeErr = true, err
	close(d.over)
}
