package vhostuser_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/mount/vhostuser"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("SANDVOL_TEST_CLIENT"); path != "" {
		if _, err := connect(path, true); err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("open\n")
		time.Sleep(time.Minute)
	}
	goleak.VerifyTestMain(m)
}

func vanish(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_CLIENT="+path)
	mounttest.Vanish(t, cmd)
}

func newServer(t testing.TB) *vhostuser.Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "vu")
	if err != nil {
		t.Fatal(err)
	}
	s, err := vhostuser.New(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil && !t.Failed() {
			t.Errorf("close: %v", err)
		}
		_ = os.RemoveAll(dir)
	})
	return s
}

func expose(t testing.TB, s *vhostuser.Server, dev *mounttest.MemDevice, readOnly bool) mount.Exposure {
	t.Helper()
	x, err := s.Expose(t.Context(), "drive", dev, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func open(t testing.TB, x mount.Exposure, sealed bool) *frontend {
	t.Helper()
	f, err := connect(x.Path(), sealed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// it takes no privilege and no device of the host. Memory that the VMM could take away is copied, other memory is not.
func TestExposerContract(t *testing.T) {
	for name, sealed := range map[string]bool{"sealed": true, "unsealed": false} {
		t.Run(name, func(t *testing.T) {
			mounttest.Run(t, func(t *testing.T) mounttest.Env {
				return mounttest.Env{Exposer: newServer(t), Vanish: vanish, SectorsOnly: true,
					Open: func(path string, _ bool) (mounttest.Client, error) { return connect(path, sealed) }}
			})
		})
	}
}

// a read-only drive says so, and no change gets through from a guest that does not listen.
func TestReadOnlyDriveTakesNoChange(t *testing.T) {
	dev := mounttest.NewMemDevice(1 << 20)
	f := open(t, expose(t, newServer(t), dev, true), true)
	if f.features&(1<<5) == 0 {
		t.Errorf("features %#x do not say read-only", f.features)
	}
	for kind, body := range map[uint32][]byte{1: make([]byte, 512), 11: segment(0, 512, 0), 13: segment(0, 512, 0)} {
		if err := f.do(kind, 0, body, nil); !errors.Is(err, syscall.EIO) {
			t.Errorf("request %d: %v, want an error", kind, err)
		}
	}
	if n := dev.Counts(); n.Writes+n.Discards+n.Flushes != 0 {
		t.Errorf("%+v reached the device", n)
	}
}

func TestRequestsAndTheirLimits(t *testing.T) {
	const size = 64 << 20
	dev := mounttest.NewMemDevice(size)
	f := open(t, expose(t, newServer(t), dev, false), true)
	id := make([]byte, 20)
	if err := f.do(8, 0, nil, id); err != nil || !bytes.Equal(id[:6], []byte("drive\x00")) {
		t.Errorf("id %q, %v", id, err)
	}
	if err := f.do(1, 0, bytes.Repeat([]byte{'x'}, 8192), nil); err != nil {
		t.Fatal(err)
	}
	two := append(segment(512, 512, 1), segment(4096, 1024, 0)...)
	if err := f.do(13, 0, two, nil); err != nil {
		t.Errorf("write zeroes: %v", err)
	}
	got := make([]byte, 8192)
	if err := f.do(0, 0, nil, got); err != nil || got[511] != 'x' || got[512] != 0 || got[1024] != 'x' || got[4096] != 0 || got[5120] != 'x' {
		t.Errorf("after write zeroes: %v, %q %q %q %q %q", err, got[511], got[512], got[1024], got[4096], got[5120])
	}
	before := dev.Counts()
	for what, c := range map[string]struct {
		got, want error
	}{
		"read over the end":               {f.do(0, size-512, nil, make([]byte, 1024)), syscall.EIO},
		"read at a huge sector":           {f.do(0, -512, nil, make([]byte, 512)), syscall.EIO},
		"write over the end":              {f.do(1, size-512, make([]byte, 1024), nil), syscall.EIO},
		"write of part of a sector":       {f.do(1, 0, make([]byte, 100), nil), syscall.EIO},
		"discard over the end":            {f.do(11, 0, append(segment(0, 512, 0), segment(size-512, 1024, 0)...), nil), syscall.EIO},
		"discard with flags":              {f.do(11, 0, segment(0, 512, 1), nil), syscall.EOPNOTSUPP},
		"write zeroes with unknown flags": {f.do(13, 0, segment(0, 512, 2), nil), syscall.EOPNOTSUPP},
		"discard of no range":             {f.do(11, 0, nil, nil), syscall.EIO},
		"discard of half a range":         {f.do(11, 0, make([]byte, 8), nil), syscall.EIO},
		"discard of 65 ranges":            {f.do(11, 0, make([]byte, 16*65), nil), syscall.EIO},
		"an unknown request":              {f.do(99, 0, nil, nil), syscall.EOPNOTSUPP},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if after := dev.Counts(); after.Writes != before.Writes || after.Discards != before.Discards {
		t.Errorf("refused requests changed the device: %+v, before %+v", after, before)
	}
	b, err := f.config()
	if err != nil || binary.LittleEndian.Uint32(b[20:]) != 512 || binary.LittleEndian.Uint16(b[34:]) != vhostuser.MaxQueues {
		t.Errorf("config %x, %v", b, err)
	}
}

// A guest can write anything into its descriptors. It gets its requests back, and the drive goes on.
func TestBadDescriptorsHurtNobodyElse(t *testing.T) {
	dev := mounttest.NewMemDevice(1 << 20)
	f := open(t, expose(t, newServer(t), dev, false), true)
	desc := func(i uint16, addr uint64, n uint32, flags, next uint16) {
		d := f.bytes[descAt+16*int(i):]
		binary.LittleEndian.PutUint64(d, addr)
		binary.LittleEndian.PutUint32(d[8:], n)
		binary.LittleEndian.PutUint16(d[12:], flags)
		binary.LittleEndian.PutUint16(d[14:], next)
	}
	const head = 100 // of no slot
	header := uint64(guestBase + headAt)
	for what, lay := range map[string]func(){
		"a circle":                       func() { desc(head, header, 16, 1, head) },
		"a next that is not there":       func() { desc(head, header, 16, 1, 60000) },
		"an address before the memory":   func() { desc(head, 16, 16, 0, 0) },
		"an address after the memory":    func() { desc(head, guestBase+memorySize-8, 16, 0, 0) },
		"a length around the end":        func() { desc(head, guestBase, 1<<32-1, 0, 0) },
		"an address around the end":      func() { desc(head, 1<<64-8, 16, 0, 0) },
		"no status":                      func() { desc(head, header, 16, 0, 0) },
		"nothing but a status":           func() { desc(head, header, 1, 2, 0) },
		"readable after writable":        func() { desc(head, header, 16, 3, head+1); desc(head+1, header, 16, 0, 0) },
		"indirect that is not there":     func() { desc(head, 16, 32, 4, 0) },
		"indirect with a next":           func() { desc(head, guestBase, 32, 5, 0) },
		"indirect of half a descriptor":  func() { desc(head, guestBase, 24, 4, 0) },
		"indirect in itself":             func() { desc(head, guestBase+descAt+16*head, 16, 4, 0) },
		"indirect without a descriptor":  func() { desc(head, guestBase, 0, 4, 0) },
		"indirect of a thousand circles": func() { desc(head, guestBase+descAt+16*(head+1), 16, 4, 0); desc(head+1, header, 16, 1, 0) },
	} {
		lay()
		if err := f.await(f.submitFor(head)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	f.submit(50000) // a head that is not there has no answer
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Errorf("a good request after all: %v", err)
	}
	if n := dev.Counts(); n.Writes != 1 || n.Discards+n.Reads != 0 {
		t.Errorf("%+v reached the device", n)
	}
}

// A VMM that takes its memory away loses its connection; this process, and other VMMs, go on.
func TestMemoryThatIsTakenAway(t *testing.T) {
	dev := mounttest.NewMemDevice(1 << 20)
	x := expose(t, newServer(t), dev, false)
	bad, good := open(t, x, false), open(t, x, true)
	if _, err := bad.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	slot := <-bad.slots
	bad.submitLayOut(slot, func() {
		// All that this process itself still touches is the rings: the data goes.
		if err := unix.Ftruncate(bad.fd, dataAt); err != nil {
			t.Fatal(err)
		}
	})
	deadline := time.Now().Add(10 * time.Second)
	for bad.watch() == nil && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if err := bad.watch(); !errors.Is(err, errGone) {
		t.Errorf("the connection: %v, want its end", err)
	}
	if _, err := good.WriteAt(make([]byte, 4096), 4096); err != nil {
		t.Errorf("another VMM: %v", err)
	}
}

// submitLayOut makes a write of 4096 bytes available, after before ran.
func (f *frontend) submitLayOut(slot int, before func()) {
	head := f.layOut(slot, 1, 0, 4096, false)
	before()
	f.submit(head)
}

// requests that were under way when the host process died are carried out by the next one, and what was answered is not
// done again.
func TestRequestsUnderWaySurviveTheHostProcess(t *testing.T) {
	release := make(chan struct{})
	dev := mounttest.NewMemDevice(1 << 20)
	dev.Hook = func(op mounttest.Op, off, _ int64) error {
		if op == mounttest.OpWrite && off >= 65536 {
			<-release
			return errors.New("the process is dead by now")
		}
		return nil
	}
	first := newServer(t)
	x := expose(t, first, dev, false)
	f := open(t, x, true)
	fd := f.inflight(t)
	if _, err := f.WriteAt(bytes.Repeat([]byte{'a'}, 4096), 0); err != nil {
		t.Fatal(err)
	}
	// Two writes are taken, and never answered.
	var heads []uint16
	for i := range 2 {
		slot := <-f.slots
		copy(f.bytes[dataAt+slotData*slot:], bytes.Repeat([]byte{byte('b' + i)}, 4096))
		head := f.layOut(slot, 1, 128, 4096, false)
		heads = append(heads, head)
		f.submit(head)
		time.Sleep(20 * time.Millisecond) // the order in which they are taken
	}
	if used := f.word(usedAt).Load() >> 16; used != 1 {
		t.Fatalf("%d answers, want the first alone", used)
	}
	// What the process has noted is what stays of it: a copy, since its goroutines cannot be killed here.
	frozen := snapshot(t, f.memory)
	notes := duplicate(t, fd)
	close(release)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	next := mounttest.NewMemDevice(1 << 20)
	y := expose(t, newServer(t), next, false)
	again, err := connectWith(y.Path(), frozen, notes)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for again.word(usedAt).Load()>>16 != 3 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	for _, head := range heads {
		if status := again.bytes[headAt+64*int(head/4)+16]; status != statusOK {
			t.Errorf("request %d: status %d", head, status)
		}
	}
	if n := next.Counts(); n.Writes != 2 {
		t.Errorf("%d writes were carried out, want the two that had no answer", n.Writes)
	}
	if _, err := again.WriteAt(make([]byte, 512), 0); err != nil {
		t.Errorf("and then another: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// inflight asks the back-end for the memory of its notes.
func (f *frontend) inflight(t *testing.T) int {
	t.Helper()
	f.turn.Lock()
	defer f.turn.Unlock()
	body := make([]byte, 24)
	body[16], body[18] = 1, queueSize
	msg := append([]byte{31, 0, 0, 0, 1, 0, 0, 0, 24, 0, 0, 0}, body...)
	if _, err := f.sock.Write(msg); err != nil {
		t.Fatal(err)
	}
	reply, oob := make([]byte, 36), make([]byte, 64)
	n, oobn, _, _, err := f.sock.ReadMsgUnix(reply, oob)
	if err != nil || n != 36 || binary.LittleEndian.Uint64(reply[12:]) != 2112 {
		t.Fatalf("%d bytes, %v: %x", n, err, reply)
	}
	parts, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(parts) != 1 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	fds, err := unix.ParseUnixRights(&parts[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%v, %v", fds, err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	return fds[0]
}

func snapshot(t *testing.T, of memory) memory {
	t.Helper()
	m, err := newMemory(true)
	if err != nil {
		t.Fatal(err)
	}
	copy(m.bytes, of.bytes)
	return m
}

func duplicate(t *testing.T, fd int) int {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	to, err := unix.MemfdCreate("notes", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(to) })
	if _, err := unix.Pwrite(to, b[:n], 0); err != nil {
		t.Fatal(err)
	}
	return to
}

// Messages that no VMM sends end the connection, or are refused; nothing of them is kept.
func TestBadMessages(t *testing.T) {
	x := expose(t, newServer(t), mounttest.NewMemDevice(1<<20), false)
	header := func(request, flags, n uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, request)
		b = binary.LittleEndian.AppendUint32(b, flags)
		return binary.LittleEndian.AppendUint32(b, n)
	}
	for what, msg := range map[string][]byte{
		"another version":           header(1, 2, 0),
		"a huge body":               header(5, 1, 1<<31),
		"a request of nobody":       header(999, 1, 0),
		"features of nobody":        append(header(2, 1, 8), bytes.Repeat([]byte{0xff}, 8)...),
		"a table without regions":   append(header(5, 1, 8), 1, 0, 0, 0, 0, 0, 0, 0),
		"queue 200":                 append(header(8, 1, 8), 200, 0, 0, 0, 128, 0, 0, 0),
		"a queue of three":          append(header(8, 1, 8), 0, 0, 0, 0, 3, 0, 0, 0),
		"a kick without descriptor": append(header(12, 1, 8), 0, 0, 0, 0, 0, 0, 0, 0),
		"inflight for no queue":     append(header(31, 1, 24), make([]byte, 24)...),
		"half a message":            header(1, 1, 8),
	} {
		sock, err := net.Dial("unix", x.Path())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sock.Write(msg); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		_ = sock.(*net.UnixConn).CloseWrite()
		_ = sock.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := sock.Read(make([]byte, 64)); n != 0 || err == nil {
			t.Errorf("%s: %d bytes of answer, %v; want the end", what, n, err)
		}
		_ = sock.Close()
	}
}
