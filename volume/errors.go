package volume

import (
	"fmt"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Error classes, tested with errors.Is. Each error that this package returns because of what was asked, or of what the
// repository holds, is of one of them; anything else is a fault of a disk or a network and may be tried again.
var (
	// ErrNotFound: no such volume, checkpoint or name under this tenant, or it was deleted.
	ErrNotFound = record.ErrNotFound
	// ErrExists: the name is taken.
	ErrExists = record.ErrExists
	// ErrInvalid: an argument is outside its limits; the message names field, value and limit.
	ErrInvalid = record.ErrInvalid
	// ErrUnsupported: the mode does not exist or does not allow this.
	ErrUnsupported = record.ErrUnsupported
	// ErrNotReady: the volume is not in a state that allows this now.
	ErrNotReady = record.ErrNotReady
	// ErrInUse: somebody holds the volume; the InUseError names them.
	ErrInUse = record.ErrInUse
	// ErrConflict: somebody else owns the volume or was faster; reservation.ConflictError names the holder.
	ErrConflict = record.ErrConflict
	// ErrFenced: the volume was this caller's and is somebody else's now.
	ErrFenced = record.ErrFenced
	// ErrCorrupt: stored bytes contradict their digest or format.
	ErrCorrupt = record.ErrCorrupt
	// ErrUnreadable: a newer version wrote the record, or it is damaged. It is left alone.
	ErrUnreadable = genlog.ErrUnreadable
	// ErrQuota: the tenant's limit, as the host's Limiter has it, would be exceeded.
	ErrQuota = record.ErrQuota
	// ErrUnavailable: the data cannot be reached now.
	ErrUnavailable = record.ErrUnavailable
)

// Typed details behind the classes.
type (
	// StatusError says which status forbids an operation.
	StatusError = record.StatusError
	// InUseError names the sandboxes that hold a volume.
	InUseError = record.InUseError
	// Holder is one sandbox that holds a volume, and its node.
	Holder = record.Holder
	// ConflictError names the holder of an exclusive volume, its epoch and since when it holds it.
	ConflictError = reservation.ConflictError
	// FencedError tells a former holder who holds the volume now.
	FencedError = reservation.FencedError
)

// FlushUnavailableError says that the newest writes of a volume are on another node, which alone can publish them. It is
// ErrNotReady.
type FlushUnavailableError struct {
	Volume  string
	Sandbox string
	Node    string
}

func (e *FlushUnavailableError) Error() string {
	return fmt.Sprintf("flush_unavailable: volume %s is held by sandbox %s: only its node %s can flush it",
		e.Volume, e.Sandbox, e.Node)
}

// Is reports ErrNotReady.
func (e *FlushUnavailableError) Is(target error) bool { return target == ErrNotReady }

// NotCleanError says that an ro volume cannot be made from a generation whose file systems were not frozen when it was cut,
// because a read-only mount cannot repair them. It is ErrNotReady: pause the holder, or copy with flush, and try again.
type NotCleanError struct {
	Source     string
	Generation uint64
}

func (e *NotCleanError) Error() string {
	return fmt.Sprintf("generation %d of %s was cut as after a crash: an ro volume needs a clean one", e.Generation, e.Source)
}

// Is reports ErrNotReady.
func (e *NotCleanError) Is(target error) bool { return target == ErrNotReady }

// TokenMismatchError says that a client token was used before for a request that asked for something else. It is
// ErrConflict.
type TokenMismatchError struct{ Name, Volume string }

func (e *TokenMismatchError) Error() string {
	return fmt.Sprintf("idempotency_mismatch: name %q, volume %s was created with this client token by another request",
		e.Name, e.Volume)
}

// Is reports ErrConflict.
func (e *TokenMismatchError) Is(target error) bool { return target == ErrConflict }
