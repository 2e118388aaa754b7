package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/internal/exposed"
)

const (
	// MaxQueues is how many virtio queues a VMM may use for one drive.
	MaxQueues = 16
	// maxQueueSize is how many descriptors a queue may have, as virtio has it.
	maxQueueSize = 1 << 15
	// workers is how many requests of one queue run at once.
	workers = 16
)

const (
	noNotify    = 1 // in the used ring: no need to kick
	noInterrupt = 1 // in the available ring: no need to call
)

// queue is one virtqueue. Its settings belong to the session, which changes them only while the queue stands still.
type queue struct {
	session *session
	index   int

	num             uint32
	descAddr        uint64
	availAddr       uint64
	usedAddr        uint64
	base            uint16 // of the next available entry
	kick, call, err int    // descriptors, or -1
	enabled         bool

	// While it runs:
	memory            memory
	desc, avail, used []byte
	note              inflight // nil: not kept
	counter           uint64
	bell              *os.File // kick
	stopping          atomic.Bool
	done              chan struct{}

	out      sync.Mutex // the used ring
	usedIdx  uint16
	suppress bool
}

func (q *queue) running() bool { return q.done != nil }

// ready reports whether all is there that it takes.
func (q *queue) ready() bool { return q.num > 0 && q.kick >= 0 && q.usedAddr != 0 && q.enabled }

// avail.flags and avail.idx are one word, and so are used.flags and used.idx: the halves are read and written together.
func ringWord(ring []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&ring[0])) }

// start maps the rings and lets the queue run. Requests that an earlier back-end left are carried out first.
func (q *queue) start() error {
	s := q.session
	q.memory = s.memory
	n := uint64(q.num)
	q.desc, q.avail, q.used = q.memory.user(q.descAddr, descSize*n), q.memory.user(q.availAddr, 6+2*n), q.memory.user(q.usedAddr, 6+8*n)
	if q.desc == nil || q.avail == nil || q.used == nil {
		return fmt.Errorf("queue %d: rings at %#x, %#x and %#x are not in the shared memory", q.index, q.descAddr, q.availAddr, q.usedAddr)
	}
	if (uintptr(unsafe.Pointer(&q.avail[0]))|uintptr(unsafe.Pointer(&q.used[0])))%4 != 0 {
		return fmt.Errorf("queue %d: rings at %#x and %#x, want multiples of 4", q.index, q.availAddr, q.usedAddr)
	}
	// A descriptor of its own: closing it must not take the session's away.
	fd, err := unix.FcntlInt(uintptr(q.kick), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return fmt.Errorf("queue %d: kick: %w", q.index, err)
	}
	q.bell = os.NewFile(uintptr(fd), "kick")
	q.usedIdx = uint16(ringWord(q.used).Load() >> 16)
	var left []uint16
	if q.note = s.inflight.of(q.index, q.num); q.note != nil {
		left, q.counter = q.note.left(uint16(q.num), q.usedIdx)
		// What was taken from the ring is answered or noted; the rest is still to be taken.
		q.base = q.usedIdx + uint16(len(left))
	}
	q.stopping.Store(false)
	q.done = make(chan struct{})
	go q.run(left)
	return nil
}

// stop returns when nothing of the queue is in the device or the guest's memory any more.
func (q *queue) stop() {
	if !q.running() {
		return
	}
	q.stopping.Store(true)
	_ = q.bell.SetReadDeadline(time.Unix(1, 0)) // an eventfd takes deadlines
	<-q.done
	_ = q.bell.Close()
	q.done, q.memory = nil, nil
}

// guard turns a fault in the guest's memory, which its VMM has taken away, into the end of the session.
func (s *session) guard() {
	r := recover()
	if r == nil {
		return
	}
	err, ok := r.(error)
	if _, fault := r.(interface{ Addr() uintptr }); !ok || !fault {
		panic(r)
	}
	s.fail(fmt.Errorf("shared memory is gone: %w", err))
}

func (q *queue) run(left []uint16) {
	defer close(q.done)
	debug.SetPanicOnFault(true)
	defer q.session.guard()
	firm := q.memory.firm()
	requests := exposed.NewWorkers(workers, func(c chain) {
		debug.SetPanicOnFault(true)
		defer q.session.guard()
		q.complete(c.head, carryOut(q.session.drive, c, firm))
	})
	defer requests.Stop()
	for _, head := range left {
		q.take(head, requests)
	}
	var kicks [8]byte
	for {
		q.drain(requests)
		if q.stopping.Load() {
			return
		}
		if _, err := q.bell.Read(kicks[:]); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				q.session.fail(fmt.Errorf("queue %d: kick: %w", q.index, err))
			}
			return
		}
	}
}

// drain takes what is available until nothing is, and asks for no kicks meanwhile.
func (q *queue) drain(requests *exposed.Workers[chain]) {
	for {
		q.quiet(true)
		for q.base != uint16(ringWord(q.avail).Load()>>16) {
			if q.stopping.Load() {
				return
			}
			head := binary.LittleEndian.Uint16(q.avail[4+2*(uint32(q.base)%q.num):])
			q.base++
			if q.note != nil && uint32(head) < q.num {
				q.counter++
				q.note.begin(head, q.counter)
			}
			q.take(head, requests)
		}
		q.quiet(false)
		// The guest looks at the flag after it has made a request available; whatever it did before the flag went is seen now.
		if q.base == uint16(ringWord(q.avail).Load()>>16) {
			return
		}
	}
}

func (q *queue) take(head uint16, requests *exposed.Workers[chain]) {
	if uint32(head) >= q.num {
		q.session.log.Warn("vhost-user: no such descriptor", "drive", q.session.drive.Name, "queue", q.index, "head", head)
		return
	}
	c, err := q.chainAt(head)
	if err != nil {
		q.session.log.Warn("vhost-user: bad request", "drive", q.session.drive.Name, "queue", q.index, "error", err)
		// The guest gets its buffers back; what it reads in them as a status is its own.
		q.complete(head, 0)
		return
	}
	requests.Add(c)
}

// quiet says whether the guest need not kick.
func (q *queue) quiet(on bool) {
	q.out.Lock()
	defer q.out.Unlock()
	q.suppress = on
	q.publish()
}

// publish writes used.flags and used.idx. It holds out.
func (q *queue) publish() {
	w := uint32(q.usedIdx) << 16
	if q.suppress {
		w |= noNotify
	}
	ringWord(q.used).Store(w)
}

// complete answers a request, and tells the guest unless it wants not to be told.
func (q *queue) complete(head uint16, written int64) {
	q.put(head, written)
	if q.call >= 0 && ringWord(q.avail).Load()&noInterrupt == 0 {
		if _, err := unix.Write(q.call, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil && !errors.Is(err, unix.EAGAIN) {
			q.session.fail(fmt.Errorf("queue %d: call: %w", q.index, err))
		}
	}
}

// put writes the answer into the used ring.
func (q *queue) put(head uint16, written int64) {
	q.out.Lock()
	defer q.out.Unlock() // also when the guest's memory faults
	entry := q.used[4+8*(uint32(q.usedIdx)%q.num):]
	binary.LittleEndian.PutUint32(entry, uint32(head))
	binary.LittleEndian.PutUint32(entry[4:], uint32(written))
	if q.note != nil {
		// Should this process die right after the answer: the head that the last answer was about.
		_, used := q.note.state()
		q.note.setState(uint16(q.num), head, used)
	}
	q.usedIdx++
	q.publish()
	if q.note != nil {
		q.note.done(uint16(q.num), head, q.usedIdx)
	}
}

// closeAll gives the queue's descriptors back.
func (q *queue) closeAll() {
	for _, fd := range []*int{&q.kick, &q.call, &q.err} {
		setFD(fd, -1)
	}
}

// setFD replaces a descriptor.
func setFD(at *int, fd int) {
	if *at >= 0 {
		_ = unix.Close(*at)
	}
	*at = fd
}
