package mount

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultKernelTimeout bounds each call of a kernel mount that was given no other limit.
const DefaultKernelTimeout = 30 * time.Second

// KernelOptions say how a drive is mounted on this host's kernel. The zero value mounts for writing onto an empty or
// missing directory.
type KernelOptions struct {
	// ReadOnly makes the block device and the file system read-only, so that both refuse writes with EROFS. An ext4 or
	// xfs journal is not replayed: the content must be clean.
	ReadOnly bool
	// FSType is ext4, xfs or erofs; if empty, the superblock decides.
	FSType string
	// ExistingTarget says that the target must exist; otherwise missing directories are made, and removed at the end.
	ExistingTarget bool
	// OverlayExisting allows a target that holds files, which are out of sight while the drive is mounted.
	OverlayExisting bool
	// Timeout bounds each call; DefaultKernelTimeout if zero.
	Timeout time.Duration
}

// KernelMount is a drive mounted on this host's kernel through a loop device, for sandboxes that share the kernel.
// Its methods may be called concurrently; those that unmount run one at a time.
type KernelMount struct {
	target   string
	fsType   string
	readOnly bool
	limit    time.Duration
	loop     *loop
	created  []string // directories made for the target

	turn chan struct{} // holds a token; who has it may freeze or unmount
	done bool          // unmounted and released; guarded by turn
	ice  *ice          // the freeze in force; guarded by turn
}

// MountKernel mounts the drive in file source, an Exposure's path, on the directory target. The target is a clean
// absolute path without symbolic links in it, else ErrInvalid, not a mount point and empty, else ErrExists: a
// *TargetError says which. Devices and set-user-ID programs on the drive have no effect, and reading does not change
// access times, since each change would be published. Nothing is left behind when it fails; at a time-out that holds
// once the kernel answers.
func MountKernel(ctx context.Context, source, target string, o KernelOptions) (*KernelMount, error) {
	if o.Timeout < 0 {
		return nil, fmt.Errorf("%w: timeout %v, want at least 0", ErrInvalid, o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultKernelTimeout
	}
	m, err := within(ctx, o.Timeout, "mount "+target,
		func(ctx context.Context) (*KernelMount, error) { return mountKernel(ctx, source, target, o) },
		// The caller has left with an error, and must find nothing mounted.
		func(m *KernelMount) { _ = m.Unmount(context.Background()) })
	if err != nil {
		return nil, fmt.Errorf("kernel mount of %s on %s: %w", source, target, err)
	}
	return m, nil
}

func mountKernel(ctx context.Context, source, path string, o KernelOptions) (_ *KernelMount, err error) {
	t, err := openTarget(path, !o.ExistingTarget, o.OverlayExisting)
	if err != nil {
		return nil, err
	}
	defer func() {
		t.close()
		if err != nil {
			removeDirs(t.created)
		}
	}()
	l, err := attachLoop(source, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	// Once mounted, the device lives as long as the mount; otherwise closing it detaches it.
	defer func() {
		l.letGo()
		if err != nil {
			err = awaitUndone(l, o.Timeout, err)
		}
	}()
	fsType, err := mountLoop(ctx, l, t, o)
	if err != nil {
		return nil, err
	}
	return newKernelMount(path, fsType, o, l, t.created), nil
}

func mountLoop(ctx context.Context, l *loop, t *target, o KernelOptions) (fsType string, err error) {
	s, err := probe(l.fd)
	if err != nil {
		return "", err
	}
	if o.FSType != "" && o.FSType != s.fsType {
		return "", fmt.Errorf("%w: file system %q wanted, found %s", ErrInvalid, o.FSType, s.fsType)
	}
	m, err := newMount(l.path(), s, o.ReadOnly)
	if err != nil {
		return "", err
	}
	// Closing the descriptor of a mount that was not attached unmounts it.
	defer unix.Close(m)
	// What took too long must not appear in the directory any more.
	if err := ctx.Err(); err != nil {
		return "", &TimeoutError{Op: "mount " + t.path, Limit: o.Timeout, Cause: err}
	}
	return s.fsType, attachMount(m, t.fd)
}

// awaitUndone lets a mount that failed return only when its loop device is gone.
func awaitUndone(l *loop, limit time.Duration, cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := l.awaitRelease(ctx); err != nil {
		return fmt.Errorf("%w; %s is still attached: %w", cause, l.path(), err)
	}
	return cause
}

func newKernelMount(target, fsType string, o KernelOptions, l *loop, created []string) *KernelMount {
	m := &KernelMount{
		target:   target,
		fsType:   fsType,
		readOnly: o.ReadOnly,
		limit:    o.Timeout,
		loop:     l,
		created:  created,
		turn:     make(chan struct{}, 1),
	}
	m.turn <- struct{}{}
	return m
}

// Target is the directory that the drive is mounted on.
func (m *KernelMount) Target() string { return m.target }

// Device is the path of the loop device.
func (m *KernelMount) Device() string { return m.loop.path() }

// FSType is the file system's type.
func (m *KernelMount) FSType() string { return m.fsType }

// ReadOnly says whether the drive was mounted read-only.
func (m *KernelMount) ReadOnly() bool { return m.readOnly }

// lock takes the turn, or gives up with ctx.
func (m *KernelMount) lock(ctx context.Context, op string) error {
	select {
	case <-m.turn:
		return nil
	case <-ctx.Done():
		return &TimeoutError{Op: op + " " + m.target + ": another call is under way", Limit: m.limit, Cause: ctx.Err()}
	}
}

func (m *KernelMount) unlock() { m.turn <- struct{}{} }
