package fuse

import (
	"context"
	"fmt"
	"sync"

	"github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

// drive is one exposed device: the exposure, and the node that the kernel talks to.
type drive struct {
	fs.Inode
	server   *Server
	name     string
	dev      *exposed.Sectors
	gate     *exposed.Gate
	readOnly bool

	mu       sync.Mutex
	uid, gid uint32
	mode     uint32

	hide, forget sync.Once // the steps of Close that only its first caller takes
}

var _ mount.Exposure = (*drive)(nil)

func newDrive(s *Server, name string, dev overlaybd.Device, readOnly bool) *drive {
	d := &drive{
		server:   s,
		name:     name,
		dev:      exposed.NewSectors(dev),
		gate:     exposed.NewGate(name),
		readOnly: readOnly,
		mode:     0o600,
	}
	if readOnly {
		d.mode = 0o400
	}
	return d
}

// Path is the drive's file.
func (d *drive) Path() string { return d.server.dir + "/" + d.name }

// Resize makes the kernel see the device's present size.
func (d *drive) Resize() error {
	if !d.gate.Enter() {
		return mount.ErrClosed
	}
	d.dev.Resize()
	d.gate.Leave()
	// Attributes are not cached, so that any stat sees the new size. This one makes the kernel store it in its inode,
	// where a loop device of older kernels looks when its capacity is set anew.
	var st unix.Stat_t
	if err := unix.Stat(d.Path(), &st); err != nil {
		return fmt.Errorf("resize drive %s: %w", d.name, err)
	}
	return nil
}

// Close implements mount.Exposure.
func (d *drive) Close(ctx context.Context) error {
	// The name goes first: who looks it up from now on does not find it. Who found it before and opens it now is refused.
	d.hide.Do(func() { d.server.root.RmChild(d.name) })
	err := d.gate.Close(ctx)
	d.forget.Do(func() { d.server.forget(d) })
	return err
}
