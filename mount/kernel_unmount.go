package mount

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ErrNotMounted: nothing of the kind is mounted there.
var ErrNotMounted = errors.New("mount: not mounted")

// AdoptKernel finds a drive that an earlier process mounted on target, so that it can be unmounted: a process that
// died leaves its kernel mounts behind. Without a loop device mounted there it is ErrNotMounted. ReadOnly and Timeout
// of the options count.
func AdoptKernel(target string, o KernelOptions) (*KernelMount, error) {
	top, err := topMount(target)
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultKernelTimeout
	}
	number, ok := strings.CutPrefix(top.Source, "/dev/loop")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil, fmt.Errorf("%w: %s holds %s of type %s, not a loop device", ErrNotMounted, target, top.Source, top.FSType)
	}
	l := &loop{number: n, fd: -1}
	l.seq = readTrimmed(l.sys("diskseq"))
	return newKernelMount(target, top.FSType, o, l, nil), nil
}

// topMount is the mount one sees at path: the last of those stacked there.
func topMount(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	if len(mounts) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNotMounted, path)
	}
	return mounts[len(mounts)-1], nil
}

// Unmount unmounts the drive and returns nil when the kernel has let go of its file: all that was written is in the
// exposed device then, and the target's directories that MountKernel made are gone. A frozen file system is thawed
// first. While something has files open there, it keeps trying until the time limit or the end of ctx and then
// returns ErrBusy, with the drive still mounted: ask again, or Detach. Once unmounted, further calls return nil.
func (m *KernelMount) Unmount(ctx context.Context) error {
	return m.end(ctx, "unmount", m.limit, func(ctx context.Context) error {
		busy := false
		err := poll(ctx, func() (bool, error) {
			err := m.umount(0)
			busy = errors.Is(err, unix.EBUSY)
			return !busy, ignore(err, unix.EBUSY)
		})
		if busy {
			return fmt.Errorf("%w: files are open on %s: %w", ErrBusy, m.target, err)
		}
		return err
	})
}

// Detach takes the drive out of the directory tree although it may be in use: the last resort. It returns nil if
// nothing used it, as Unmount does. Otherwise it returns ErrDetached: users that have files open still read and write
// them, and what they write counts until the last of them is gone, for which Unmount then waits.
func (m *KernelMount) Detach(ctx context.Context) error {
	return m.end(ctx, "detach", detachPatience, func(context.Context) error { return m.umount(unix.MNT_DETACH) })
}

// detachPatience is how long Detach waits to see whether the drive was in use. Without users the loop device is gone
// within milliseconds.
const detachPatience = time.Second

// end takes the mount away with the given step, and then waits for the loop device.
func (m *KernelMount) end(
	ctx context.Context, op string, patience time.Duration, step func(context.Context) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	if err := m.lock(ctx, op); err != nil {
		return err
	}
	defer m.unlock()
	if m.done {
		return nil
	}
	// A frozen file system would outlive its mount, with nobody left who could thaw it.
	if err := m.melt(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", op, m.target, err)
	}
	if err := do(ctx, m.limit, op+" "+m.target, step); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := m.loop.awaitRelease(ctx); err != nil {
		return fmt.Errorf("%s %s: %w: %s is still open, by a process or in another mount namespace: %w",
			op, m.target, ErrDetached, m.loop.path(), err)
	}
	removeDirs(m.created)
	m.done = true
	return nil
}

// umount takes our mount from the target. One that is gone already is fine: an earlier call may have come that far.
func (m *KernelMount) umount(flags int) error {
	top, err := topMount(m.target)
	if errors.Is(err, ErrNotMounted) {
		return nil
	}
	if err != nil {
		return err
	}
	// unmount(2) would take whatever is on top.
	if top.Source != m.loop.path() {
		return fmt.Errorf("%w: %s is mounted over %s", ErrBusy, top.Source, m.target)
	}
	return unix.Unmount(m.target, flags|unix.UMOUNT_NOFOLLOW)
}

func ignore(err, class error) error {
	if errors.Is(err, class) {
		return nil
	}
	return err
}
