package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/mount/mounttest"
)

// script is a client that says what it says, whatever it is answered.
type script struct {
	*bytes.Reader
	answered int
}

func (s *script) Write(p []byte) (int, error)      { s.answered += len(p); return len(p), nil }
func (*script) Close() error                       { return nil }
func (*script) LocalAddr() net.Addr                { return nil }
func (*script) RemoteAddr() net.Addr               { return nil }
func (*script) SetDeadline(time.Time) error        { return nil }
func (*script) SetReadDeadline(time.Time) error    { return nil }
func (*script) SetWriteDeadline(t time.Time) error { return nil }

// FuzzClient feeds a connection with any bytes: it must end, take no more memory than its requests may, and change nothing on a
// read-only drive.
func FuzzClient(f *testing.F) {
	hello := []byte{0, 0, 0, 3}
	opt := func(n uint32, data []byte) []byte {
		b := binary.BigEndian.AppendUint32([]byte("IHAVEOPT"), n)
		return append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
	}
	cmd := func(cmd, flags uint16, off uint64, n uint32, data ...byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, magicRequest)
		b = binary.BigEndian.AppendUint16(b, flags)
		b = binary.BigEndian.AppendUint16(b, cmd)
		b = binary.BigEndian.AppendUint64(b, 77)
		b = binary.BigEndian.AppendUint64(b, off)
		return append(binary.BigEndian.AppendUint32(b, n), data...)
	}
	choose := append(hello, opt(optGo, []byte{0, 0, 0, 0, 0, 2, 0, 1, 0, 3})...)
	with := func(parts ...[]byte) []byte { return append(bytes.Clone(choose), bytes.Join(parts, nil)...) }
	f.Add(append(hello, opt(optList, nil)...), false)
	f.Add(append(hello, opt(optExportName, []byte("drive"))...), false)
	f.Add(with(cmd(cmdWrite, cmdFlagFUA, 511, 3, 1, 2, 3), cmd(cmdRead, 0, 0, 4096), cmd(cmdDisc, 0, 0, 0)), false)
	f.Add(with(cmd(cmdWriteZeroes, 0, 100, 1000), cmd(cmdTrim, 0, 0, 1<<20), cmd(cmdFlush, 0, 0, 0)), true)
	f.Add(with(cmd(cmdRead, 0, 1<<63, 1<<32-1), cmd(cmdWrite, 0, 0, 1<<32-1)), false)
	f.Fuzz(func(t *testing.T, said []byte, readOnly bool) {
		dev := mounttest.NewMemDevice(1 << 20)
		d := &exposed.SocketDrive{Name: "drive", Bytes: exposed.NewSectors(dev), Gate: exposed.NewGate("drive"), ReadOnly: readOnly}
		client := &script{Reader: bytes.NewReader(said)}
		err := newConn(d, client).serve()
		if err == nil {
			t.Error("ended without a reason")
		}
		if n := dev.Counts(); readOnly && n.Writes+n.Discards != 0 {
			t.Errorf("%+v on a read-only drive", n)
		}
		// Every request is answered at most once, with at most what it asked for.
		if most := 1<<10 + len(said)/requestSize*(simpleSize+1<<20) + 8*len(said); client.answered > most {
			t.Errorf("%d bytes of answers to %d bytes", client.answered, len(said))
		}
		if errors.Is(err, io.ErrShortBuffer) {
			t.Error(err)
		}
	})
}

func TestBuffersHoldEveryRequest(t *testing.T) {
	var p pool
	for _, n := range []int64{0, 1, 4095, 4096, 4097, 1 << 20, 1<<20 + 1, maxPayload} {
		b := p.get(n)
		if int64(len(b)) != n {
			t.Errorf("%d bytes, want %d", len(b), n)
		}
		p.put(b)
		if b = p.get(n); int64(len(b)) != n {
			t.Errorf("again: %d bytes, want %d", len(b), n)
		}
	}
}
