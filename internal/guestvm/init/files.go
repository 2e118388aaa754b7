package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/internal/guestvm/wire"
)

func mountAt(c wire.Command) error {
	dev, err := device(c.Serial)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Path, 0o755); err != nil {
		return err
	}
	if c.ReadOnly {
		return unix.Mount(dev, c.Path, "ext4", unix.MS_RDONLY, "noload")
	}
	return unix.Mount(dev, c.Path, "ext4", 0, "discard")
}

func content(c wire.Command) io.Reader {
	r := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), uint64(c.Seed))))
	return io.LimitReader(r, c.Size)
}

func write(c wire.Command) error {
	f, err := os.Create(c.Path)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{f}, content(c), make([]byte, 1<<20))
	return errors.Join(err, f.Sync(), f.Close())
}

// onlyWriter keeps io.Copy to its buffer.
type onlyWriter struct{ io.Writer }

func check(c wire.Command) error {
	f, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != c.Size {
		return fmt.Errorf("%s: %d bytes, %w; want %d", c.Path, info.Size(), err, c.Size)
	}
	want := content(c)
	got, exp := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := io.ReadFull(f, got)
		if _, werr := io.ReadFull(want, exp[:n]); werr != nil {
			return werr
		}
		if !bytes.Equal(got[:n], exp[:n]) {
			return fmt.Errorf("%s: other bytes behind %d", c.Path, off)
		}
		off += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func rawWrite(c wire.Command) error {
	dev, err := device(c.Serial)
	if err != nil {
		return err
	}
	fd, err := unix.Open(dev, unix.O_WRONLY|unix.O_DSYNC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, make([]byte, 4096), 0)
	return err
}

const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
	fiTrim   = 0xc0185879
)

func onDirectory(path string, f func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func freeze(c wire.Command) error {
	request := uint(fiFreeze)
	if c.Op == wire.Thaw {
		request = fiThaw
	}
	return onDirectory(c.Path, func(fd int) error { return unix.IoctlSetInt(fd, request, 0) })
}

func trim(c wire.Command) error {
	r := struct{ start, length, least uint64 }{0, 1 << 62, 0}
	return onDirectory(c.Path, func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fiTrim, uintptr(unsafe.Pointer(&r))); errno != 0 {
			return errno
		}
		return nil
	})
}

func capacity(c wire.Command) (int64, error) {
	dev, err := device(c.Serial)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(dev)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

func record(n int64) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, uint64(n)), wire.RecordSize/8)
}

// records appends from a goroutine of its own, so that other commands go on.
func (h *host) records(c wire.Command) error {
	f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	go func() {
		for n := info.Size()/wire.RecordSize + 1; ; n++ {
			_, err := f.WriteAt(record(n), (n-1)*wire.RecordSize)
			if err == nil {
				err = unix.Fdatasync(int(f.Fd()))
			}
			a := wire.Answer{ID: c.ID, Acked: n, Path: c.Path}
			if err != nil {
				a.Acked, a.Error = 0, err.Error()
			}
			h.say(a)
			if err != nil || n == c.Size {
				return
			}
		}
	}()
	return nil
}

func count(c wire.Command) (n int64, err error) {
	f, err := os.Open(c.Path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	got := make([]byte, wire.RecordSize)
	for {
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, record(n+1)) {
			return n, nil
		}
		n++
	}
}
