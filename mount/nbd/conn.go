package nbd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/sandvol/sandvol/mount/internal/exposed"
)

const (
	// handshakeLimit bounds a negotiation: who connects and says nothing must not hold a drive open.
	handshakeLimit = 10 * time.Second
	// workers is how many requests of one connection run at once. Further ones wait in the socket.
	workers = 16
	// inBuffer is what is read from a socket at a time, in bytes; larger data of a write goes straight to its buffer.
	inBuffer = 64 << 10
)

// conn is one client.
type conn struct {
	drive *exposed.SocketDrive
	sock  net.Conn
	in    *bufio.Reader

	out sync.Mutex // one reply at a time
	// room bounds the memory of a connection's requests under way: two of the largest.
	room memory
}

func newConn(d *exposed.SocketDrive, sock net.Conn) *conn {
	return &conn{drive: d, sock: sock, in: bufio.NewReaderSize(sock, inBuffer), room: newMemory(2 * maxPayload)}
}

// serve talks to the client until it leaves or is cut off, and returns when nothing of it is in the device any more.
func (c *conn) serve() error {
	if err := c.sock.SetDeadline(time.Now().Add(handshakeLimit)); err != nil {
		return err
	}
	if err := c.negotiate(); err != nil {
		return err
	}
	if err := c.sock.SetDeadline(time.Time{}); err != nil {
		return err
	}
	requests := exposed.NewWorkers(workers, c.do)
	defer requests.Stop()
	for {
		r, err := c.next()
		if err != nil {
			return err
		}
		requests.Add(r)
	}
}

// next reads a request with its data.
func (c *conn) next() (request, error) {
	var head [requestSize]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return request{}, err
	}
	r, ok := decodeRequest(head[:])
	switch {
	case !ok:
		return r, fmt.Errorf("request magic %x", head[:4])
	case r.cmd == cmdDisc:
		return r, exposed.ErrLeft
	case r.cmd == cmdRead && r.n <= maxPayload:
		c.room.take(r.n)
	case r.cmd == cmdWrite && r.n > maxPayload:
		return r, fmt.Errorf("write of %d bytes", r.n) // what follows is data, too much of it to skip
	case r.cmd == cmdWrite:
		c.room.take(r.n)
		r.data = buffers.get(r.n)
		if _, err := io.ReadFull(c.in, r.data); err != nil {
			buffers.put(r.data)
			return r, err
		}
	}
	return r, nil
}

// do carries a request out and answers it.
func (c *conn) do(r request) {
	var data []byte
	errno := syscall.Errno(syscall.EIO)
	if c.drive.Gate.Enter() {
		data, errno = carryOut(c.drive, r)
		c.drive.Gate.Leave()
	}
	c.answer(r, errno, data)
	if data != nil {
		buffers.put(data)
	}
	if r.data != nil {
		buffers.put(r.data)
	}
	if (r.cmd == cmdRead || r.cmd == cmdWrite) && r.n <= maxPayload {
		c.room.give(r.n)
	}
}

func (c *conn) answer(r request, errno syscall.Errno, data []byte) {
	var head [simpleSize]byte
	putSimple(head[:], errno, r.cookie)
	c.out.Lock()
	defer c.out.Unlock()
	var err error
	if len(data) == 0 {
		_, err = c.sock.Write(head[:])
	} else {
		parts := net.Buffers{head[:], data}
		_, err = parts.WriteTo(c.sock) // in one call to the kernel
	}
	if err != nil {
		// Part of a reply may be out. The reader ends with the socket.
		_ = c.sock.Close()
	}
}

// carryOut runs a request on the device. data is a read's, from the pool.
func carryOut(d *exposed.SocketDrive, r request) (data []byte, errno syscall.Errno) {
	// Clients send FUA with commands that change nothing, too; it is allowed and without effect.
	allowed := uint16(cmdFlagFUA)
	switch r.cmd {
	case cmdRead, cmdWrite, cmdFlush, cmdTrim:
	case cmdWriteZeroes:
		allowed |= cmdFlagNoHole | cmdFlagFastZero
	default:
		return nil, syscall.EINVAL
	}
	if r.flags&^allowed != 0 {
		return nil, syscall.EINVAL
	}
	switch r.cmd {
	case cmdRead:
		return read(d, r)
	case cmdFlush:
		if d.ReadOnly {
			return nil, 0
		}
		return nil, exposed.Errno(d.Bytes.Flush())
	}
	if d.ReadOnly {
		return nil, syscall.EPERM
	}
	if d.Bytes.Outside(r.off, r.n) {
		return nil, syscall.ENOSPC
	}
	var err error
	switch {
	case r.cmd == cmdWrite:
		err = d.Bytes.Write(r.data, r.off)
	case r.n > 0:
		err = d.Bytes.Zero(r.off, r.n)
	}
	if err == nil && r.flags&cmdFlagFUA != 0 {
		err = d.Bytes.Flush()
	}
	return nil, exposed.Errno(err)
}

func read(d *exposed.SocketDrive, r request) ([]byte, syscall.Errno) {
	if r.n > maxPayload || d.Bytes.Outside(r.off, r.n) {
		return nil, syscall.EINVAL
	}
	data := buffers.get(r.n)
	n, err := d.Bytes.Read(data, r.off)
	if err == nil && int64(n) < r.n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		buffers.put(data)
		return nil, exposed.Errno(err)
	}
	return data, 0
}
