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

// MaxPath is the longest mount path that is taken, in bytes.
const MaxPath = 1024

// checkPaths validates the form of a whole request and reports all that is wrong with it.
func checkPaths(mounts []Mount, limit int) error {
	errs := failures()
	if len(mounts) > limit {
		errs = multierror.Append(errs, fmt.Errorf("%w: mounts: %d drives, at most %d allowed", ErrInvalid, len(mounts), limit))
	}
	for i, m := range mounts {
		if err := checkPath(m.Path); err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		for _, other := range mounts[:i] {
			if how := overlap(m.Path, other.Path); how != "" {
				errs = multierror.Append(errs, fmt.Errorf("%w: mount path %q: %s mount path %q", ErrInvalid, m.Path, how, other.Path))
			}
		}
	}
	return errs.ErrorOrNil()
}

func checkPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Errorf("%w: mount path %q: must be absolute", ErrInvalid, shorten(p))
	case p == "/":
		return fmt.Errorf("%w: mount path %q: must not be the root", ErrInvalid, p)
	case len(p) > MaxPath || strings.ContainsRune(p, 0):
		return fmt.Errorf("%w: mount path %q of %d bytes: at most %d allowed, none of them NUL",
			ErrInvalid, shorten(p), len(p), MaxPath)
	case path.Clean(p) != p:
		return fmt.Errorf("%w: mount path %q: must be clean, as in %q", ErrInvalid, p, path.Clean(p))
	}
	for name := range strings.SplitSeq(p[1:], "/") {
		if len(name) > MaxNameLength {
			return fmt.Errorf("%w: mount path %q: one of its names has %d bytes, at most %d allowed",
				ErrInvalid, shorten(p), len(name), MaxNameLength)
		}
	}
	return nil
}

// shorten cuts a value that is to be shown in an error.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// overlap says how path a is in the way of path b, or nothing.
func overlap(a, b string) string {
	switch {
	case a == b:
		return "equals"
	case strings.HasPrefix(a, b+"/"):
		return "is inside"
	case strings.HasPrefix(b, a+"/"):
		return "holds"
	}
	return ""
}

// resolve turns a request into a set, in volume id order: that is the order in which volumes are acquired, so that two
// requests for the same volumes cannot wait for each other. Everything that is wrong is reported at once.
func (n *Node) resolve(ctx context.Context, m *volume.Manager, mounts []Mount) ([]SetDrive, error) {
	if err := checkPaths(mounts, n.maxDrives); err != nil {
		return nil, err
	}
	errs := failures()
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
