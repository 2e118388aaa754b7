package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

const (
	// maxRequest is the most that one read or write carries, and the size of the buffers that wait for one.
	maxRequest = exposed.MaxRequest
	// maxBackground is how many asynchronous requests the kernel sends at once; a loop device's are.
	maxBackground = 64
	// serverGrace is how long Close waits for the server loop after the mount is gone. It ends at once, unless a device
	// call hangs.
	serverGrace = 5 * time.Second
)

// Option changes a Server.
type Option func(*Server)

// WithLogger sets where failures are reported that no caller can be told of. The default drops them.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// Server is one FUSE mount with one file per drive. It implements mount.Exposer.
type Server struct {
	dir  string
	log  *slog.Logger
	root *root
	done chan struct{} // closed when the server loop has ended

	drives exposed.Names[*drive]
	inode  uint64 // the last one given to a drive; none is used twice; changed by one Add at a time

	closeOnce sync.Once
	closeErr  error

	lock *os.File // beside dir; held as long as the server is
}

var _ mount.Exposer = (*Server)(nil)

// New mounts a server on dir, an absolute path, and makes the directory if there is none. A dead mount that an
// earlier process left there is taken away first; any other mount point, and a directory with files, is
// mount.ErrExists. It needs root or, on machines that allow it, fusermount3; only with root can other users open
// drives.
func New(dir string, options ...Option) (*Server, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("%w: directory %q, want a clean absolute path", mount.ErrInvalid, dir)
	}
	s := &Server{
		dir:   dir,
		log:   slog.New(slog.DiscardHandler),
		root:  &root{},
		done:  make(chan struct{}),
		inode: fuse.FUSE_ROOT_ID,
	}
	for _, o := range options {
		o(s)
	}
	err := s.prepare()
	if err == nil {
		err = s.serve()
	}
	if err != nil {
		return nil, fmt.Errorf("fuse server on %s: %w", dir, errors.Join(err, s.unclaim()))
	}
	return s, nil
}

func (s *Server) serve() error {
	asRoot := os.Geteuid() == 0
	o := &fs.Options{
		// No timeouts: names and attributes are asked for each time, so that they are never stale.
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			FsName:        fsName,
			Name:          fsName,
			MaxWrite:      maxRequest,
			MaxBackground: maxBackground,
			DisableXAttrs: true,
			// Replies come from memory: splicing them through a pipe costs more calls, and files that stay open.
			DisableSplice: true,
			// Loop devices and VMMs issue several direct requests at once.
			ExtraCapabilities: fuse.CAP_ASYNC_DIO,
			AllowOther:        asRoot,
			// Root mounts by itself: fusermount3 need not be installed, and is not asked.
			DirectMountStrict: asRoot,
			// With other users allowed in, the kernel has to compare owner and mode.
			Options: []string{"default_permissions"},
			Logger:  slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		},
	}
	srv, err := connect(s.root, s.dir, o)
	if err != nil {
		return errors.Join(err, s.dropDead()) // it can fail after the mount
	}
	go func() {
		defer close(s.done)
		srv.Serve()
	}()
	if err := srv.WaitMount(); err != nil {
		// The mount is there, whatever failed after it.
		return errors.Join(err, s.abort(), s.awaitLoop())
	}
	return nil
}

// Expose implements mount.Exposer.
func (s *Server) Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	d, err := s.drives.Add(name, dev, func() (*drive, error) {
		d := newDrive(s, name, dev, readOnly)
		s.inode++
		node := s.root.NewPersistentInode(ctx, d, fs.StableAttr{Mode: unix.S_IFREG, Ino: s.inode})
		s.root.AddChild(name, node, false)
		return d, nil
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// forget frees the name of a drive that was closed.
func (s *Server) forget(d *drive) {
	d.ForgetPersistent()
	s.drives.Remove(d.name)
}

// Close closes all exposures and unmounts. It waits for clients until ctx ends; then it cuts them off, aborts the
// mount and detaches it, and returns an error that is mount.ErrDetached. Repeated calls return what the first one
// did.
func (s *Server) Close(ctx context.Context) error {
	s.closeOnce.Do(func() { s.closeErr = s.shut(ctx) })
	return s.closeErr
}

func (s *Server) shut(ctx context.Context) error {
	err := s.drives.Close(ctx)
	if uerr := s.unmount(ctx); uerr != nil {
		err = errors.Join(err, fmt.Errorf("%w: mount %s aborted: %w", mount.ErrDetached, s.dir, uerr), s.abort())
	}
	return errors.Join(err, s.awaitLoop(), s.unclaim())
}

// unmount tries until nothing is open, or ctx ends.
func (s *Server) unmount(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		// Busy: a file that was just closed is released a moment later, or somebody stands in the directory.
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// abort ends the connection, which fails every request the kernel has or will have, and detaches the mount. MNT_FORCE
// does what the abort file of fusectl does, without fusectl, which is often not mounted. It never waits for the
// server.
func (s *Server) abort() error {
	return unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

func (s *Server) awaitLoop() error {
	select {
	case <-s.done:
		return nil
	case <-time.After(serverGrace):
		return fmt.Errorf("%w: server loop of %s: a device call hangs", mount.ErrTimeout, s.dir)
	}
}
