package e2bhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
)

// SandboxMount is a mount whose volume was found and may be mounted.
type SandboxMount struct {
	Path     string
	Volume   volume.Volume
	ReadOnly bool
	SubPath  string
}

// Mount returns the mount for mount.Node.Create.
func (m SandboxMount) Mount() mount.Mount {
	return mount.Mount{Path: m.Path, Volume: m.Volume.ID, ReadOnly: m.ReadOnly}
}

// MountsError reports every entry of a request that is wrong, in E2B's form. It is ErrMounts, and volume.ErrInvalid (400) if
// at least one entry is wrong in itself, else volume.ErrConflict (409): volumes that are held or not ready.
type MountsError struct{ faults []mountFault }

// Error lists the faults, one a line.
func (e *MountsError) Error() string {
	lines := make([]string, 0, len(e.faults)+1)
	lines = append(lines, "invalid mounts:")
	for _, f := range e.faults {
		lines = append(lines, f.message)
	}
	return strings.Join(lines, "\n")
}

// Is reports the classes.
func (e *MountsError) Is(target error) bool {
	class := volume.ErrConflict
	if e.worst().status == http.StatusBadRequest {
		class = volume.ErrInvalid
	}
	return target == ErrMounts || target == class
}

// worst is the first fault of the gravest status: a request that is wrong is not made right by waiting.
func (e *MountsError) worst() mountFault {
	worst := e.faults[0]
	for _, f := range e.faults {
		if f.status < worst.status {
			worst = f
		}
	}
	return worst
}

func (e *MountsError) problem() *problem {
	w := e.worst()
	return &problem{status: w.status, code: w.code, message: e.Error()}
}

// Resolve looks the volumes of all entries up and checks everything that can be checked before a sandbox is started; what is
// wrong is reported at once, as a *MountsError. A volume that sandbox already owns is no conflict; sandbox is empty for one
// that does not exist yet. The volumes are not acquired: that is for mount.Node.Create, which takes all or none of them and
// has the last word about who owns what.
func (r MountRules) Resolve(ctx context.Context, volumes Volumes, entries []MountEntry, sandbox string) (
	[]SandboxMount, error) {
	found := &MountsError{}
	mounts := make([]SandboxMount, 0, len(entries))
	for i, e := range entries {
		m, err := r.resolve(ctx, volumes, e, sandbox)
		if err == nil {
			err = clash(m, e, entries[:i], mounts).asError()
		}
		var fault *faultError
		switch {
		case errors.As(err, &fault):
			fault.fault.message = e.Where + ": " + fault.fault.message
			found.faults = append(found.faults, fault.fault)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", e.Where, err)
		default:
			mounts = append(mounts, m)
		}
	}
	if len(found.faults) > 0 {
		return nil, found
	}
	return mounts, nil
}

// faultError carries the fault of an entry past errors of the store, which end the whole call.
type faultError struct{ fault mountFault }

func (e *faultError) Error() string { return e.fault.message }

// Is is for entries that were not read: see MountEntry.Fault.
func (e *faultError) Is(target error) bool { return target == ErrMounts || target == volume.ErrInvalid }

func (f *mountFault) asError() error {
	if f == nil {
		return nil
	}
	return &faultError{*f}
}

// resolve judges one entry by itself.
func (r MountRules) resolve(ctx context.Context, volumes Volumes, e MountEntry, sandbox string) (m SandboxMount, err error) {
	for _, fault := range []*mountFault{e.fault, r.checkPath(e.Path), r.checkSubPath(e.SubPath)} {
		if fault != nil {
			return m, fault.asError()
		}
	}
	v, err := findMounted(ctx, volumes, e.Refs)
	if err != nil {
		return m, err
	}
	for _, fault := range []*mountFault{e.checkMode(v), checkFree(v, sandbox)} {
		if fault != nil {
			return m, fault.asError()
		}
	}
	return SandboxMount{Path: e.Path, Volume: v, SubPath: e.SubPath,
		ReadOnly: e.readOnly() || v.Mode == volume.ReadOnly}, nil
}

// findMounted finds the volume that all references are of. No name is an id, so whether a reference is looked up as the one
// or the other first makes no difference.
func findMounted(ctx context.Context, volumes Volumes, refs []MountRef) (found volume.Volume, err error) {
	if len(refs) == 0 {
		return found, badMount("", "names no volume").asError()
	}
	for i, ref := range refs {
		unknown := badMount(wire.VolumeNotFound, "volume %q not found", shorten(ref.Ref)).asError()
		if !wellFormed(ref.Ref) {
			return found, unknown
		}
		v, err := volumes.Get(ctx, ref.Ref)
		switch {
		case errors.Is(err, volume.ErrNotFound), errors.Is(err, volume.ErrInvalid), err == nil && ref.ID && v.ID != ref.Ref:
			return found, unknown
		case err != nil:
			return found, err
		case i > 0 && v.ID != found.ID:
			return found, badMount("", "names two volumes, %q and %q", shorten(refs[0].Ref), shorten(ref.Ref)).asError()
		}
		found = v
	}
	return found, nil
}

// checkFree says whether a volume could be mounted now.
func checkFree(v volume.Volume, sandbox string) *mountFault {
	if v.Status != volume.StatusReady {
		return &mountFault{http.StatusConflict, statusCode(v.Status), fmt.Sprintf("volume %q is %s", nameOf(v), v.Status)}
	}
	if grant, held := v.Reservation.Holder(); held && grant.Owner != sandbox {
		return &mountFault{http.StatusConflict, wire.VolumeInUse,
			fmt.Sprintf("volume %q is in use by sandbox %s (%s)", nameOf(v), grant.Owner, v.Reservation.Phase)}
	}
	return nil
}

// clash says how a mount is in the way of another one of the request. Paths are compared with every entry before it, also
// with those that are wrong for another reason, so that all that is wrong is said at once.
func clash(m SandboxMount, e MountEntry, before []MountEntry, mounts []SandboxMount) *mountFault {
	for _, o := range before {
		if o.Path != "" && (below(e.Path, o.Path) || below(o.Path, e.Path)) {
			return badMount(wire.InvalidPath, "path %q is, holds or is inside the path of %s", shorten(e.Path), o.Where)
		}
	}
	for _, o := range mounts {
		if o.Volume.ID == m.Volume.ID && m.Volume.Mode != volume.ReadOnly {
			return badMount("", "volume %q is mounted at %q too", nameOf(m.Volume), shorten(o.Path))
		}
	}
	return nil
}
