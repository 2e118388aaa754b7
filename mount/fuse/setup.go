package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
)

// prepare takes the directory over and leaves it empty, with nothing mounted on it.
func (s *Server) prepare() error {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o711); err != nil {
		return err
	}
	// With the lock it is known, without asking it, that a mount on the directory is a dead process's: asking can hang, as long
	// as a child that inherited the connection keeps it open.
	lock, err := exposed.Claim(s.dir)
	if err != nil {
		return err
	}
	s.lock = lock
	if err := s.dropDead(); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w: %s in the directory", mount.ErrExists, entries[0].Name())
	}
	return nil
}

// unclaim gives the directory up.
func (s *Server) unclaim() error {
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

// dropDead takes away mounts of ours whose process died, of which several can be stacked. It looks at the mount table and
// never at the mounts.
func (s *Server) dropDead() error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(s.dir))
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, filepath.Base(s.dir))
	mounts, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != dir, false })
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if mounts[i].FSType != "fuse."+fsName {
			return fmt.Errorf("%w: a mount point, of type %s", mount.ErrExists, mounts[i].FSType)
		}
		if err := s.abort(); err != nil {
			return fmt.Errorf("dead mount: %w", err)
		}
	}
	return nil
}

// fsName is the name and type of the mount in the mount table.
const fsName = "sandvol"

// connect mounts and keeps the connection from the children of this process: a sandbox that inherited it could answer
// requests for other sandboxes' drives, and would keep the mount alive after this process has died.
func connect(root fs.InodeEmbedder, dir string, o *fs.Options) (*fuse.Server, error) {
	if o.DirectMountStrict {
		// No child is started between open and fcntl. (Without root, fusermount3 is a child, and what it sends back is
		// closed on exec from the start.)
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
	}
	srv, err := fuse.NewServer(fs.NewNodeFS(root, o), dir, &o.MountOptions)
	if err != nil {
		return nil, err
	}
	return srv, closeOnExec("/dev/fuse")
}

// closeOnExec marks every descriptor of this process that is open on a path.
func closeOnExec(path string) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range fds {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || link != path {
			continue // closed since: that of the listing itself, or somebody else's
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && !errors.Is(err, unix.EBADF) {
			return err
		}
	}
	return nil
}
