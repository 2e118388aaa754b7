package k8sadapter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandvol/sandvol/volume"
)

// Reason says in one word what is wrong with a volume or a mount, for programs.
type Reason string

// The reasons. Those of the first group are volume.ErrInvalid: the request or the PersistentVolume has to change. Those of
// the second are volume.ErrNotReady, and those of the third volume.ErrConflict: the same request can succeed later.
const (
	NotCSI          Reason = "not_csi"
	BlockMode       Reason = "block_mode"
	DriverRefused   Reason = "driver"
	NeedsStaging    Reason = "needs_staging"
	SecretNamespace Reason = "secret_namespace"
	SubPath         Reason = "sub_path"
	MountPath       Reason = "mount_path"
	WriteRefused    Reason = "read_only"
	MountedTwice    Reason = "mounted_twice"
	ManyWriters     Reason = "many_writers"
	Unsupported     Reason = "unsupported_runtime"
	ModeRefused     Reason = "unsupported_mode"

	Deleting       Reason = "volume_deleting"
	NotReady       Reason = "not_ready"
	BoundElsewhere Reason = "bound_elsewhere"
	Released       Reason = "released"
	Failed         Reason = "failed"
	SecretMissing  Reason = "secret_missing"

	WriterExists Reason = "writer_exists"
	Lapsed       Reason = "lapsed"
	Replaced     Reason = "replaced"
	// Contended: others change the same object all the time.
	Contended Reason = "contended"
	// Ambiguous: somebody labelled two volumes with one name.
	Ambiguous Reason = "ambiguous_name"
	// NamedOtherwise is volume.ErrConflict and volume.ErrExists: the volume is registered, and is called something else.
	NamedOtherwise Reason = "named_otherwise"
)

// ErrClosed: the adapter was closed. What it knows is not kept up to date any more, so nothing is answered from it.
var ErrClosed = errors.New("k8sadapter: closed")

func (r Reason) class() error {
	switch r {
	case Deleting, NotReady, BoundElsewhere, Released, Failed, SecretMissing:
		return volume.ErrNotReady
	case WriterExists, Lapsed, Replaced, Contended, Ambiguous, NamedOtherwise:
		return volume.ErrConflict
	}
	return volume.ErrInvalid
}

// VolumeError says why a volume cannot be registered, mounted or kept mounted. Its text is meant for the tenant: it names
// no other tenant, no secret and no attribute of the volume.
type VolumeError struct {
	Volume string // id, empty where the fault is in the request alone
	Reason Reason
	Detail string
}

func refuse(id string, r Reason, format string, args ...any) error {
	return &VolumeError{Volume: id, Reason: r, Detail: fmt.Sprintf(format, args...)}
}

func (e *VolumeError) Error() string {
	if e.Volume == "" {
		return fmt.Sprintf("%s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("%s: volume %q %s", e.Reason, e.Volume, e.Detail)
}

// Is reports the class of the reason.
func (e *VolumeError) Is(target error) bool {
	return target == e.Reason.class() || e.Reason == NamedOtherwise && target == volume.ErrExists
}

// Unwrap returns a volume.StatusError where the volume is in one of the states that native volumes have too.
func (e *VolumeError) Unwrap() error {
	switch e.Reason {
	case Deleting:
		return &volume.StatusError{Kind: "volume", ID: e.Volume, Status: volume.StatusDeleting, Op: "mount"}
	case Failed:
		return &volume.StatusError{Kind: "volume", ID: e.Volume, Status: volume.StatusFailed, Op: "mount"}
	}
	return nil
}

// Retryable reports whether the same request can succeed later without anybody changing it.
func (e *VolumeError) Retryable() bool {
	return e.Reason.class() != volume.ErrInvalid && e.Reason != NamedOtherwise && e.Reason != Ambiguous
}

// InUseError says who uses a volume that cannot be deleted. It is volume.ErrInUse.
type InUseError struct {
	Volume string // id
	// Users are the claims, sandboxes and checkpoints of the volume's own namespace, and what unconfirmed resolutions of it
	// are for.
	Users []Holder
	// Unnamed is how many others there are: those of other namespaces, and resolutions for nobody in particular. Who they are
	// is not told.
	Unnamed int
}

func (e *InUseError) Error() string {
	var users []string
	for _, h := range e.Users {
		users = append(users, fmt.Sprintf("%s %s", h.Kind, h.Name))
	}
	switch {
	case e.Unnamed == 1:
		users = append(users, "a mount that is not confirmed yet or is outside its namespace")
	case e.Unnamed > 1:
		users = append(users, fmt.Sprintf("%d mounts that are not confirmed yet or are outside its namespace", e.Unnamed))
	}
	return fmt.Sprintf("volume %q is in use by %s", e.Volume, strings.Join(users, ", "))
}

// Is reports volume.ErrInUse.
func (e *InUseError) Is(target error) bool { return target == volume.ErrInUse }

// absent is the one error for a volume that does not exist, belongs to somebody else, or has an id that none can have.
func absent(ref string) error { return fmt.Errorf("%w: volume %q", volume.ErrNotFound, shorten(ref)) }

// unavailableError is volume.ErrUnavailable in the words of this package: that class's own text is about layers.
type unavailableError struct {
	doing string
	err   error
}

// unavailable wraps an error of the API server that the caller can do nothing about but try again.
func unavailable(doing string, err error) error { return &unavailableError{doing, err} }

func (e *unavailableError) Error() string { return fmt.Sprintf("cannot %s: %v", e.doing, e.err) }

func (e *unavailableError) Is(target error) bool { return target == volume.ErrUnavailable }

func (e *unavailableError) Unwrap() error { return e.err }

// shorten cuts a value that is to be shown.
func shorten(s string) string {
	const most = 253
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
