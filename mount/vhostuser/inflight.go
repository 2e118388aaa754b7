package vhostuser

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inflight is the part of one queue in the memory in which requests under way are noted, so that whoever serves the queue after
// this process can carry them out again. Its layout is the protocol's: a header, features u64, version u16, size u16, last
// batch head u16, used index u16; then for each descriptor a byte that says whether it is under way, 5 bytes of padding,
// next u16 and counter u64. What the next process has to find in order is written by single atomic stores.
type inflight []byte

const (
	inflightHeader  = 16
	inflightEntry   = 16
	inflightAlign   = 64
	inflightVersion = 1
)

// inflightSize is what one queue takes.
func inflightSize(num uint16) uint64 {
	n := uint64(inflightHeader) + uint64(num)*inflightEntry
	return (n + inflightAlign - 1) &^ (inflightAlign - 1)
}

func word(b []byte, off int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[off])) }

// state is version and size, the last head to be completed, and the used index at that time.
func (f inflight) state() (head, used uint16) {
	w := word(f, 8).Load()
	return uint16(w >> 32), uint16(w >> 48)
}

func (f inflight) setState(num, head, used uint16) {
	word(f, 8).Store(inflightVersion | uint64(num)<<16 | uint64(head)<<32 | uint64(used)<<48)
}

func (f inflight) entry(head uint16) int { return inflightHeader + int(head)*inflightEntry }

// begin notes that a request is under way.
func (f inflight) begin(head uint16, counter uint64) {
	word(f, f.entry(head)+8).Store(counter)
	word(f, f.entry(head)).Store(1)
}

// done notes that it is not. The answer is in the used ring already, at used.
func (f inflight) done(num, head, used uint16) {
	word(f, f.entry(head)).Store(0)
	f.setState(num, head, used)
}

// left returns the requests that were under way when the process before died, oldest first. used is the ring's index.
func (f inflight) left(num, used uint16) (heads []uint16, counter uint64) {
	if w := word(f, 8).Load(); uint16(w) == 0 { // a new one
		f.setState(num, 0, used)
		return nil, 0
	}
	if head, noted := f.state(); noted != used && head < num {
		// It died between the answer and the note of it.
		word(f, f.entry(head)).Store(0)
		f.setState(num, head, used)
	}
	for h := range num {
		if f[f.entry(h)] != 0 {
			heads = append(heads, h)
		}
		counter = max(counter, word(f, f.entry(h)+8).Load())
	}
	slices.SortFunc(heads, func(a, b uint16) int {
		return cmp.Compare(word(f, f.entry(a)+8).Load(), word(f, f.entry(b)+8).Load())
	})
	return heads, counter
}

// inflightArea is the memory of all queues, as the VMM keeps it.
type inflightArea struct {
	mapping []byte
	num     uint16 // descriptors of a queue
	queues  uint16
}

// of returns one queue's part, or nil.
func (a *inflightArea) of(index int, num uint32) inflight {
	if a == nil || index >= int(a.queues) || num > uint32(a.num) {
		return nil
	}
	size := inflightSize(a.num)
	return inflight(a.mapping[uint64(index)*size:][:size])
}

// getInflight makes the memory and hands it to the VMM.
func (s *session) getInflight(m *message) error {
	num, queues, err := inflightShape(m)
	if err != nil {
		return err
	}
	size := inflightSize(num) * uint64(queues)
	fd, err := unix.MemfdCreate("sandvol-inflight", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return err
	}
	if err := s.mapInflight(fd, size, 0, num, queues); err != nil {
		return err
	}
	body := append(u64(size), u64(0)...)
	body = binary.LittleEndian.AppendUint16(body, queues)
	body = binary.LittleEndian.AppendUint16(body, num)
	return s.answer(m.request, append(body, 0, 0, 0, 0), fd)
}

// setInflight takes back what an earlier back-end of this VMM noted.
func (s *session) setInflight(m *message) error {
	fd := m.take()
	if fd < 0 {
		return fmt.Errorf("inflight memory without a descriptor")
	}
	defer unix.Close(fd)
	num, queues, err := inflightShape(m)
	if err != nil {
		return err
	}
	size, off := binary.LittleEndian.Uint64(m.body), binary.LittleEndian.Uint64(m.body[8:])
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if size < inflightSize(num)*uint64(queues) || off%uint64(unix.Getpagesize()) != 0 || off > uint64(st.Size) ||
		size > uint64(st.Size)-off {
		return fmt.Errorf("inflight memory of %d bytes at %d of %d", size, off, st.Size)
	}
	return s.mapInflight(fd, size, off, num, queues)
}

func inflightShape(m *message) (num, queues uint16, err error) {
	if len(m.body) < 20 {
		return 0, 0, fmt.Errorf("request %d has %d bytes, want 20", m.request, len(m.body))
	}
	queues, num = binary.LittleEndian.Uint16(m.body[16:]), binary.LittleEndian.Uint16(m.body[18:])
	if queues == 0 || queues > MaxQueues || num == 0 || num > maxQueueSize {
		return 0, 0, fmt.Errorf("inflight memory for %d queues of %d", queues, num)
	}
	return num, queues, nil
}

func (s *session) mapInflight(fd int, size, off uint64, num, queues uint16) error {
	b, err := unix.Mmap(fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	running := s.stopQueues()
	s.inflight.unmap()
	s.inflight = &inflightArea{mapping: b, num: num, queues: queues}
	return s.startQueues(running)
}

func (a *inflightArea) unmap() {
	if a != nil {
		_ = unix.Munmap(a.mapping)
	}
}
