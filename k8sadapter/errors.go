package k8sadapter

import (
	"fmt"

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

	Deleting       Reason = "volume_deleting"
	NotReady       Reason = "not_ready"
	BoundElsewhere Reason = "bound_elsewhere"
	Released       Reason = "released"
	Failed         Reason = "failed"
	SecretMissing  Reason = "secret_missing"

	WriterExists Reason = "writer_exists"
	Lapsed       Reason = "lapsed"
	Replaced     Reason = "replaced"
)

func (r Reason) class() error {
	switch r {
	case Deleting, NotReady, BoundElsewhere, Released, Failed, SecretMissing:
		return volume.ErrNotReady
	case WriterExists, Lapsed, Replaced:
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
func (e *VolumeError) Is(target error) bool { return target == e.Reason.class() }

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
func (e *VolumeError) Retryable() bool { return e.Reason.class() != volume.ErrInvalid }

// absent is the one error for a volume that does not exist, belongs to somebody else, or has an id that none can have.
func absent(ref string) error { return fmt.Errorf("%w: volume %q", volume.ErrNotFound, shorten(ref)) }

// unavailable wraps an error of the API server that the caller can do nothing about but try again.
func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", volume.ErrUnavailable, what, err)
}

// shorten cuts a value that is to be shown.
func shorten(s string) string {
	const most = 253
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
