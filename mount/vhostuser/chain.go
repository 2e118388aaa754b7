package vhostuser

import (
	"encoding/binary"
	"fmt"
)

// Flags of a descriptor.
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4

	descSize = 16
	// maxIndirect bounds the table that one descriptor may point to. Drivers use no more than a queue holds.
	maxIndirect = 1024
)

// chain is one request: what the guest wrote, and where it waits for the answer.
type chain struct {
	head uint16
	out  [][]byte // readable, from the guest
	in   [][]byte // writable, to the guest
}

// chainAt follows the descriptors from head. What it returns lies in the guest's memory, all of it, however the descriptors
// looked; err says what is wrong with them, and the chain then has what came before.
func (q *queue) chainAt(head uint16) (chain, error) {
	c := chain{head: head}
	err := q.walk(&c, q.desc, head, false)
	return c, err
}

// walk follows descriptors through one table. A chain cannot be longer than its table, or it goes in circles.
func (q *queue) walk(c *chain, table []byte, index uint16, indirect bool) error {
	size := len(table) / descSize
	for range size {
		if int(index) >= size {
			return fmt.Errorf("descriptor %d of %d", index, size)
		}
		// Each field is read once: the guest may change them meanwhile.
		var d [descSize]byte
		copy(d[:], table[int(index)*descSize:])
		addr, n := binary.LittleEndian.Uint64(d[:]), uint64(binary.LittleEndian.Uint32(d[8:]))
		flags := binary.LittleEndian.Uint16(d[12:])
		if flags&descIndirect != 0 {
			inner := q.memory.guest(addr, n)
			if indirect || flags&descNext != 0 || n%descSize != 0 || n/descSize > maxIndirect || inner == nil {
				return fmt.Errorf("indirect descriptors: %d bytes at %#x, flags %#x", n, addr, flags)
			}
			return q.walk(c, inner, 0, true)
		}
		if err := q.add(c, addr, n, flags); err != nil {
			return err
		}
		if flags&descNext == 0 {
			return nil
		}
		index = binary.LittleEndian.Uint16(d[14:])
	}
	return fmt.Errorf("a chain longer than its table of %d descriptors", size)
}

// add takes one buffer into the chain.
func (q *queue) add(c *chain, addr, n uint64, flags uint16) error {
	b := q.memory.guest(addr, n)
	switch {
	case b == nil:
		return fmt.Errorf("%d bytes at %#x are not in the shared memory", n, addr)
	case flags&descWrite != 0:
		c.in = append(c.in, b)
	case len(c.in) > 0:
		return fmt.Errorf("a readable buffer after a writable one")
	default:
		c.out = append(c.out, b)
	}
	return nil
}

// total is how many bytes buffers have.
func total(buffers [][]byte) (n int64) {
	for _, b := range buffers {
		n += int64(len(b))
	}
	return n
}

// cut takes the first n bytes off buffers, which have as many.
func cut(buffers [][]byte, n int) (first, rest [][]byte) {
	for i, b := range buffers {
		if n < len(b) {
			rest = append([][]byte{b[n:]}, buffers[i+1:]...)
			if n > 0 {
				first = append(first, b[:n])
			}
			return first, rest
		}
		first, n = append(first, b), n-len(b)
	}
	return first, nil
}

// gather copies all that buffers hold.
func gather(to []byte, buffers [][]byte) {
	for _, b := range buffers {
		to = to[copy(to, b):]
	}
}

// scatter fills buffers from what they hold together.
func scatter(buffers [][]byte, from []byte) {
	for _, b := range buffers {
		from = from[copy(b, from):]
	}
}
