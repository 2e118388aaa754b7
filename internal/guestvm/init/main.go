// Command init is the first and only program of the guest. It loads the modules that the initramfs has, and carries out what the
// host says over the second serial line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/internal/guestvm/wire"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	time.Sleep(time.Second) // for the console
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for fs, at := range map[string]string{"proc": "/proc", "sysfs": "/sys", "devtmpfs": "/dev"} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fs, at, fs, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	modules, err := filepath.Glob("/modules/*.ko") // in the order of their names
	if err != nil {
		return err
	}
	for _, m := range modules {
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
		_ = f.Close()
	}
	return serve("/dev/ttyS1")
}

// host is the line to it.
type host struct {
	line *os.File
	mu   sync.Mutex
}

func serve(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0 // raw
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return err
	}
	h := &host{line: os.NewFile(uintptr(fd), path)}
	h.say(wire.Answer{ID: 0}) // up
	lines := bufio.NewScanner(h.line)
	for lines.Scan() {
		var c wire.Command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		a := wire.Answer{ID: c.ID}
		if a.Count, err = h.carryOut(c); err != nil {
			a.Error = err.Error()
			var errno unix.Errno
			if errors.As(err, &errno) {
				a.Errno = int(errno)
			}
		}
		h.say(a)
	}
	return lines.Err()
}

func (h *host) say(a wire.Answer) {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // it has nothing that cannot be written
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, _ = h.line.Write(append(b, '\n'))
}

func (h *host) carryOut(c wire.Command) (int64, error) {
	switch c.Op {
	case wire.Mount:
		return 0, mountAt(c)
	case wire.Unmount:
		return 0, unix.Unmount(c.Path, 0)
	case wire.Write:
		return 0, write(c)
	case wire.Check:
		return 0, check(c)
	case wire.Create:
		f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			err = f.Close()
		}
		return 0, err
	case wire.RawWrite:
		return 0, rawWrite(c)
	case wire.Freeze, wire.Thaw:
		return 0, freeze(c)
	case wire.Trim:
		return 0, trim(c)
	case wire.Capacity:
		return capacity(c)
	case wire.Records:
		return 0, h.records(c)
	case wire.Count:
		return count(c)
	}
	return 0, fmt.Errorf("unknown operation %q", c.Op)
}

// device finds a block device by its serial number. It may take a moment to appear.
func device(serial string) (string, error) {
	for range 100 {
		names, err := filepath.Glob("/sys/block/vd*/serial")
		if err != nil {
			return "", err
		}
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimRight(string(b), "\n\x00") == serial {
				return "/dev/" + filepath.Base(filepath.Dir(n)), nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", fmt.Errorf("no block device has the serial number %q", serial)
}
