package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// TargetError says why a directory cannot be mounted on. It is ErrInvalid or ErrExists, or an error of the system.
type TargetError struct {
	Target string
	Reason string
	Class  error
}

func (e *TargetError) Error() string {
	return fmt.Sprintf("target %s: %s: %v", e.Target, e.Reason, e.Class)
}

// Unwrap answers errors.Is for the class.
func (e *TargetError) Unwrap() error { return e.Class }

// target is a directory to mount on, held open: whoever may rename its parents, as a sandbox can, changes nothing any
// more.
type target struct {
	path    string
	fd      int      // O_PATH
	created []string // directories made for it, outermost first
}

// openTarget walks to path, component by component, and makes what is missing if create is set. What it made is gone
// again when it fails.
func openTarget(path string, create, overlay bool) (*target, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return nil, &TargetError{path, "not a clean absolute path below the root", ErrInvalid}
	}
	t := &target{path: path, fd: -1}
	err := t.walk(create)
	if err == nil {
		err = t.check(overlay)
	}
	if err != nil {
		t.close()
		removeDirs(t.created)
		return nil, err
	}
	return t, nil
}

func (t *target) walk(create bool) error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return t.failed("open /", err)
	}
	at := ""
	for name := range strings.SplitSeq(t.path[1:], "/") {
		at += "/" + name
		next, made, err := step(fd, name, create)
		if made {
			t.created = append(t.created, at)
		}
		if err != nil {
			err = t.explain(fd, name, at, err)
			_ = unix.Close(fd) // O_PATH: nothing is pending
			return err
		}
		_ = unix.Close(fd)
		fd = next
	}
	t.fd = fd
	return nil
}

// step opens one directory below dir, which is not followed if it is a symbolic link.
func step(dir int, name string, create bool) (fd int, made bool, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Openat(dir, name, flags, 0)
	if !create || !errors.Is(err, unix.ENOENT) {
		return fd, false, err
	}
	err = unix.Mkdirat(dir, name, 0o755)
	made = err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) { // somebody else may have made it at this moment
		return -1, false, err
	}
	fd, err = unix.Openat(dir, name, flags, 0)
	return fd, made, err
}

// explain turns ENOTDIR, which stands for symbolic links as well as for files, into what it means.
func (t *target) explain(dir int, name, at string, err error) error {
	if !errors.Is(err, unix.ENOTDIR) {
		return t.failed("open "+at, err)
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &TargetError{t.path, at + " is a symbolic link, which could lead out of the sandbox", ErrInvalid}
	}
	return &TargetError{t.path, at + " is not a directory", ErrInvalid}
}

// check refuses to hide what is there: another mount always, files unless told otherwise.
func (t *target) check(overlay bool) error {
	var st unix.Statx_t
	if err := unix.Statx(t.fd, "", unix.AT_EMPTY_PATH, 0, &st); err != nil {
		return t.failed("stat", err)
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return &TargetError{t.path, "a mount point already", ErrExists}
	}
	if overlay {
		return nil
	}
	name, err := firstEntry(t.fd)
	if err != nil {
		return t.failed("list", err)
	}
	if name != "" {
		return &TargetError{t.path, fmt.Sprintf("not empty: holds %q", name), ErrExists}
	}
	return nil
}

// firstEntry returns a name in the directory, or "".
func firstEntry(dir int) (string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if n <= 0 || err != nil {
			return "", err
		}
		if _, _, names := unix.ParseDirent(buf[:n], -1, nil); len(names) > 0 { // leaves out . and ..
			return names[0], nil
		}
	}
}

func (t *target) failed(what string, err error) error { return &TargetError{t.path, what, err} }

func (t *target) close() {
	if t.fd >= 0 {
		_ = unix.Close(t.fd) // O_PATH: nothing is pending
		t.fd = -1
	}
}

// removeDirs removes directories that were made for a mount, innermost first, unless somebody has put something into
// them.
func removeDirs(dirs []string) {
	for i := len(dirs) - 1; i >= 0; i-- {
		if unix.Rmdir(dirs[i]) != nil {
			return
		}
	}
}
