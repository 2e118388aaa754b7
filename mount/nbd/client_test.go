package nbd_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/sandvol/sandvol/mount/mounttest"
)

// client is an NBD client of its own, that shares nothing with the server but the protocol's description.
type client struct {
	path string
	sock net.Conn
	size int64
	mode uint16

	send sync.Mutex
	mu   sync.Mutex
	next uint64
	open map[uint64]*call
	err  error // why no more answers come
	done chan struct{}
}

type call struct {
	into  []byte // of a read
	errno uint32
	ready chan struct{}
}

var errGone = errors.New("connection is gone")

func dial(path string, _ bool) (mounttest.Client, error) { return dialExport(path, "") }

// dialExport connects and chooses an export with GO.
func dialExport(path, export string) (*client, error) {
	sock, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	c := &client{path: path, sock: sock, open: map[uint64]*call{}, done: make(chan struct{})}
	in := bufio.NewReaderSize(sock, 256<<10)
	if err := c.greet(in, export); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	go c.receive(in)
	return c, nil
}

func (c *client) greet(in io.Reader, export string) error {
	var hello [18]byte
	if _, err := io.ReadFull(in, hello[:]); err != nil {
		return err
	}
	if string(hello[:16]) != "NBDMAGICIHAVEOPT" || hello[17]&3 != 3 {
		return fmt.Errorf("greeting %q", hello)
	}
	b := []byte{0, 0, 0, 3}
	b = append(b, "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, 7) // GO
	b = binary.BigEndian.AppendUint32(b, uint32(6+len(export)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(export)))
	b = append(b, export...)
	b = append(b, 0, 0)
	if _, err := c.sock.Write(b); err != nil {
		return err
	}
	for {
		var head [20]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		data := make([]byte, binary.BigEndian.Uint32(head[16:]))
		if _, err := io.ReadFull(in, data); err != nil {
			return err
		}
		switch kind := binary.BigEndian.Uint32(head[12:]); {
		case kind == 1:
			return nil
		case kind == 3 && binary.BigEndian.Uint16(data) == 0:
			c.size, c.mode = int64(binary.BigEndian.Uint64(data[2:])), binary.BigEndian.Uint16(data[10:])
		case kind>>31 == 1:
			return fmt.Errorf("option refused: %#x", kind)
		}
	}
}

func (c *client) receive(in io.Reader) {
	defer close(c.done)
	err := c.answers(in)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(errGone, err)
	for _, k := range c.open {
		close(k.ready)
	}
	c.open = nil
}

func (c *client) answers(in io.Reader) error {
	for {
		var head [16]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		if m := binary.BigEndian.Uint32(head[:]); m != 0x67446698 {
			return fmt.Errorf("reply magic %#x", m)
		}
		cookie := binary.BigEndian.Uint64(head[8:])
		c.mu.Lock()
		k := c.open[cookie]
		delete(c.open, cookie)
		c.mu.Unlock()
		if k == nil {
			return fmt.Errorf("answer to nothing, cookie %d", cookie)
		}
		if k.errno = binary.BigEndian.Uint32(head[4:]); k.errno == 0 {
			if _, err := io.ReadFull(in, k.into); err != nil {
				return err
			}
		} else {
			k.into = nil
		}
		k.errno |= 1 << 31 // answered
		close(k.ready)
	}
}

// ask sends one command and waits for its answer.
func (c *client) ask(cmd, flags uint16, off int64, n uint32, data, into []byte) error {
	k := &call{into: into, ready: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.next++
	cookie := c.next
	c.open[cookie] = k
	c.mu.Unlock()
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 28), 0x25609513)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, cmd)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(off))
	b = binary.BigEndian.AppendUint32(b, n)
	c.send.Lock()
	parts := net.Buffers{b, data}
	_, err := parts.WriteTo(c.sock)
	c.send.Unlock()
	if err != nil {
		return err
	}
	<-k.ready
	switch {
	case k.errno>>31 == 0:
		return errGone
	case k.errno != 1<<31:
		return syscall.Errno(k.errno &^ (1 << 31))
	}
	return nil
}

func (c *client) ReadAt(p []byte, off int64) (int, error) {
	if err := c.ask(0, 0, off, uint32(len(p)), nil, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *client) WriteAt(p []byte, off int64) (int, error) {
	if err := c.ask(1, 0, off, uint32(len(p)), p, nil); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *client) Sync() error                { return c.ask(3, 0, 0, 0, nil, nil) }
func (c *client) Discard(off, n int64) error { return c.ask(4, 0, off, uint32(n), nil, nil) }

// Size connects anew: a connected client is never told.
func (c *client) Size() (int64, error) {
	again, err := dialExport(c.path, "")
	if err != nil {
		return 0, err
	}
	return again.size, again.Close()
}

// Close disconnects as clients are asked to: with a command that is not answered.
func (c *client) Close() error {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 28), 0x25609513)
	b = binary.BigEndian.AppendUint32(b, 2)
	b = append(b, make([]byte, 20)...)
	c.send.Lock()
	_, _ = c.sock.Write(b) // the server may be gone
	c.send.Unlock()
	<-c.done // it closes its end
	return c.sock.Close()
}
