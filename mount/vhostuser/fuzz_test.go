package vhostuser

import (
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/mount/mounttest"
)

// FuzzChain lets a guest's memory hold anything: whatever the descriptors say, nothing outside of it is touched, the walk ends,
// and a read-only drive is not changed.
func FuzzChain(f *testing.F) {
	const size, num, base = 8192, 16, 0x10000
	desc := func(at int, addr uint64, n uint32, flags, next uint16) []byte {
		b := make([]byte, descSize)
		binary.LittleEndian.PutUint64(b, base+addr)
		binary.LittleEndian.PutUint32(b[8:], n)
		binary.LittleEndian.PutUint16(b[12:], flags)
		binary.LittleEndian.PutUint16(b[14:], next)
		return append(make([]byte, 16*at), b...)
	}
	over := func(parts ...[]byte) []byte {
		m := make([]byte, size)
		for _, p := range parts {
			for i, c := range p {
				if c != 0 {
					m[i] = c
				}
			}
		}
		return m
	}
	header := func(kind byte) []byte { return append(make([]byte, 4096), kind) }
	f.Add(over(header(blkOut), desc(0, 4096, 16, descNext, 1), desc(1, 5000, 1024, descNext, 2), desc(2, 4200, 1, descWrite, 0)), uint16(0), false)
	f.Add(over(header(blkIn), desc(0, 4096, 16, descNext, 1), desc(1, 5000, 513, descWrite, 0)), uint16(0), true)
	f.Add(over(header(blkDiscard), desc(3, 4096, 32, descNext, 2), desc(2, 4200, 1, descWrite, 0)), uint16(3), false)
	f.Add(over(desc(0, 64, 64, descIndirect, 0), desc(4, 4096, 16, descNext, 0)), uint16(0), false)
	f.Fuzz(func(t *testing.T, bytes []byte, head uint16, readOnly bool) {
		if len(bytes) < num*descSize {
			return
		}
		dev := mounttest.NewMemDevice(1 << 20)
		d := &exposed.SocketDrive{Name: "drive", Bytes: exposed.NewSectors(dev), Gate: exposed.NewGate("drive"), ReadOnly: readOnly}
		s := newSession(d, nil, slog.New(slog.DiscardHandler))
		q := s.queues[0]
		q.num, q.desc = num, bytes[:num*descSize]
		q.memory = memory{{guest: base, user: base, bytes: bytes}}
		c, err := q.chainAt(head % num)
		if n := total(c.in) + total(c.out); n > int64(len(bytes))*(maxIndirect+num) {
			t.Errorf("a chain of %d bytes in %d", n, len(bytes))
		}
		if err != nil {
			return
		}
		if n := carryOut(d, c, true); n > total(c.in) {
			t.Errorf("%d bytes of answer in %d", n, total(c.in))
		}
		if n := dev.Counts(); readOnly && n.Writes+n.Discards != 0 {
			t.Errorf("%+v on a read-only drive", n)
		}
	})
}
