package exposed

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sandvol/sandvol/mount"
)

// ErrLeft is returned by a Talk whose client has ended it as its protocol wants.
var ErrLeft = errors.New("the client left")

// acceptPause is how long a listener waits after an error, such as no more file descriptors, before it tries again.
const acceptPause = 100 * time.Millisecond

// SocketDrive is one device behind one socket. Its users enter the gate before they use the bytes.
type SocketDrive struct {
	Name     string
	Bytes    *Sectors
	Gate     *Gate
	ReadOnly bool

	server   *Sockets
	path     string
	listener *net.UnixListener

	mu      sync.Mutex
	resized map[*func()]bool

	hide, release sync.Once // the steps of Close that only its first caller takes
}

var _ mount.Exposure = (*SocketDrive)(nil)

// listen makes the socket. It gets its name when only its owner can connect, and not before.
func (d *SocketDrive) listen(ctx context.Context) error {
	at := filepath.Join(d.server.dir, making, filepath.Base(d.path))
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", at)
	if err != nil {
		return err
	}
	d.listener = l.(*net.UnixListener)
	d.listener.SetUnlinkOnClose(false) // it will be called otherwise by then
	err = os.Chmod(at, 0o600)
	if err == nil {
		err = os.Rename(at, d.path)
	}
	if err != nil {
		return errors.Join(err, l.Close(), os.Remove(at))
	}
	return nil
}

// accept serves clients until the listener is closed.
func (d *SocketDrive) accept() {
	for {
		client, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.server.log.Warn("accept", "protocol", d.server.protocol, "drive", d.Name, "error", err)
			select {
			case <-d.Gate.Over():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if !d.Gate.Open() {
			_ = client.Close()
			continue
		}
		go d.serve(client)
	}
}

// serve talks to one client. A client that is cut off is gone for the gate's callers already; its requests end by themselves.
func (d *SocketDrive) serve(client *net.UnixConn) {
	defer d.Gate.Release()
	left := make(chan struct{})
	defer close(left)
	go func() {
		select {
		case <-d.Gate.Over():
			_ = client.Close()
		case <-left:
		}
	}()
	if err := d.server.talk(d, client); !ended(err) {
		d.server.log.Warn("client", "protocol", d.server.protocol, "drive", d.Name, "error", err)
	}
	_ = client.Close()
}

// ended reports whether an error is one of the ways in which connections end every day.
func ended(err error) bool {
	return err == nil || errors.Is(err, ErrLeft) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Path is the drive's socket.
func (d *SocketDrive) Path() string { return d.path }

// OnResize has f called whenever the size has changed, until stop is called.
func (d *SocketDrive) OnResize(f func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resized == nil {
		d.resized = map[*func()]bool{}
	}
	d.resized[&f] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.resized, &f)
	}
}

// Resize takes the device's present size over.
func (d *SocketDrive) Resize() error {
	if !d.Gate.Enter() {
		return mount.ErrClosed
	}
	defer d.Gate.Leave()
	d.Bytes.Resize()
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.resized {
		(*f)()
	}
	return nil
}

// Close implements mount.Exposure.
func (d *SocketDrive) Close(ctx context.Context) error {
	// The name goes first, so that nobody finds what nobody serves. Who has connected and was not accepted yet is refused.
	d.hide.Do(func() {
		if err := errors.Join(os.Remove(d.path), d.listener.Close()); err != nil {
			d.server.log.Warn("local clean-up", "protocol", d.server.protocol, "drive", d.Name, "error", err)
		}
	})
	err := d.Gate.Close(ctx)
	d.release.Do(func() { d.server.drives.Remove(d.Name) })
	return err
}
