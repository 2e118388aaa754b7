package mount

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"github.com/sandvol/sandvol/volume"
)

// ID names a sandbox. The id is chosen by the host, 1 to 128 characters of A-Z a-z 0-9 _ -; it is the owner in the volumes'
// reservations.
type ID struct {
	Tenant  string
	Sandbox string
}

func (id ID) String() string { return id.Tenant + "/" + id.Sandbox }

// Mount asks for a volume at a path of the sandbox.
type Mount struct {
	// Path is absolute and clean, and neither "/" nor inside another drive's path.
	Path string
	// Volume is an id or a name.
	Volume string
	// ReadOnly keeps the sandbox from writing an exclusive volume. An ro volume is never written.
	ReadOnly bool
}

// DefaultMaxDrives is how many drives a sandbox may have.
const DefaultMaxDrives = 24

// maxPath is the longest mount path, in bytes.
const maxPath = 1024

// checkPaths validates the form of a whole request and reports all that is wrong with it.
func checkPaths(mounts []Mount, limit int) error {
	var errs *multierror.Error
	if len(mounts) > limit {
		errs = multierror.Append(errs, fmt.Errorf("%w: mounts: %d drives, at most %d allowed", ErrInvalid, len(mounts), limit))
	}
	for i, m := range mounts {
		if err := checkPath(m.Path); err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		for _, other := range mounts[:i] {
			if m.Path == other.Path || inside(m.Path, other.Path) || inside(other.Path, m.Path) {
				errs = multierror.Append(errs, fmt.Errorf("%w: mount path %q: equals, holds or is inside mount path %q",
					ErrInvalid, m.Path, other.Path))
			}
		}
	}
	return errs.ErrorOrNil()
}

func checkPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Errorf("%w: mount path %q: must be absolute", ErrInvalid, p)
	case p == "/" || path.Clean(p) != p:
		return fmt.Errorf("%w: mount path %q: must be clean, as in %q, and not the root", ErrInvalid, p, path.Clean(p))
	case len(p) > maxPath || strings.ContainsRune(p, 0):
		return fmt.Errorf("%w: mount path of %d bytes: at most %d allowed, none of them NUL", ErrInvalid, len(p), maxPath)
	}
	return nil
}

func inside(p, dir string) bool { return strings.HasPrefix(p, dir+"/") }

// resolve turns a request into a set, in volume id order: that is the order in which volumes are acquired, so that two
// requests for the same volumes cannot wait for each other. Everything that is wrong is reported at once.
func (n *Node) resolve(ctx context.Context, m *volume.Manager, mounts []Mount) ([]SetDrive, error) {
	if err := checkPaths(mounts, n.maxDrives); err != nil {
		return nil, err
	}
	var errs *multierror.Error
	drives := make([]SetDrive, 0, len(mounts))
	for _, req := range mounts {
		v, err := m.Get(ctx, req.Volume)
		if err == nil && v.Status != volume.StatusReady {
			err = &volume.StatusError{Kind: "volume", ID: v.ID, Status: v.Status, Op: "mount"}
		}
		if err != nil {
			errs = multierror.Append(errs, fmt.Errorf("mount path %q: %w", req.Path, err))
			continue
		}
		if slices.ContainsFunc(drives, func(d SetDrive) bool { return d.Volume == v.ID }) {
			errs = multierror.Append(errs, fmt.Errorf("%w: mount path %q: volume %s is mounted twice", ErrInvalid, req.Path, v.ID))
		}
		drives = append(drives, SetDrive{Path: req.Path, Volume: v.ID, Mode: v.Mode,
			ReadOnly: req.ReadOnly || v.Mode == volume.ReadOnly})
	}
	if err := errs.ErrorOrNil(); err != nil {
		return nil, err
	}
	sortDrives(drives)
	return drives, nil
}

func sortDrives(drives []SetDrive) {
	slices.SortFunc(drives, func(a, b SetDrive) int { return cmp.Compare(a.Volume, b.Volume) })
}
