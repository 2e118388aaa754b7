package nbd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

const (
	// maxSocketPath is the longest path of a unix socket on Linux, without the NUL.
	maxSocketPath = 107
	// digestName is the length of a socket's name when the drive's own is too long for a path.
	digestName = 32
	// making is where a socket is before its permissions are right. It lies in the server's directory, and nobody else may
	// enter it.
	making = ".making"
)

// Option changes a Server.
type Option func(*Server)

// WithLogger sets where clients that break the protocol are reported. The default drops them.
func WithLogger(l *slog.Logger) Option { return func(s *Server) { s.log = l } }

// Server is a directory with one socket per drive. It implements mount.Exposer.
type Server struct {
	dir  string
	log  *slog.Logger
	lock *os.File // beside dir; held as long as the server is

	mu     sync.Mutex
	drives map[string]*drive // also those being closed: their name is not free yet
	closed bool
}

var _ mount.Exposer = (*Server)(nil)

// New returns a server whose sockets are in dir, an absolute path of at most 66 bytes, and makes the directory if there is none.
// Sockets that an earlier process left there are removed; anything else in it, and another process's server, is
// mount.ErrExists.
func New(dir string, options ...Option) (*Server, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("%w: directory %q, want a clean absolute path", mount.ErrInvalid, dir)
	}
	if most := maxSocketPath - digestName - len(making) - 2; len(dir) > most {
		return nil, fmt.Errorf("%w: directory %q has %d bytes, at most %d: the path of a socket is short",
			mount.ErrInvalid, dir, len(dir), most)
	}
	s := &Server{dir: dir, log: slog.New(slog.DiscardHandler), drives: map[string]*drive{}}
	for _, o := range options {
		o(s)
	}
	if err := s.prepare(); err != nil {
		if s.lock != nil {
			err = errors.Join(err, s.lock.Close())
		}
		return nil, fmt.Errorf("nbd server in %s: %w", dir, err)
	}
	return s, nil
}

// prepare takes the directory over and leaves it empty.
func (s *Server) prepare() (err error) {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o711); err != nil {
		return err
	}
	if s.lock, err = exposed.Claim(s.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(s.dir, making)); err != nil {
		return err
	}
	left, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if e.Type() != fs.ModeSocket {
			return fmt.Errorf("%w: %s in the directory", mount.ErrExists, e.Name())
		}
		if err := os.Remove(filepath.Join(s.dir, e.Name())); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(s.dir, making), 0o700)
}

// Expose implements mount.Exposer. The socket belongs to this process's user, and only that user may connect: the host
// changes its owner for a VMM that runs as another.
func (s *Server) Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	if err := mount.CheckName(name); err != nil {
		return nil, err
	}
	if err := mount.CheckDevice(dev); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, mount.ErrClosed
	}
	if s.drives[name] != nil {
		return nil, fmt.Errorf("%w: drive %s", mount.ErrExists, name)
	}
	d := &drive{server: s, name: name, path: s.socket(name), dev: exposed.NewSectors(dev), gate: exposed.NewGate(name),
		readOnly: readOnly}
	if err := d.listen(ctx); err != nil {
		return nil, fmt.Errorf("drive %s: %w", name, err)
	}
	s.drives[name] = d
	go d.accept()
	return d, nil
}

// socket is the path of a drive's socket: its name, or what a digest makes of one that is too long.
func (s *Server) socket(name string) string {
	if len(s.dir)+1+len(name) > maxSocketPath {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:digestName/2])
	}
	return s.dir + "/" + name
}

// forget frees the name of a drive that was closed.
func (s *Server) forget(d *drive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.drives, d.name)
}

// Close closes all exposures. It waits for clients until ctx ends; then it cuts them off and returns an error that is
// mount.ErrDetached. It may be repeated.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	open := make([]*drive, 0, len(s.drives))
	for _, d := range s.drives {
		open = append(open, d)
	}
	s.mu.Unlock()
	errs := make([]error, len(open))
	var wg sync.WaitGroup
	for i, d := range open {
		wg.Go(func() { errs[i] = d.Close(ctx) })
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, making)), s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}
