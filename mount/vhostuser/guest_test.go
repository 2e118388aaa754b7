package vhostuser_test

import (
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	statusOK, statusIOError, statusUnsupported = 0, 1, 2
)

// layOut writes a request's descriptors and returns their head: a header, data to or from the guest, and a status.
func (f *frontend) layOut(slot int, kind uint32, sector uint64, n int, toGuest bool) (head uint16) {
	h := headAt + 64*slot
	binary.LittleEndian.PutUint32(f.bytes[h:], kind)
	binary.LittleEndian.PutUint64(f.bytes[h+8:], sector)
	f.bytes[h+16] = 0xff // no status yet
	head = uint16(slot * 4)
	index := head
	put := func(addr, n int, flags, next uint16) {
		d := f.bytes[descAt+16*int(index):]
		binary.LittleEndian.PutUint64(d, guestBase+uint64(addr))
		binary.LittleEndian.PutUint32(d[8:], uint32(n))
		binary.LittleEndian.PutUint16(d[12:], flags)
		binary.LittleEndian.PutUint16(d[14:], next)
		index++
	}
	put(h, 16, 1, head+1)
	if n > 0 {
		flags := uint16(1)
		if toGuest {
			flags |= 2
		}
		// Two buffers, so that what is gathered and scattered is not only one.
		first := n
		if n > 4096 {
			first = 4096 + n/3&^511
			put(dataAt+slotData*slot, first, flags, index+1)
		}
		if rest := n - first; rest > 0 {
			put(dataAt+slotData*slot+first, rest, flags, index+1)
		} else if n <= 4096 {
			put(dataAt+slotData*slot, n, flags, index+1)
		}
	}
	put(h+16, 1, 2, 0)
	return head
}

// submit makes a head available and kicks.
func (f *frontend) submit(head uint16) {
	f.send.Lock()
	defer f.send.Unlock()
	binary.LittleEndian.PutUint16(f.bytes[availAt+4+2*int(f.avail%queueSize):], head)
	f.avail++
	f.word(availAt).Store(uint32(f.avail) << 16)
	if f.word(usedAt).Load()&1 == 0 {
		_, _ = unix.Write(f.kick, u64(1))
	}
}

// submitFor submits a head and returns what its answer arrives on.
func (f *frontend) submitFor(head uint16) chan uint32 {
	done := make(chan uint32, 1)
	f.mu.Lock()
	f.waiting[head] = done
	f.mu.Unlock()
	f.submit(head)
	return done
}

// ask carries one request out.
func (f *frontend) ask(kind uint32, off int64, out, in []byte) (status byte, err error) {
	slot := <-f.slots
	data := f.bytes[dataAt+slotData*slot:]
	copy(data, out)
	head := f.layOut(slot, kind, uint64(off/512), len(out)+len(in), len(in) > 0)
	if err := f.await(f.submitFor(head)); err != nil {
		return 0, err // the slot is the back-end's, for ever
	}
	f.mu.Lock()
	f.waiting[head] = nil
	f.mu.Unlock()
	copy(in, data)
	status = f.bytes[headAt+64*slot+16]
	f.slots <- slot
	return status, nil
}

func (f *frontend) await(done chan uint32) error {
	for {
		select {
		case <-done:
			return nil
		case <-time.After(20 * time.Millisecond):
			if err := f.watch(); err != nil {
				return err
			}
		}
	}
}

var errStatus = map[byte]error{statusOK: nil, statusIOError: syscall.EIO, statusUnsupported: syscall.EOPNOTSUPP}

func (f *frontend) do(kind uint32, off int64, out, in []byte) error {
	status, err := f.ask(kind, off, out, in)
	if err != nil {
		return err
	}
	if err, known := errStatus[status]; known {
		return err
	}
	return errors.New("no status")
}

func (f *frontend) ReadAt(p []byte, off int64) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(done+slotData, len(p))]
		if err := f.do(0, off+int64(done), nil, part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), nil
}

func (f *frontend) WriteAt(p []byte, off int64) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(done+slotData, len(p))]
		if err := f.do(1, off+int64(done), part, nil); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), nil
}

func (f *frontend) Sync() error { return f.do(4, 0, nil, nil) }

func (f *frontend) Discard(off, n int64) error { return f.do(11, 0, segment(off, n, 0), nil) }

func segment(off, n int64, flags uint32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(off/512))
	b = binary.LittleEndian.AppendUint32(b, uint32(n/512))
	return binary.LittleEndian.AppendUint32(b, flags)
}

func (f *frontend) config() ([]byte, error) {
	req := make([]byte, 12+60)
	req[4] = 60
	b, err := f.exchange(24, 1, req, true)
	if err == nil && len(b) != len(req) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return b[12:], nil
}

func (f *frontend) Size() (int64, error) {
	b, err := f.config()
	if err != nil {
		return 0, err
	}
	return 512 * int64(binary.LittleEndian.Uint64(b)), nil
}

// Close stops the queue as QEMU does, and hangs up.
func (f *frontend) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	_, _ = f.exchange(11, 1, make([]byte, 8), true) // the back-end may be gone
	err := errors.Join(f.sock.Close(), f.call.Close(), unix.Close(f.kick))
	f.readers.Wait()
	return errors.Join(err, unix.Munmap(f.bytes), unix.Close(f.fd))
}
