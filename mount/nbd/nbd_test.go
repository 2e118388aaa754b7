package nbd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/mount/nbd"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("SANDVOL_TEST_CLIENT"); path != "" {
		holdOpen(path)
	}
	goleak.VerifyTestMain(m)
}

// holdOpen is the process that vanish kills.
func holdOpen(path string) {
	if _, err := dialExport(path, ""); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("open\n")
	time.Sleep(time.Minute)
}

func vanish(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_CLIENT="+path)
	mounttest.Vanish(t, cmd)
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func newServer(t testing.TB) *nbd.Server {
	t.Helper()
	s, err := nbd.New(shortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil && !t.Failed() {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func expose(t testing.TB, s *nbd.Server, name string, dev *mounttest.MemDevice, readOnly bool) mount.Exposure {
	t.Helper()
	x, err := s.Expose(t.Context(), name, dev, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func connect(t testing.TB, x mount.Exposure) *client {
	t.Helper()
	c, err := dialExport(x.Path(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// it takes no privilege and no device of the host.
func TestExposerContract(t *testing.T) {
	mounttest.Run(t, func(t *testing.T) mounttest.Env {
		return mounttest.Env{Exposer: newServer(t), Open: dial, Vanish: vanish}
	})
}

// the flags say that a drive is read-only, and whoever does not look at them gets EPERM for every change.
func TestReadOnlyDriveAnswersEPERM(t *testing.T) {
	dev := mounttest.NewMemDevice(1 << 20)
	c := connect(t, expose(t, newServer(t), "ro", dev, true))
	if c.mode&2 == 0 {
		t.Errorf("flags %#x do not say read-only", c.mode)
	}
	for what, err := range map[string]error{
		"write":        c.ask(1, 0, 0, 512, make([]byte, 512), nil),
		"trim":         c.ask(4, 0, 0, 512, nil, nil),
		"write zeroes": c.ask(6, 0, 0, 512, nil, nil),
	} {
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: %v, want EPERM", what, err)
		}
	}
	if err := c.Sync(); err != nil {
		t.Errorf("flush: %v", err)
	}
	if n := dev.Counts(); n.Writes+n.Discards+n.Flushes != 0 {
		t.Errorf("%+v reached the device", n)
	}
}

func TestCommandsAndTheirLimits(t *testing.T) {
	dev := mounttest.NewMemDevice(64 << 20)
	c := connect(t, expose(t, newServer(t), "drive", dev, false))
	fua := func() int64 { return dev.Counts().Flushes }
	if err := c.ask(1, 1, 0, 4096, bytes.Repeat([]byte{'x'}, 4096), nil); err != nil || fua() != 1 {
		t.Errorf("write with FUA: %v, %d flushes", err, fua())
	}
	if err := c.ask(6, 1|2|1<<4, 512, 1024, nil, nil); err != nil || fua() != 2 {
		t.Errorf("write zeroes with FUA, NO_HOLE and FAST_ZERO: %v, %d flushes", err, fua())
	}
	big := make([]byte, 32<<20)
	if err := c.ask(0, 0, 0, 32<<20, nil, big); err != nil || big[0] != 'x' || big[600] != 0 || big[1600] != 'x' {
		t.Errorf("32 MiB read: %v, %q %q %q", err, big[0], big[600], big[1600])
	}
	for what, bad := range map[string]struct {
		got, want error
	}{
		"read over the end":       {c.ask(0, 0, 64<<20-512, 1024, nil, make([]byte, 1024)), syscall.EINVAL},
		"read at a huge offset":   {c.ask(0, 0, -512, 512, nil, make([]byte, 512)), syscall.EINVAL},
		"read of too much":        {c.ask(0, 0, 0, 32<<20+1, nil, nil), syscall.EINVAL},
		"write over the end":      {c.ask(1, 0, 64<<20-512, 1024, make([]byte, 1024), nil), syscall.ENOSPC},
		"trim over the end":       {c.ask(4, 0, 64<<20-512, 1024, nil, nil), syscall.ENOSPC},
		"zeroes over the end":     {c.ask(6, 0, 0, 64<<20+512, nil, nil), syscall.ENOSPC},
		"an unknown command":      {c.ask(77, 0, 0, 0, nil, nil), syscall.EINVAL},
		"an unknown flag":         {c.ask(0, 1<<7, 0, 512, nil, make([]byte, 512)), syscall.EINVAL},
		"write zeroes, all of it": {c.ask(6, 0, 0, 64<<20, nil, nil), nil},
		"trim of nothing":         {c.ask(4, 0, 0, 0, nil, nil), nil},
		"read of nothing":         {c.ask(0, 0, 64<<20, 0, nil, nil), nil},
	} {
		if !errors.Is(bad.got, bad.want) {
			t.Errorf("%s: %v, want %v", what, bad.got, bad.want)
		}
	}
	if err := c.ask(1, 0, 0, 32<<20+1, nil, nil); !errors.Is(err, errGone) {
		t.Errorf("write of too much: %v, want the end of the connection", err)
	}
}

// A command that takes its time holds nobody up: answers come in the order of completion.
func TestSlowRequestsDoNotHoldUpOthers(t *testing.T) {
	release := make(chan struct{})
	dev := mounttest.NewMemDevice(1 << 20)
	dev.Hook = func(op mounttest.Op, off, _ int64) error {
		if op == mounttest.OpRead && off == 0 {
			<-release
		}
		return nil
	}
	c := connect(t, expose(t, newServer(t), "drive", dev, false))
	slow := make(chan error, 1)
	go func() {
		_, err := c.ReadAt(make([]byte, 512), 0)
		slow <- err
	}()
	for range 100 {
		if _, err := c.ReadAt(make([]byte, 512), 4096); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
}

// handshake runs a negotiation of raw bytes and returns what the server answers until it hangs up or the limit is reached.
func handshake(t *testing.T, x mount.Exposure, send ...[]byte) []byte {
	t.Helper()
	sock, err := net.Dial("unix", x.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if _, err := sock.Write(bytes.Join(send, nil)); err != nil {
		t.Fatal(err)
	}
	_ = sock.(*net.UnixConn).CloseWrite()
	if err := sock.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(sock)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return got[min(18, len(got)):]
}

func option(opt uint32, data []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte("IHAVEOPT"), opt)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
}

// replies are the kinds of the answers to options.
func replies(t *testing.T, b []byte) (kinds []uint32) {
	t.Helper()
	for len(b) >= 20 {
		kinds = append(kinds, binary.BigEndian.Uint32(b[12:]))
		b = b[20+binary.BigEndian.Uint32(b[16:]):]
	}
	if len(b) > 0 {
		t.Errorf("%d bytes after the answers", len(b))
	}
	return kinds
}

func TestNegotiation(t *testing.T) {
	x := expose(t, newServer(t), "drive", mounttest.NewMemDevice(1<<20), false)
	flags := []byte{0, 0, 0, 3}
	named := func(name string) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
		return append(append(b, name...), 0, 2, 0, 1, 0, 3) // asks for name and block size
	}
	const unsupported, invalid, unknown, tooBig = 1<<31 + 1, 1<<31 + 3, 1<<31 + 6, 1<<31 + 9
	for what, c := range map[string]struct {
		send [][]byte
		want []uint32
	}{
		"list":                                  {[][]byte{flags, option(3, nil)}, []uint32{2, 1}},
		"list with data":                        {[][]byte{flags, option(3, []byte("x"))}, []uint32{invalid}},
		"TLS":                                   {[][]byte{flags, option(5, nil)}, []uint32{unsupported}},
		"structured replies":                    {[][]byte{flags, option(8, nil), option(3, nil)}, []uint32{unsupported, 2, 1}},
		"info":                                  {[][]byte{flags, option(6, named("drive"))}, []uint32{3, 3, 3, 1}},
		"info, then go":                         {[][]byte{flags, option(6, named("")), option(7, named(""))}, []uint32{3, 3, 3, 1, 3, 3, 3, 1}},
		"go elsewhere":                          {[][]byte{flags, option(7, named("other")), option(7, named("drive"))}, []uint32{unknown, 3, 3, 3, 1}},
		"go with a long name that is not there": {[][]byte{flags, option(7, []byte{0xff, 0xff, 0xff, 0xff, 0, 0})}, []uint32{invalid}},
		"go with too few facts":                 {[][]byte{flags, option(7, []byte{0, 0, 0, 0, 0, 9})}, []uint32{invalid}},
		"an option of 1 MiB":                    {[][]byte{flags, option(6, make([]byte, 1<<20)), option(3, nil)}, []uint32{tooBig, 2, 1}},
		"abort":                                 {[][]byte{flags, option(2, nil)}, []uint32{1}},
		"flags of the future":                   {[][]byte{{0, 0, 0, 7}, option(3, nil)}, nil},
		"old clients":                           {[][]byte{{0, 0, 0, 0}, option(3, nil)}, nil},
		"noise":                                 {[][]byte{flags, bytes.Repeat([]byte("x"), 64)}, nil},
		"an option of 4 GiB":                    {[][]byte{flags, []byte("IHAVEOPT"), {0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff}}, nil},
		"export name that is not there":         {[][]byte{flags, option(1, []byte("other"))}, nil},
	} {
		t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
			got := replies(t, handshake(t, x, c.send...))
			if len(got) != len(c.want) {
				t.Fatalf("answers %#x, want %#x", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("answers %#x, want %#x", got, c.want)
				}
			}
		})
	}
	for _, f := range []byte{1, 3} { // with and without the zeroes
		if got := handshake(t, x, []byte{0, 0, 0, f}, option(1, []byte("drive"))); len(got) != 10+124*int(3-f)/2 {
			t.Errorf("EXPORT_NAME with flags %d: %d bytes", f, len(got))
		}
	}
}

func TestSocketsAreTheOwnersAlone(t *testing.T) {
	x := expose(t, newServer(t), "drive", mounttest.NewMemDevice(1<<20), false)
	st, err := os.Stat(x.Path())
	if err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v; want a socket with 0600", st.Mode(), err)
	}
}

func TestLongNamesGetSocketsThatCanBeReached(t *testing.T) {
	s := newServer(t)
	a := expose(t, s, strings.Repeat("x", 255), mounttest.NewMemDevice(1<<20), false)
	b := expose(t, s, strings.Repeat("x", 254)+"y", mounttest.NewMemDevice(2<<20), false)
	for x, size := range map[mount.Exposure]int64{a: 1 << 20, b: 2 << 20} {
		if len(x.Path()) > 107 {
			t.Errorf("path of %d bytes", len(x.Path()))
		}
		if c := connect(t, x); c.size != size {
			t.Errorf("size %d, want %d", c.size, size)
		}
	}
}

func TestServerTakesOverWhatADeadProcessLeft(t *testing.T) {
	dir := shortDir(t)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "old"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := nbd.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nbd.New(dir); !errors.Is(err, mount.ErrExists) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second server: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v; want nothing but the server's own", left, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Expose(t.Context(), "late", mounttest.NewMemDevice(1<<20), false); !errors.Is(err, mount.ErrClosed) {
		t.Errorf("expose after close: %v, want ErrClosed", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for bad, want := range map[string]error{
		dir:                              mount.ErrExists,
		"relative":                       mount.ErrInvalid,
		"/" + strings.Repeat("long", 30): mount.ErrInvalid,
	} {
		if _, err := nbd.New(bad); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", bad, err, want)
		}
	}
}
