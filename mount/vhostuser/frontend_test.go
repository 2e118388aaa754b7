package vhostuser_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// frontend is a VMM and its guest in one: it shares a memfd, lays a virtqueue into it, and uses the drive as a guest does. It
// shares nothing with the server but the protocol.
type frontend struct {
	sock *net.UnixConn
	memory
	features uint64
	closed   bool

	turn sync.Mutex // of messages
	kick int
	call *os.File

	slots chan int
	send  sync.Mutex
	avail uint16

	mu      sync.Mutex
	waiting [queueSize]chan uint32
	readers sync.WaitGroup
}

// memory is the guest's, of which every part has its place.
type memory struct {
	fd    int
	bytes []byte
}

const (
	queueSize  = 128
	slotCount  = 32 // requests at a time; each has four descriptors
	slotData   = 256 << 10
	guestBase  = 0x1000_0000 // where the guest has it
	userBase   = 0x7f00_0000_0000
	descAt     = 0
	availAt    = 4096
	usedAt     = 8192
	headAt     = 12288 // 64 bytes a slot: request header, status, discard segment
	dataAt     = 16384
	memorySize = dataAt + slotCount*slotData
)

var errGone = errors.New("back-end is gone")

func newMemory(sealed bool) (m memory, err error) {
	if m.fd, err = unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return m, err
	}
	if err = unix.Ftruncate(m.fd, memorySize); err != nil {
		return m, err
	}
	if sealed {
		if _, err = unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return m, err
		}
	}
	m.bytes, err = unix.Mmap(m.fd, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return m, err
}

func (m memory) word(off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.bytes[off])) }

// connect goes through what QEMU does to start a device.
func connect(path string, sealed bool) (*frontend, error) {
	m, err := newMemory(sealed)
	if err != nil {
		return nil, err
	}
	return connectWith(path, m, -1)
}

// connectWith connects with memory that may have been used with an earlier back-end, and the inflight memory of that one.
func connectWith(path string, m memory, inflight int) (*frontend, error) {
	raw, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	f := &frontend{sock: raw.(*net.UnixConn), memory: m, slots: make(chan int, slotCount)}
	if err := f.start(inflight); err != nil {
		return nil, errors.Join(err, f.sock.Close())
	}
	for i := range slotCount {
		f.slots <- i
	}
	f.avail = uint16(f.word(availAt).Load() >> 16)
	seen := uint16(f.word(usedAt).Load() >> 16)
	f.readers.Go(func() { f.answers(seen) })
	return f, nil
}

const (
	wantFeatures = 1<<32 | 1<<30 | 1<<28 | 1<<14 | 1<<13 | 1<<9
	wantExtras   = 1<<3 | 1<<9 | 1<<12
)

func (f *frontend) start(inflight int) error {
	features, err := f.get(1)
	if err != nil {
		return err
	}
	f.features = features
	if features&wantFeatures != wantFeatures {
		return fmt.Errorf("features %#x, want at least %#x", features, uint64(wantFeatures))
	}
	if _, err := f.get(15); err != nil {
		return err
	}
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	call, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	f.kick, f.call = kick, os.NewFile(uintptr(call), "call")
	state := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(make([]byte, 4), n) }
	addr := make([]byte, 40)
	for i, at := range []uint64{descAt, usedAt, availAt} {
		binary.LittleEndian.PutUint64(addr[8+8*i:], userBase+at)
	}
	table := make([]byte, 40)
	table[0] = 1
	binary.LittleEndian.PutUint64(table[8:], guestBase)
	binary.LittleEndian.PutUint64(table[16:], memorySize)
	binary.LittleEndian.PutUint64(table[24:], userBase)
	if inflight >= 0 {
		b := make([]byte, 24)
		binary.LittleEndian.PutUint64(b, 2112)
		b[16], b[18] = 1, queueSize
		if err := f.set(32, b, inflight); err != nil {
			return err
		}
	}
	return errors.Join(
		f.set(16, u64(wantExtras)),
		f.set(3, nil),
		f.set(2, u64(wantFeatures)),
		f.set(5, table, f.fd),
		f.set(8, state(queueSize)),
		f.set(10, state(f.word(availAt).Load()>>16)),
		f.set(9, addr),
		f.set(13, u64(0), call),
		f.set(12, u64(0), kick),
		f.set(18, state(1)),
	)
}

func u64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// set sends a request and waits until it was carried out, if the back-end tells.
func (f *frontend) set(request uint32, body []byte, fds ...int) error {
	flags := uint32(1 | 1<<3)
	if request == 16 || request == 32 {
		flags = 1 // that replies can be asked for is not agreed upon yet
	}
	b, err := f.exchange(request, flags, body, flags != 1, fds...)
	if err == nil && len(b) == 8 && binary.LittleEndian.Uint64(b) != 0 {
		err = fmt.Errorf("request %d was refused", request)
	}
	return err
}

func (f *frontend) get(request uint32) (uint64, error) {
	b, err := f.exchange(request, 1, nil, true)
	if err != nil || len(b) != 8 {
		return 0, errors.Join(fmt.Errorf("request %d: %d bytes", request, len(b)), err)
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (f *frontend) exchange(request, flags uint32, body []byte, reply bool, fds ...int) ([]byte, error) {
	f.turn.Lock()
	defer f.turn.Unlock()
	b := binary.LittleEndian.AppendUint32(nil, request)
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := f.sock.WriteMsgUnix(b, oob, nil); err != nil || !reply {
		return nil, err
	}
	var head [12]byte
	if _, err := io.ReadFull(f.sock, head[:]); err != nil {
		return nil, err
	}
	b = make([]byte, binary.LittleEndian.Uint32(head[8:]))
	_, err := io.ReadFull(f.sock, b)
	return b, err
}

// answers reads the used ring whenever the back-end calls.
func (f *frontend) answers(seen uint16) {
	var calls [8]byte
	for {
		for ; seen != uint16(f.word(usedAt).Load()>>16); seen++ {
			e := f.bytes[usedAt+4+8*int(seen%queueSize):]
			head, n := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:])
			f.mu.Lock()
			if w := f.waiting[head]; w != nil {
				w <- n
			}
			f.mu.Unlock()
		}
		if _, err := f.call.Read(calls[:]); err != nil {
			return
		}
	}
}

// watch fails what waits when the back-end hangs up.
func (f *frontend) watch() error {
	// A message that nobody sent ends the wait too; there is none.
	f.turn.Lock()
	defer f.turn.Unlock()
	raw, err := f.sock.SyscallConn()
	if err != nil {
		return err
	}
	hung := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, _ := unix.Poll(p, 0)
		hung = n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
	})
	if err == nil && hung {
		err = errGone
	}
	return err
}
