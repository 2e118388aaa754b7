package mount

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
)

// Error classes of exposers and kernel mounts, tested with errors.Is.
var (
	// ErrInvalid: an argument is outside its limits; the message names field, value and limit. Nothing was changed.
	ErrInvalid = volume.ErrInvalid
	// ErrNotFound: no such sandbox, volume or checkpoint.
	ErrNotFound = volume.ErrNotFound
	// ErrConflict: somebody else owns it, or was faster.
	ErrConflict = volume.ErrConflict
	// ErrNotReady: it is not in a state that allows this now.
	ErrNotReady = volume.ErrNotReady
	// ErrExists: the name is exposed already, or the target is a mount point or holds files already.
	ErrExists = volume.ErrExists
	// ErrClosed: the exposer, the exposure or the kernel mount was closed.
	ErrClosed = overlaybd.ErrClosed
	// ErrBusy: something still has the drive or the file system open; the call may be repeated.
	ErrBusy = errors.New("mount: in use")
	// ErrDetached: the drive was taken away while something still used it. What it had not written through is lost to
	// it.
	ErrDetached = errors.New("mount: detached while in use")
	// ErrTimeout: the kernel did not answer in time. The call goes on in the background and undoes itself where it can.
	ErrTimeout = errors.New("mount: time limit reached")
	// ErrUnsupported: this kernel or file system cannot do it.
	ErrUnsupported = volume.ErrUnsupported
)

// MaxNameLength is the longest name that Expose takes, in bytes: that of a file name.
const MaxNameLength = 255

// Exposer gives a device a path under which a VMM or a loop device of this machine can open it.
type Exposer interface {
	// Expose offers dev under name, which is 1 to MaxNameLength letters, digits, '_' or '-', else ErrInvalid, and not in
	// use in this exposer, else ErrExists. A read-only exposure refuses writes before they reach dev. Requests that are
	// not aligned to sectors are widened and merged here, since a Device takes whole sectors only. The exposer never
	// closes dev; the caller does, after the exposure is closed. Any number of calls may overlap.
	Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (Exposure, error)
}

// Exposure is one device offered under one path.
type Exposure interface {
	// Path is what to hand to a VMM or to MountKernel.
	Path() string
	// Resize makes the device's present size known, after it has grown. A retry is safe.
	Resize() error
	// Close takes the name away, so that nothing new can open it, and returns nil as soon as nothing has it open: every
	// write that a client was told of has then reached the device. If ctx ends first, the device is cut off all the
	// same: clients get EIO from then on, and the error is a *DetachedError. Repeated calls are safe and answer alike.
	Close(ctx context.Context) error
}

// DetachedError says that a drive was cut off from clients that still had it open. It is ErrDetached, and what ended
// the wait.
type DetachedError struct {
	Name    string // the exposure's name
	Handles int    // open files or connections that were cut off
	Ops     int    // device calls that had not returned; they end by themselves, at the latest when the device is closed
	Cause   error  // what ended the wait
}

func (e *DetachedError) Error() string {
	return fmt.Sprintf("drive %s: cut off from %d open handles with %d calls in flight: %v",
		e.Name, e.Handles, e.Ops, e.Cause)
}

// Unwrap answers errors.Is for ErrDetached and for the cause.
func (e *DetachedError) Unwrap() []error { return []error{ErrDetached, e.Cause} }

// CheckName returns ErrInvalid unless name can be exposed: implementations call it first.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > MaxNameLength {
		return fmt.Errorf("%w: name %q has %d bytes, want 1 to %d", ErrInvalid, name, len(name), MaxNameLength)
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return fmt.Errorf("%w: name %q has %q at byte %d, want letters, digits, '_' and '-'", ErrInvalid, name, c, i)
		}
	}
	return nil
}

// CheckDevice returns ErrInvalid unless dev has a size that can be exposed: implementations call it second.
func CheckDevice(dev overlaybd.Device) error {
	if n := dev.Size(); n <= 0 || n%overlaybd.SectorSize != 0 {
		return fmt.Errorf("%w: device size %d, want a positive multiple of %d", ErrInvalid, n, overlaybd.SectorSize)
	}
	return nil
}
