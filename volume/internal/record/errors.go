package record

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
)

// Error classes; package volume re-exports them. A caller tests them with errors.Is and acts on the class.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("already exists")
	ErrInvalid     = overlaybd.ErrInvalid
	ErrUnsupported = errors.New("unsupported")
	ErrNotReady    = errors.New("not ready")
	ErrInUse       = errors.New("in use")
	ErrConflict    = reservation.ErrConflict
	ErrFenced      = reservation.ErrFenced
	ErrCorrupt     = overlaybd.ErrCorrupt
	ErrQuota       = errors.New("quota exceeded")
	ErrUnavailable = overlaybd.ErrUnavailable
)

// StatusError says that a volume or checkpoint is not in a state that allows an operation. It is ErrNotFound when it was
// deleted, else ErrNotReady.
type StatusError struct {
	Kind   string // "volume" or "checkpoint"
	ID     string
	Status Status
	Op     string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s is %s: cannot %s", e.Kind, e.ID, e.Status, e.Op)
}

// Is reports the class: ErrNotFound for a deleted one, else ErrNotReady.
func (e *StatusError) Is(target error) bool {
	if e.Status == StatusDeleted {
		return target == ErrNotFound
	}
	return target == ErrNotReady
}

// Holder is who keeps a volume from being changed: the owner of an exclusive volume, or a reader of an ro volume.
type Holder struct {
	Sandbox string
	Node    string
}

// InUseError says that a volume is held. It is ErrInUse.
type InUseError struct {
	ID      string
	Op      string
	Holders []Holder
}

func (e *InUseError) Error() string {
	names := make([]string, 0, len(e.Holders))
	for _, h := range e.Holders {
		names = append(names, fmt.Sprintf("sandbox %s on node %s", h.Sandbox, h.Node))
	}
	return fmt.Sprintf("volume %s is in use by %s: cannot %s", e.ID, strings.Join(names, ", "), e.Op)
}

// Is reports ErrInUse.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }
