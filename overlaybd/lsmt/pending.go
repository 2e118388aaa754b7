package lsmt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pending is the queue of records that are not in the index file yet. It lives in a shared mapping of a local file:
// what a process stored there stays in the page cache when the process is killed, and costs no system call. A power
// cut voids it, which the boot id shows.
//
// Records are numbered from the creation of the log. Record i is in slot i modulo pendingSlots until the queue goes
// round; head is the number of the next record, tail that of the first one that is not in the index file.
//
// One goroutine adds and one takes, at the same time.
type pending struct {
	path string
	head atomic.Uint64
	tail atomic.Uint64
	mem  []byte // nil until the first record
}

// Layout of the file; docs/formats/upper.md has the table.
const (
	pendingMagic  = "SVPEND\x00\x01"
	pendBoot      = 8
	pendUUID      = 56
	pendSlots     = 72
	pendBase      = 80
	pendHead      = 128 // on its own cache line: it changes with every record
	pendData      = 4096
	pendingSlots  = 1 << 17
	pendingBytes  = pendData + pendingSlots*entrySize
	syncThreshold = 1 << 16 // records, 1 MiB: above it the log should be synced soon
)

// start sets the number of the next record. All before it are in the index file.
func (q *pending) start(n uint64) {
	q.head.Store(n)
	q.tail.Store(n)
}

func (q *pending) len() int   { return int(q.head.Load() - q.tail.Load()) }
func (q *pending) full() bool { return q.len() == pendingSlots }

// add stores a record. The queue must be mapped and not full.
func (q *pending) add(s Segment) {
	n := q.head.Load()
	s.encode(q.slot(n))
	// The slot first, then the head: a process that is killed between them leaves the record out, and it was not
	// acknowledged.
	q.storedHead().Store(n + 1)
	q.head.Store(n + 1)
}

func (q *pending) slot(n uint64) []byte {
	at := pendData + n%pendingSlots*entrySize
	return q.mem[at : at+entrySize]
}

// storedHead is the head in the mapping, at an offset that is a multiple of 8 in a page-aligned mapping.
func (q *pending) storedHead() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&q.mem[pendHead]))
}

// create makes the file and maps it. It takes all its space at once: a store to a page that the disk has no room for
// would kill the process, so the lack of room must show here, as the error of a write.
func (q *pending) create(log [16]byte, boot string) (err error) {
	f, err := os.OpenFile(q.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // the mapping outlives the descriptor
	if err := allocate(f, pendingBytes); err != nil {
		// What it did get goes back: the disk is full.
		return fmt.Errorf("allocate %s: %w", q.path, errors.Join(err, os.Remove(q.path)))
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, pendingBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", q.path, err)
	}
	q.mem = mem
	copy(mem[pendBoot:pendUUID], boot)
	copy(mem[pendUUID:], log[:])
	binary.LittleEndian.PutUint64(mem[pendSlots:], pendingSlots)
	binary.LittleEndian.PutUint64(mem[pendBase:], q.head.Load())
	q.storedHead().Store(q.head.Load())
	// The magic last: until then the file counts as absent.
	copy(mem, pendingMagic)
	return nil
}

// allocate reserves n bytes of real space.
func allocate(f *os.File, n int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, n)
	for err == unix.EINTR { // tmpfs gives up when the runtime's own signals arrive
		err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// File systems without fallocate reserve space when it is written to.
	zero := make([]byte, 1<<18)
	for off := int64(0); off < n; off += int64(len(zero)) {
		if _, err := f.WriteAt(zero[:min(int64(len(zero)), n-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// close unmaps the file. Nobody may use the queue after it.
func (q *pending) close() error {
	mem := q.mem
	q.mem = nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// readPending returns the records from number from on that an earlier process of the same boot left in the file. A file
// that is absent, unfinished, of another log or of another boot holds none.
func readPending(path string, log [16]byte, boot string, from uint64) ([]Segment, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	head := make([]byte, pendData)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	q := pending{mem: head}
	base, next := binary.LittleEndian.Uint64(head[pendBase:]), q.storedHead().Load()
	if !isPendingHead(head, log, boot) || next <= from {
		return nil, nil
	}
	// Under the same boot nothing is lost between the index file and this queue. A gap means that acknowledged writes are
	// missing, which must not pass for an older state of the disk.
	if from < base || next-from > pendingSlots {
		return nil, corrupt("pending", pendHead, "records %d to %d wait, but the index file ends at %d", base, next, from)
	}
	records := make([]Segment, 0, next-from)
	entry := make([]byte, entrySize)
	r := io.NewSectionReader(f, pendData, pendingBytes-pendData)
	for n := from; n < next; n++ {
		if err := readFull(r, "pending", entry, int64(n%pendingSlots)*entrySize); err != nil {
			return nil, err
		}
		records = append(records, decodeSegment(entry))
	}
	return records, nil
}

// isPendingHead reports whether the head of a file is that of a queue of this log and this boot.
func isPendingHead(head []byte, log [16]byte, boot string) bool {
	want := make([]byte, pendBase)
	copy(want, pendingMagic)
	copy(want[pendBoot:pendUUID], boot)
	copy(want[pendUUID:], log[:])
	binary.LittleEndian.PutUint64(want[pendSlots:], pendingSlots)
	return bytes.Equal(head[:pendBase], want)
}
