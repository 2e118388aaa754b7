package fuse

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

// blockSize is what statfs reports. A loop device takes it as the granularity in which discards are worth sending.
const blockSize = 4096

// root is the directory of all drives.
type root struct{ fs.Inode }

var (
	_ fs.NodeGetattrer = (*root)(nil)
	_ fs.NodeStatfser  = (*root)(nil)
	_ fs.NodeUnlinker  = (*root)(nil)

	_ fs.NodeGetattrer = (*drive)(nil)
	_ fs.NodeSetattrer = (*drive)(nil)
	_ fs.NodeStatfser  = (*drive)(nil)
	_ fs.NodeOpener    = (*drive)(nil)
	_ fs.NodeReleaser  = (*drive)(nil)
	_ fs.NodeReader    = (*drive)(nil)
	_ fs.NodeWriter    = (*drive)(nil)
	_ fs.NodeFsyncer   = (*drive)(nil)
	_ fs.NodeFlusher   = (*drive)(nil)
	_ fs.NodeAllocater = (*drive)(nil)
)

// Getattr lets anyone pass who knows a name, and only root list the names.
func (r *root) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o711
	return 0
}

// Unlink is refused: go-fuse would otherwise drop the name by itself.
func (r *root) Unlink(context.Context, string) syscall.Errno { return syscall.EPERM }

func (r *root) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno { return statfs(out) }

func (d *drive) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno { return statfs(out) }

func statfs(out *fuse.StatfsOut) syscall.Errno {
	out.Bsize, out.Frsize, out.NameLen = blockSize, blockSize, 255
	return 0
}

func (d *drive) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	out.Mode, out.Uid, out.Gid = d.mode, d.uid, d.gid
	out.Size = uint64(d.dev.Size())
	out.Blocks = out.Size / overlaybd.SectorSize
	out.Blksize = blockSize
	return 0
}

// Setattr changes owner and permissions, in memory. Times are taken and ignored; a drive has none.
func (d *drive) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok && int64(size) != d.dev.Size() {
		return syscall.EPERM // a drive is never cut short; it grows by Resize
	}
	d.mu.Lock()
	if uid, ok := in.GetUID(); ok {
		d.uid = uid
	}
	if gid, ok := in.GetGID(); ok {
		d.gid = gid
	}
	if mode, ok := in.GetMode(); ok {
		d.mode = mode & 0o666
		if d.readOnly {
			d.mode &= 0o444
		}
	}
	d.mu.Unlock()
	return d.Getattr(ctx, f, out)
}

// Open asks for direct I/O, and for writes that may run at once: the kernel would otherwise hold a lock around each.
func (d *drive) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if d.readOnly && flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	if !d.gate.Open() {
		return nil, 0, syscall.ENOENT
	}
	return handle{}, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES, 0
}

// handle has no content; without one go-fuse would not pair each open with a release.
type handle struct{}

func (d *drive) Release(context.Context, fs.FileHandle) syscall.Errno {
	d.gate.Release()
	return 0
}

func (d *drive) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if !d.gate.Enter() {
		return nil, syscall.EIO
	}
	defer d.gate.Leave()
	n, err := d.dev.Read(dest, off)
	if err != nil {
		return nil, exposed.Errno(err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (d *drive) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := d.enterChange(); errno != 0 {
		return 0, errno
	}
	defer d.gate.Leave()
	if err := d.dev.Write(data, off); err != nil {
		return 0, exposed.Errno(err)
	}
	return uint32(len(data)), 0
}

// Fsync makes durable what was acknowledged before: with direct I/O that is in the device already.
func (d *drive) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	if d.readOnly {
		return 0
	}
	if !d.gate.Enter() {
		return syscall.EIO
	}
	defer d.gate.Leave()
	return exposed.Errno(d.dev.Flush())
}

// Flush is asked for at each close(2), where nothing is left to write: see the package comment.
func (d *drive) Flush(context.Context, fs.FileHandle) syscall.Errno { return syscall.ENOSYS }

// Allocate is fallocate(2). Space cannot be reserved ahead in a layer, so the plain mode is refused and callers that
// want to fall back do.
func (d *drive) Allocate(_ context.Context, _ fs.FileHandle, off, n uint64, mode uint32) syscall.Errno {
	from, count := int64(off), int64(n)
	switch mode {
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		// A hole may reach past the end of a file, where it changes nothing.
		count = min(count, d.dev.Size()-from)
	case unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE:
		if d.dev.Outside(from, count) {
			return syscall.ENOSPC
		}
	default:
		return syscall.EOPNOTSUPP
	}
	if errno := d.enterChange(); errno != 0 {
		return errno
	}
	defer d.gate.Leave()
	if count <= 0 {
		return 0
	}
	return exposed.Errno(d.dev.Zero(from, count))
}

// enterChange keeps all changes from the device of a read-only drive, whatever the kernel let through.
func (d *drive) enterChange() syscall.Errno {
	switch {
	case d.readOnly:
		return syscall.EROFS
	case !d.gate.Enter():
		return syscall.EIO
	}
	return 0
}
