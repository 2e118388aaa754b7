package posixstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// ErrCachingMount is the class of a *MountError.
var ErrCachingMount = errors.New("posixstore: NFS mount with caches")

// MountError says that the store's directory is on an NFS mount that may answer from a cache, so that a node could miss
// what another one wrote. It answers errors.Is for ErrCachingMount.
type MountError struct {
	Mountpoint string
	// Missing is the mount options that are needed and not set.
	Missing []string
}

func (e *MountError) Error() string {
	return fmt.Sprintf("NFS mount %s lacks the options %s, without which nodes do not see each other's writes",
		e.Mountpoint, strings.Join(e.Missing, ","))
}

// Is reports whether target is ErrCachingMount.
func (e *MountError) Is(target error) bool { return target == ErrCachingMount }

// checkMount refuses the mount that a directory is on, or will be when it is made, if that may answer from a cache.
func checkMount(dir string) error {
	path, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		path, err = filepath.EvalSymlinks(filepath.Dir(dir))
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return fmt.Errorf("mount of %s: %w", path, err)
	}
	if m := topmost(mounts); m != nil {
		return checkNFS(m)
	}
	return nil
}

// topmost returns, of the mounts at and above a directory, the one that it is on: the longest path, and among mounts at
// one path the last.
func topmost(mounts []*mountinfo.Info) *mountinfo.Info {
	var top *mountinfo.Info
	for _, m := range mounts {
		if top == nil || len(m.Mountpoint) >= len(top.Mountpoint) {
			top = m
		}
	}
	return top
}

// checkNFS looks at the options of one mount. The kernel shows actimeo=0 as the four times that it stands for.
func checkNFS(m *mountinfo.Info) error {
	if m.FSType != "nfs" && m.FSType != "nfs4" {
		return nil
	}
	options := strings.Split(m.VFSOptions+","+m.Options, ",")
	has := func(all ...string) bool {
		return !slices.ContainsFunc(all, func(o string) bool { return !slices.Contains(options, o) })
	}
	var missing []string
	if !has("lookupcache=none") {
		missing = append(missing, "lookupcache=none")
	}
	if !has("noac") && !has("actimeo=0") && !has("acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0") {
		missing = append(missing, "actimeo=0")
	}
	if missing == nil {
		return nil
	}
	return &MountError{Mountpoint: m.Mountpoint, Missing: missing}
}
