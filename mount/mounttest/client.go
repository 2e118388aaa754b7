package mounttest

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// Client is what uses an exposure from outside: a file, or a connection.
type Client interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Sync() error
	Discard(off, n int64) error
	Size() (int64, error)
	Close() error
}

// file is a Client over a path. It uses plain system calls: package os would put the file into Go's poller, which
// must never hold a file that this process serves.
type file int

// OpenFile opens an exposure that is a file.
func OpenFile(path string, readOnly bool) (Client, error) {
	flags := unix.O_RDWR
	if readOnly {
		flags = unix.O_RDONLY
	}
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return file(fd), nil
}

func (f file) ReadAt(p []byte, off int64) (int, error) {
	return whole(p, off, io.EOF, func(p []byte, off int64) (int, error) { return unix.Pread(int(f), p, off) })
}

func (f file) WriteAt(p []byte, off int64) (int, error) {
	return whole(p, off, io.ErrShortWrite, func(p []byte, off int64) (int, error) { return unix.Pwrite(int(f), p, off) })
}

// whole repeats a system call until all is done; one that does nothing ends it with stalled.
func whole(p []byte, off int64, stalled error, call func([]byte, int64) (int, error)) (int, error) {
	done := 0
	for done < len(p) {
		n, err := call(p[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, err
		case n == 0:
			return done, stalled
		default:
			done += n
		}
	}
	return done, nil
}

func (f file) Sync() error { return unix.Fsync(int(f)) }

func (f file) Discard(off, n int64) error {
	return unix.Fallocate(int(f), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (f file) Size() (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f), &st)
	return st.Size, err
}

func (f file) Close() error { return unix.Close(int(f)) }

// VanishFile opens the file in another process and kills it while it holds the file open.
func VanishFile(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `exec 3<>"$1" && echo open && read wait`, "sh", path)
	// The child waits on its input, which nothing is ever written to.
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	Vanish(t, cmd)
}

// Vanish starts a client in another process and kills it when it has said "open" on its output.
func Vanish(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadFull(out, make([]byte, len("open\n")))
	if kerr := cmd.Process.Kill(); kerr != nil {
		t.Error(kerr)
	}
	_ = cmd.Wait() // "killed" is what it should say
	if err != nil {
		t.Fatalf("%v did not open the drive: %v", cmd.Args, err)
	}
}
