package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ioctl(2) that x/sys does not have, from the kernel's linux/fs.h and ext4.h, in the encoding of all
// architectures but mips, powerpc and sparc.
const (
	fiFreeze     = 0xc0045877 // _IOWR('X', 119, int)
	fiThaw       = 0xc0045878 // _IOWR('X', 120, int)
	ext4ResizeFS = 0x40086610 // _IOW('f', 16, __u64)
)

// ice is a freeze in force. The descriptor stays open: it keeps the file system from being unmounted, and thaws it
// even if something else is mounted over the target by then.
type ice struct {
	fd   int
	once sync.Once
	err  error
}

// Freeze makes the file system on disk clean and complete, and stops whatever would change it until thaw is called;
// reads go on. It is how a drive that is in use gets a consistent cut. At the time limit or the end of ctx it gives
// up with ErrTimeout, and a freeze that still comes about is thawed at once. Frozen already is ErrBusy. Thaw may be
// called again and answers the same; an error of it means that the file system was not frozen all the time, or that
// the kernel hangs.
func (m *KernelMount) Freeze(ctx context.Context) (thaw func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	if err := m.lock(ctx, "freeze"); err != nil {
		return nil, err
	}
	defer m.unlock()
	if m.done {
		return nil, fmt.Errorf("freeze %s: %w", m.target, ErrClosed)
	}
	i, err := within(ctx, m.limit, "freeze "+m.target, m.freeze, func(i *ice) { _ = i.thaw() })
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("%w: frozen already: %w", ErrBusy, err)
	}
	if err != nil {
		return nil, fmt.Errorf("freeze %s: %w", m.target, err)
	}
	m.ice = i
	return func() error { return m.thaw(i) }, nil
}

func (m *KernelMount) freeze(context.Context) (*ice, error) {
	fd, err := m.openRoot()
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(fd, fiFreeze, 0); err != nil {
		_ = unix.Close(fd) // a directory
		return nil, err
	}
	return &ice{fd: fd}, nil
}

// thaw has no context of its own: whatever happened to the caller's, the guest must go on.
func (m *KernelMount) thaw(i *ice) error {
	return do(context.Background(), m.limit, "thaw "+m.target, func(context.Context) error { return i.thaw() })
}

func (i *ice) thaw() error {
	i.once.Do(func() {
		i.err = unix.IoctlSetInt(i.fd, fiThaw, 0)
		_ = unix.Close(i.fd) // a directory
	})
	return i.err
}

// melt thaws what is still frozen. The caller has the turn.
func (m *KernelMount) melt(ctx context.Context) error {
	if m.ice == nil {
		return nil
	}
	// The error was or will be the answer of the caller's own thaw, unless the call does not return.
	err := do(ctx, m.limit, "thaw "+m.target, func(context.Context) error { _ = m.ice.thaw(); return nil })
	if err == nil {
		m.ice = nil
	}
	return err
}

// Sync returns when all that was written before is durable in the exposed device.
func (m *KernelMount) Sync(ctx context.Context) error {
	return m.onRoot(ctx, "sync", func(fd int) error { return unix.Syncfs(fd) })
}

// Grow makes the loop device and then the mounted file system as large as the exposed device, after Exposure.Resize.
// Only ext4 can, and only with CAP_SYS_RESOURCE; else it is ErrUnsupported. A retry is safe.
func (m *KernelMount) Grow(ctx context.Context) error {
	if m.fsType != "ext4" || m.readOnly {
		return fmt.Errorf("grow %s: %w: file system %s, read-only %t", m.target, ErrUnsupported, m.fsType, m.readOnly)
	}
	return m.onRoot(ctx, "grow", func(fd int) error {
		if err := m.loop.grow(); err != nil {
			return err
		}
		size, err := m.loop.size()
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(fd, &st); err != nil {
			return err
		}
		blocks := uint64(size) / uint64(st.Bsize)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ext4ResizeFS, uintptr(unsafe.Pointer(&blocks)))
		if errno != 0 {
			return growError(blocks, errno)
		}
		return nil
	})
}

func growError(blocks uint64, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: ext4 to %d blocks needs CAP_SYS_RESOURCE: %w", ErrUnsupported, blocks, err)
	}
	return fmt.Errorf("ext4 to %d blocks: %w", blocks, err)
}

// grow makes the device take its file's present size.
func (l *loop) grow() error {
	fd, err := unix.Open(l.path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("capacity of %s: %w", l.path(), err)
	}
	return nil
}

// onRoot runs fn on the mounted file system's root directory.
func (m *KernelMount) onRoot(ctx context.Context, op string, fn func(fd int) error) error {
	err := do(ctx, m.limit, op+" "+m.target, func(context.Context) error {
		fd, err := m.openRoot()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn(fd)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, m.target, err)
	}
	return nil
}

// openRoot opens the root directory of our file system, and of no other that may be at the target by now.
func (m *KernelMount) openRoot() (int, error) {
	fd, err := unix.Open(m.target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var dir, dev unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &dir), unix.Stat(m.loop.path(), &dev)); err != nil || dir.Dev != dev.Rdev {
		_ = unix.Close(fd) // a directory
		return -1, errors.Join(fmt.Errorf("%w: %s on %s", ErrNotMounted, m.loop.path(), m.target), err)
	}
	return fd, nil
}
