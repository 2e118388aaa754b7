package vhostuser

import (
	"context"
	"log/slog"
	"net"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

// Option changes a Server.
type Option func(*settings)

type settings struct{ log *slog.Logger }

// WithLogger sets where VMMs and guests that break the protocol are reported. The default drops them.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// Server is a directory with one socket per drive. It implements mount.Exposer.
type Server struct{ sockets *exposed.Sockets }

var _ mount.Exposer = (*Server)(nil)

// MaxDir is the longest path of a server's directory, in bytes: the paths of sockets are short.
const MaxDir = exposed.MaxSocketDir

// New returns a server whose sockets are in dir, an absolute path of at most MaxDir bytes, and makes the directory if there is
// none. Sockets that an earlier process left there are removed; anything else in it, and another process's server, is
// mount.ErrExists.
func New(dir string, options ...Option) (*Server, error) {
	s := settings{log: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(&s)
	}
	sockets, err := exposed.NewSockets("vhost-user", dir, s.log, func(d *exposed.SocketDrive, vmm *net.UnixConn) error {
		return newSession(d, vmm, s.log).serve()
	})
	if err != nil {
		return nil, err
	}
	return &Server{sockets}, nil
}

// Expose implements mount.Exposer. The socket belongs to this process's user, and only that user may connect: the host
// changes its owner for a VMM that runs as another.
func (s *Server) Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	return s.sockets.Expose(ctx, name, dev, readOnly)
}

// Close closes all exposures. It waits for VMMs until ctx ends; then it cuts them off and returns an error that is
// mount.ErrDetached. It may be repeated.
func (s *Server) Close(ctx context.Context) error { return s.sockets.Close(ctx) }
