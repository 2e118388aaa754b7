package vhostuser

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/internal/exposed"
)

// Features of virtio and of virtio-blk.
const (
	blkSegMax      = 1 << 2
	blkReadOnly    = 1 << 5
	blkBlockSize   = 1 << 6
	blkCanFlush    = 1 << 9
	blkTopology    = 1 << 10
	blkMultiQueue  = 1 << 12
	blkCanDiscard  = 1 << 13
	blkCanZero     = 1 << 14
	ringIndirect   = 1 << 28
	protocolExtras = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	virtio1        = 1 << 32
)

// Features of the protocol.
const (
	extraMultiQueue = 1 << 0
	extraReplyAck   = 1 << 3
	extraBackendReq = 1 << 5
	extraConfig     = 1 << 9
	extraInflight   = 1 << 12
	extraMemSlots   = 1 << 15

	extras = extraMultiQueue | extraReplyAck | extraBackendReq | extraConfig | extraInflight | extraMemSlots
)

// backendWait bounds a message to the VMM.
const backendWait = time.Second

// session is one VMM. Only its own goroutine, which handles messages, changes it; queues run beside it.
type session struct {
	drive    *exposed.SocketDrive
	vmm      *net.UnixConn
	log      *slog.Logger
	features uint64
	extras   uint64
	memory   memory
	inflight *inflightArea
	queues   [MaxQueues]*queue

	mu      sync.Mutex
	backend *os.File // messages to the VMM
	failure error
}

func newSession(d *exposed.SocketDrive, vmm *net.UnixConn, log *slog.Logger) *session {
	s := &session{drive: d, vmm: vmm, log: log}
	for i := range s.queues {
		s.queues[i] = &queue{session: s, index: i, kick: -1, call: -1, err: -1}
	}
	return s
}

func (s *session) offered() uint64 {
	f := uint64(blkSegMax | blkBlockSize | blkCanFlush | blkTopology | blkMultiQueue | blkCanDiscard | blkCanZero |
		ringIndirect | protocolExtras | virtio1)
	if s.drive.ReadOnly {
		f |= blkReadOnly
	}
	return f
}

// serve handles messages until the VMM leaves. When it returns, nothing uses the guest's memory or the device any more.
func (s *session) serve() error {
	defer s.end()
	defer s.drive.OnResize(s.resized)()
	for {
		m, err := receive(s.vmm)
		if err == nil {
			err = s.handle(m)
		}
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.failure != nil {
				return s.failure
			}
			return err
		}
	}
}

// fail ends the session, from a queue.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = err
	}
	s.mu.Unlock()
	_ = s.vmm.Close()
}

func (s *session) end() {
	s.stopQueues()
	for _, q := range s.queues {
		q.closeAll()
	}
	s.memory.unmap()
	s.inflight.unmap()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backend != nil {
		_ = s.backend.Close()
		s.backend = nil
	}
}

// stopQueues stops all queues, and returns those that ran.
func (s *session) stopQueues() (ran []*queue) {
	for _, q := range s.queues {
		if q.running() {
			q.stop()
			ran = append(ran, q)
		}
	}
	return ran
}

func (s *session) startQueues(queues []*queue) error {
	for _, q := range queues {
		if err := q.start(); err != nil {
			return err
		}
	}
	return nil
}

// handle carries out one request. A failure ends the session, unless the VMM asked to be told.
func (s *session) handle(m *message) error {
	defer m.drop()
	debug.SetPanicOnFault(true)
	defer s.guard()
	answered, err := s.dispatch(m)
	if answered || s.extras&extraReplyAck == 0 || m.flags&msgNeedReply == 0 {
		return err
	}
	if err != nil {
		s.log.Warn("vhost-user: request refused", "drive", s.drive.Name, "request", m.request, "error", err)
		return s.answer(m.request, u64(1))
	}
	return s.answer(m.request, u64(0))
}

// dispatch carries out one request. answered: it has a reply of its own.
func (s *session) dispatch(m *message) (answered bool, err error) {
	switch m.request {
	case reqGetFeatures:
		return true, s.answer(m.request, u64(s.offered()))
	case reqGetProtocolFeatures:
		return true, s.answer(m.request, u64(extras))
	case reqGetQueueNum:
		return true, s.answer(m.request, u64(MaxQueues))
	case reqGetMaxMemSlots:
		return true, s.answer(m.request, u64(maxRegions))
	case reqGetConfig:
		return true, s.getConfig(m)
	case reqGetVringBase:
		return true, s.getVringBase(m)
	case reqGetInflightFD:
		return true, s.getInflight(m)
	case reqSetFeatures:
		return false, choose(m, s.offered(), &s.features)
	case reqSetProtocolFeatures:
		return false, choose(m, extras, &s.extras)
	case reqSetOwner, reqSetConfig:
		return false, nil // there is one owner, and nothing to set
	case reqResetOwner:
		s.stopQueues()
		return false, nil
	case reqSetMemTable:
		return false, s.setMemTable(m)
	case reqAddMemReg:
		return false, s.addMemReg(m)
	case reqRemMemReg:
		return false, s.remMemReg(m)
	case reqSetInflightFD:
		return false, s.setInflight(m)
	case reqSetBackendFD:
		return false, s.setBackend(m)
	case reqSetVringNum, reqSetVringAddr, reqSetVringBase, reqSetVringKick, reqSetVringCall, reqSetVringErr, reqSetVringEnable:
		return false, s.setVring(m)
	}
	return false, fmt.Errorf("request %d is not known", m.request)
}

// choose takes features that were offered.
func choose(m *message, offered uint64, into *uint64) error {
	n, err := m.u64()
	if err == nil && n&^offered != 0 {
		err = fmt.Errorf("features %#x were not offered", n&^offered)
	}
	if err == nil {
		*into = n
	}
	return err
}

func (s *session) getConfig(m *message) error {
	if len(m.body) < 12 {
		return fmt.Errorf("config request of %d bytes", len(m.body))
	}
	off, n := binary.LittleEndian.Uint32(m.body), binary.LittleEndian.Uint32(m.body[4:])
	all := config(s.drive)
	if off > configSize || n > configSize-off {
		return s.answer(m.request, nil) // the protocol's way to refuse it
	}
	return s.answer(m.request, append(m.body[:12:12], all[off:off+n]...))
}

// setBackend takes the way for messages to the VMM.
func (s *session) setBackend(m *message) error {
	fd := m.take()
	if fd < 0 {
		return fmt.Errorf("back-end channel without a descriptor")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backend != nil {
		_ = s.backend.Close()
	}
	s.backend = os.NewFile(uintptr(fd), "backend")
	return nil
}

// resized tells the VMM to read the size again.
func (s *session) resized() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backend == nil {
		return
	}
	err := s.backend.SetWriteDeadline(time.Now().Add(backendWait))
	if err == nil {
		_, err = s.backend.Write(encode(backendConfigChanged, msgVersion, nil))
	}
	if err != nil {
		s.log.Warn("vhost-user: the VMM was not told of the new size", "drive", s.drive.Name, "error", err)
	}
}

func (s *session) queue(index uint64) (*queue, error) {
	if index >= MaxQueues {
		return nil, fmt.Errorf("queue %d of %d", index, MaxQueues)
	}
	return s.queues[index], nil
}

// getVringBase stops a queue and says how far it came.
func (s *session) getVringBase(m *message) error {
	index, _, err := m.state()
	if err != nil {
		return err
	}
	q, err := s.queue(uint64(index))
	if err != nil {
		return err
	}
	q.stop()
	q.closeAll()
	b := binary.LittleEndian.AppendUint32(nil, index)
	return s.answer(m.request, binary.LittleEndian.AppendUint32(b, uint32(q.base)))
}

// setVring changes one setting of a queue, which stands still meanwhile and runs when all its settings are there.
func (s *session) setVring(m *message) error {
	if len(m.body) < 8 {
		return fmt.Errorf("request %d has %d bytes", m.request, len(m.body))
	}
	index := uint64(binary.LittleEndian.Uint32(m.body))
	withFD := m.request == reqSetVringKick || m.request == reqSetVringCall || m.request == reqSetVringErr
	if withFD {
		index &= 0xff
	}
	q, err := s.queue(index)
	if err != nil {
		return err
	}
	q.stop()
	if withFD {
		err = q.setDescriptor(m)
	} else {
		err = q.set(m)
	}
	if err != nil {
		return err
	}
	if s.features&protocolExtras == 0 {
		q.enabled = true
	}
	if q.ready() {
		return q.start()
	}
	return nil
}

func (q *queue) setDescriptor(m *message) error {
	const none = 1 << 8
	fd := m.take()
	if wants := m.body[1]&(none>>8) == 0; wants != (fd >= 0) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return fmt.Errorf("queue %d: request %d: descriptor %t, want %t", q.index, m.request, fd >= 0, wants)
	}
	switch m.request {
	case reqSetVringKick:
		if fd < 0 {
			return fmt.Errorf("queue %d: polling without kicks is not offered", q.index)
		}
		setFD(&q.kick, fd)
	case reqSetVringCall:
		setFD(&q.call, fd)
	case reqSetVringErr:
		setFD(&q.err, fd)
	}
	return nil
}

func (q *queue) set(m *message) error {
	n := binary.LittleEndian.Uint32(m.body[4:])
	switch m.request {
	case reqSetVringNum:
		if n == 0 || n > maxQueueSize || n&(n-1) != 0 {
			return fmt.Errorf("queue %d: %d descriptors, want a power of two up to %d", q.index, n, maxQueueSize)
		}
		q.num = n
	case reqSetVringBase:
		q.base = uint16(n)
	case reqSetVringEnable:
		q.enabled = n == 1
	case reqSetVringAddr:
		if len(m.body) < 40 {
			return fmt.Errorf("queue %d: addresses in %d bytes", q.index, len(m.body))
		}
		q.descAddr, q.usedAddr = binary.LittleEndian.Uint64(m.body[8:]), binary.LittleEndian.Uint64(m.body[16:])
		q.availAddr = binary.LittleEndian.Uint64(m.body[24:])
	}
	return nil
}
