package crashfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Shared mappings are written by page faults, and stay readable after the cut.
func TestSharedMapping(t *testing.T) {
	b := newBox(t)
	f, err := os.OpenFile(b.path("f"), os.O_RDWR|os.O_CREATE, 0o644)
	b.must(err)
	defer f.Close()
	b.must(f.Truncate(1 << 20))
	m, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	b.must(err)
	defer unix.Munmap(m)
	copy(m, "synced")
	b.must(f.Sync())
	b.sync(".")
	copy(m, "volatile")
	b.PowerCut(0)
	if got := string(m[:8]); got != "volatile" {
		t.Errorf("old mapping reads %q", got)
	}
	if got := m[1<<19]; got != 0 {
		t.Errorf("a page of the old mapping that was never touched reads %d", got)
	}
	data, err := os.ReadFile(b.path("f"))
	b.must(err)
	if len(data) != 1<<20 || !bytes.HasPrefix(data, []byte("synced\x00")) {
		t.Errorf("%d bytes, beginning %q", len(data), data[:8])
	}
}

func TestHolesAndAllocation(t *testing.T) {
	b := newBox(t)
	f, err := os.OpenFile(b.path("f"), os.O_RDWR|os.O_CREATE, 0o644)
	b.must(err)
	defer f.Close()
	fd := int(f.Fd())
	b.must(unix.Fallocate(fd, 0, 0, 1<<20))
	_, err = f.WriteAt(bytes.Repeat([]byte{7}, 3*4096), 4096)
	b.must(err)
	b.must(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096+100, 4096+4096))
	want := make([]byte, 1<<20)
	copy(want[4096:], bytes.Repeat([]byte{7}, 100))
	copy(want[3*4096+100:], bytes.Repeat([]byte{7}, 4096-100))
	got := make([]byte, 1<<20)
	_, err = f.ReadAt(got, 0)
	b.must(err)
	if !bytes.Equal(got, want) {
		t.Error("a punched range reads differently from zeroes")
	}
	for _, c := range []struct {
		whence    int
		off, want int64
	}{
		{unix.SEEK_DATA, 0, 4096}, {unix.SEEK_HOLE, 0, 0}, {unix.SEEK_HOLE, 4096, 2 * 4096},
		{unix.SEEK_DATA, 2 * 4096, 3 * 4096}, {unix.SEEK_HOLE, 3 * 4096, 4 * 4096},
	} {
		if got, err := unix.Seek(fd, c.off, c.whence); err != nil || got != c.want {
			t.Errorf("seek %d from %d: %d, %v, want %d", c.whence, c.off, got, err, c.want)
		}
	}
	if _, err := unix.Seek(fd, 4*4096, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
		t.Errorf("seek for data after the last: %v, want ENXIO", err)
	}
}

func TestLocksAndAppendAndExclusiveCreate(t *testing.T) {
	b := newBox(t)
	open := func(flag int) (*os.File, error) { return os.OpenFile(b.path("f"), flag, 0o644) }
	f, err := open(os.O_CREATE | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
	b.must(err)
	defer f.Close()
	if _, err := open(os.O_CREATE | os.O_EXCL); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second exclusive create: %v", err)
	}
	for _, s := range []string{"one ", "two"} {
		_, err := io.WriteString(f, s)
		b.must(err)
	}
	b.want(map[string]string{"f": "one two"})
	b.must(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	g, err := open(os.O_RDONLY)
	b.must(err)
	defer g.Close()
	if err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("second lock: %v, want EWOULDBLOCK", err)
	}
}

func TestRenameNoReplace(t *testing.T) {
	b := newBox(t)
	b.write("a", "a")
	b.write("b", "b")
	err := unix.Renameat2(unix.AT_FDCWD, b.path("a"), unix.AT_FDCWD, b.path("b"), unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EEXIST) {
		t.Errorf("rename onto a file: %v, want EEXIST", err)
	}
	b.must(unix.Renameat2(unix.AT_FDCWD, b.path("a"), unix.AT_FDCWD, b.path("c"), unix.RENAME_NOREPLACE))
	b.want(map[string]string{"b": "b", "c": "a"})
}

func TestManyNames(t *testing.T) {
	b := newBox(t)
	want := map[string]string{}
	for i := range 600 {
		name := fmt.Sprintf("a-file-with-a-name-that-fills-more-than-one-reply-%04d", i)
		f, err := os.Create(b.path(name))
		b.must(err)
		b.must(f.Close())
		want[name] = ""
	}
	b.sync(".")
	b.PowerCut(0)
	b.want(want)
}
