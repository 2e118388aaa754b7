package vhostuser

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// maxRegions is how many pieces of memory a VMM may share.
const maxRegions = 64

// region is one piece of the guest's memory, mapped here.
type region struct {
	guest uint64 // its address in the guest
	user  uint64 // its address in the VMM
	bytes []byte
	whole []byte // the mapping, which may begin before
	firm  bool   // it cannot shrink, so that touching it never faults
}

const regionSize = 32 // bytes of its description

// newRegion maps what the VMM describes. It takes the descriptor over.
func newRegion(b []byte, fd int) (*region, error) {
	defer unix.Close(fd)
	r := &region{guest: binary.LittleEndian.Uint64(b), user: binary.LittleEndian.Uint64(b[16:])}
	size, off := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[24:])
	if size == 0 || size > math.MaxInt64-off || r.guest > math.MaxUint64-size || r.user > math.MaxUint64-size {
		return nil, fmt.Errorf("memory region of %d bytes at %#x, offset %#x", size, r.guest, off)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	// What lies past the end of a file faults when it is touched.
	if st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Size) < off+size {
		return nil, fmt.Errorf("memory region of %d bytes at offset %d of a file of %d", size, off, st.Size)
	}
	page := uint64(unix.Getpagesize())
	begin := off &^ (page - 1)
	whole, err := unix.Mmap(fd, int64(begin), int(off-begin+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of the guest's memory: %w", size, err)
	}
	// A core dump of this process is to hold nobody's memory but its own.
	_ = unix.Madvise(whole, unix.MADV_DONTDUMP)
	r.whole, r.bytes = whole, whole[off-begin:]
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	r.firm = err == nil && seals&unix.F_SEAL_SHRINK != 0
	return r, nil
}

func (r *region) unmap() { _ = unix.Munmap(r.whole) }

// memory is all that the VMM has shared. It is replaced, and never changed, while queues use it.
type memory []*region

// guest returns the n bytes at a guest's address; nil if they are not all in one region.
func (m memory) guest(addr, n uint64) []byte {
	for _, r := range m {
		if b := within(r.bytes, r.guest, addr, n); b != nil {
			return b
		}
	}
	return nil
}

// firm reports whether none of it can be taken away.
func (m memory) firm() bool {
	for _, r := range m {
		if !r.firm {
			return false
		}
	}
	return true
}

// user returns the n bytes at an address of the VMM; nil if they are not all in one region.
func (m memory) user(addr, n uint64) []byte {
	for _, r := range m {
		if b := within(r.bytes, r.user, addr, n); b != nil {
			return b
		}
	}
	return nil
}

func within(b []byte, base, addr, n uint64) []byte {
	size := uint64(len(b))
	if addr < base || addr-base > size || n > size-(addr-base) {
		return nil
	}
	off := addr - base
	return b[off : off+n : off+n]
}

// setMemTable replaces all regions.
func (s *session) setMemTable(m *message) error {
	if len(m.body) < 8 {
		return fmt.Errorf("memory table of %d bytes", len(m.body))
	}
	n := int(binary.LittleEndian.Uint32(m.body))
	if n > maxFDs || n != len(m.fds) || len(m.body) < 8+n*regionSize {
		return fmt.Errorf("memory table of %d regions with %d descriptors in %d bytes", n, len(m.fds), len(m.body))
	}
	var next memory
	for i := range n {
		fd := m.fds[0]
		m.fds = m.fds[1:]
		r, err := newRegion(m.body[8+i*regionSize:], fd)
		if err != nil {
			next.unmap()
			return err
		}
		next = append(next, r)
	}
	return s.replaceMemory(next, s.memory)
}

func (m memory) unmap() {
	for _, r := range m {
		r.unmap()
	}
}

// addMemReg adds one region; its description follows 8 bytes of padding.
func (s *session) addMemReg(m *message) error {
	fd := m.take()
	if fd < 0 || len(m.body) < 8+regionSize || len(s.memory) == maxRegions {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return fmt.Errorf("memory region %d: %d bytes, descriptor %t", len(s.memory)+1, len(m.body), fd >= 0)
	}
	r, err := newRegion(m.body[8:], fd)
	if err != nil {
		return err
	}
	return s.replaceMemory(append(memory{r}, s.memory...), nil)
}

// remMemReg takes the region away that has the same addresses and size.
func (s *session) remMemReg(m *message) error {
	if len(m.body) < 8+regionSize {
		return fmt.Errorf("memory region of %d bytes", len(m.body))
	}
	b := m.body[8:]
	var next, gone memory
	for _, r := range s.memory {
		if r.guest == binary.LittleEndian.Uint64(b) && uint64(len(r.bytes)) == binary.LittleEndian.Uint64(b[8:]) &&
			r.user == binary.LittleEndian.Uint64(b[16:]) {
			gone = append(gone, r)
			continue
		}
		next = append(next, r)
	}
	if len(gone) != 1 {
		return fmt.Errorf("no such memory region at %#x", binary.LittleEndian.Uint64(b))
	}
	return s.replaceMemory(next, gone)
}

// replaceMemory lets the queues go on with other memory, and unmaps what is gone when nothing uses it any more.
func (s *session) replaceMemory(next, gone memory) error {
	running := s.stopQueues()
	s.memory = next
	gone.unmap()
	return s.startQueues(running)
}
