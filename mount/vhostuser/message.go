package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Requests of the protocol, as in QEMU's docs/interop/vhost-user.rst.
const (
	reqGetFeatures         = 1
	reqSetFeatures         = 2
	reqSetOwner            = 3
	reqResetOwner          = 4
	reqSetMemTable         = 5
	reqSetVringNum         = 8
	reqSetVringAddr        = 9
	reqSetVringBase        = 10
	reqGetVringBase        = 11
	reqSetVringKick        = 12
	reqSetVringCall        = 13
	reqSetVringErr         = 14
	reqGetProtocolFeatures = 15
	reqSetProtocolFeatures = 16
	reqGetQueueNum         = 17
	reqSetVringEnable      = 18
	reqSetBackendFD        = 21
	reqGetConfig           = 24
	reqSetConfig           = 25
	reqGetInflightFD       = 31
	reqSetInflightFD       = 32
	reqGetMaxMemSlots      = 36
	reqAddMemReg           = 37
	reqRemMemReg           = 38

	backendConfigChanged = 2 // from here to the VMM
)

const (
	msgVersion   = 1
	msgReply     = 1 << 2
	msgNeedReply = 1 << 3

	headerSize = 12
	maxBody    = 4096 // bytes: the largest, a memory table, takes less than 600
	maxFDs     = 8    // of one message, as the protocol has it
)

// message is one request with the descriptors that came with it, which belong to whoever handles it.
type message struct {
	request uint32
	flags   uint32
	body    []byte
	fds     []int
}

// u64 is the body of most messages.
func (m *message) u64() (uint64, error) {
	if len(m.body) != 8 {
		return 0, fmt.Errorf("request %d has %d bytes, want 8", m.request, len(m.body))
	}
	return binary.LittleEndian.Uint64(m.body), nil
}

// state is the body of messages about one queue: its index and a number.
func (m *message) state() (index, num uint32, err error) {
	if len(m.body) != 8 {
		return 0, 0, fmt.Errorf("request %d has %d bytes, want 8", m.request, len(m.body))
	}
	return binary.LittleEndian.Uint32(m.body), binary.LittleEndian.Uint32(m.body[4:]), nil
}

// take hands the only descriptor over, or -1 if there is none.
func (m *message) take() int {
	if len(m.fds) != 1 {
		return -1
	}
	fd := m.fds[0]
	m.fds = nil
	return fd
}

// drop closes the descriptors that nobody took.
func (m *message) drop() {
	for _, fd := range m.fds {
		_ = unix.Close(fd)
	}
	m.fds = nil
}

// receive reads the next message.
func receive(c *net.UnixConn) (*message, error) {
	var head [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	m := &message{}
	if ferr := m.parseFDs(oob[:oobn]); ferr != nil {
		m.drop()
		return nil, ferr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && n < headerSize { // descriptors come with the first byte
		_, err = io.ReadFull(c, head[n:])
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("more than %d descriptors", maxFDs)
	}
	if err == nil {
		err = m.parseHead(head[:])
	}
	if err == nil {
		_, err = io.ReadFull(c, m.body)
	}
	if err != nil {
		m.drop()
		return nil, err
	}
	return m, nil
}

func (m *message) parseHead(b []byte) error {
	m.request, m.flags = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	size := binary.LittleEndian.Uint32(b[8:])
	if m.flags&3 != msgVersion || size > maxBody {
		return fmt.Errorf("request %d with flags %#x and %d bytes", m.request, m.flags, size)
	}
	m.body = make([]byte, size)
	return nil
}

func (m *message) parseFDs(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range parts {
		fds, err := unix.ParseUnixRights(&parts[i])
		if errors.Is(err, unix.EINVAL) {
			continue // another kind of ancillary data
		}
		if err != nil {
			return err
		}
		m.fds = append(m.fds, fds...)
	}
	for _, fd := range m.fds {
		unix.CloseOnExec(fd)
	}
	return nil
}

// answer sends the reply to a request.
func (s *session) answer(request uint32, body []byte, fds ...int) error {
	b := encode(request, msgVersion|msgReply, body)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := s.vmm.WriteMsgUnix(b, oob, nil)
	return err
}

func encode(request, flags uint32, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, headerSize+len(body)), request)
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func u64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
