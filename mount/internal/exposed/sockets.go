package exposed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandvol/sandvol/mount"
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

// MaxSocketDir is the longest path, in bytes, of a directory for sockets.
const MaxSocketDir = maxSocketPath - digestName - len(making) - 2

// Talk serves one client of a drive until it leaves. The connection is closed when the drive is cut off, and after Talk.
type Talk func(d *SocketDrive, client *net.UnixConn) error

// Sockets is a directory with one unix socket per drive. It implements mount.Exposer.
type Sockets struct {
	protocol string // in log records
	dir      string
	talk     Talk
	log      *slog.Logger
	lock     *os.File // beside dir; held as long as the server is

	drives Names[*SocketDrive]
	close  sync.Once
}

var _ mount.Exposer = (*Sockets)(nil)

// NewSockets takes over a directory, an absolute path, and makes it if there is none. Sockets that an earlier process left
// there are removed; anything else in it, and another process's server, is mount.ErrExists.
func NewSockets(protocol, dir string, log *slog.Logger, talk Talk) (*Sockets, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("%w: directory %q, want a clean absolute path", mount.ErrInvalid, dir)
	}
	if len(dir) > MaxSocketDir {
		return nil, fmt.Errorf("%w: directory %q has %d bytes, at most %d: the path of a socket is short",
			mount.ErrInvalid, dir, len(dir), MaxSocketDir)
	}
	s := &Sockets{protocol: protocol, dir: dir, talk: talk, log: log}
	if err := s.prepare(); err != nil {
		if s.lock != nil {
			err = errors.Join(err, s.lock.Close())
		}
		return nil, fmt.Errorf("%s server in %s: %w", protocol, dir, err)
	}
	return s, nil
}

// prepare takes the directory over and leaves it empty.
func (s *Sockets) prepare() (err error) {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o711); err != nil {
		return err
	}
	if s.lock, err = Claim(s.dir); err != nil {
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
func (s *Sockets) Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	d, err := s.drives.Add(name, dev, func() (*SocketDrive, error) {
		d := &SocketDrive{Name: name, Bytes: NewSectors(dev), Gate: NewGate(name), ReadOnly: readOnly, server: s, path: s.socket(name)}
		return d, d.listen(ctx)
	})
	if err != nil {
		return nil, err
	}
	go d.accept()
	return d, nil
}

// socket is the path of a drive's socket: its name, or what a digest makes of one that is too long.
func (s *Sockets) socket(name string) string {
	if len(s.dir)+1+len(name) > maxSocketPath {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:digestName/2])
	}
	return s.dir + "/" + name
}

// Close closes all exposures. It waits for clients until ctx ends; then it cuts them off and returns an error that is
// mount.ErrDetached. It may be repeated.
func (s *Sockets) Close(ctx context.Context) error {
	err := s.drives.Close(ctx)
	s.close.Do(func() {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, making)), s.lock.Close())
	})
	return err
}
