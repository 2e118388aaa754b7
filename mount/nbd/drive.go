package nbd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/internal/exposed"
)

// acceptPause is how long a listener waits after an error, such as no more file descriptors, before it tries again.
const acceptPause = 100 * time.Millisecond

// drive is one exposed device.
type drive struct {
	server   *Server
	name     string
	path     string
	dev      *exposed.Sectors
	gate     *exposed.Gate
	readOnly bool
	listener *net.UnixListener

	hide, forget sync.Once // the steps of Close that only its first caller takes
}

var _ mount.Exposure = (*drive)(nil)

// listen makes the socket. It gets its name when only its owner can connect, and not before.
func (d *drive) listen(ctx context.Context) error {
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
func (d *drive) accept() {
	for {
		sock, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.server.log.Warn("nbd: accept", "drive", d.name, "error", err)
			select {
			case <-d.gate.Over():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if !d.gate.Open() {
			_ = sock.Close()
			continue
		}
		go d.talk(sock)
	}
}

// talk serves one client. A client that is cut off is gone for the gate's callers already; its requests end by themselves.
func (d *drive) talk(sock net.Conn) {
	defer d.gate.Release()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-d.gate.Over():
			_ = sock.Close()
		case <-over:
		}
	}()
	if err := newConn(d, sock).serve(); !ended(err) {
		d.server.log.Warn("nbd: client", "drive", d.name, "error", err)
	}
	_ = sock.Close()
}

// Path is the drive's socket.
func (d *drive) Path() string { return d.path }

// Resize takes the device's present size over: clients that connect from now on see it.
func (d *drive) Resize() error {
	if !d.gate.Enter() {
		return mount.ErrClosed
	}
	defer d.gate.Leave()
	d.dev.Resize()
	return nil
}

// Close implements mount.Exposure.
func (d *drive) Close(ctx context.Context) error {
	// The name goes first, so that nobody finds what nobody serves. Who has connected and was not accepted yet is refused.
	d.hide.Do(func() {
		if err := errors.Join(os.Remove(d.path), d.listener.Close()); err != nil {
			d.server.log.Warn("nbd: local clean-up", "drive", d.name, "error", err)
		}
	})
	err := d.gate.Close(ctx)
	d.forget.Do(func() { d.server.forget(d) })
	return err
}
