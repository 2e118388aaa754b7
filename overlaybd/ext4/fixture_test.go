package ext4_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// missing ends the test because this machine lacks something.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("required but missing: %s", what)
	}
	t.Skipf("missing: %s", what)
}

// requireTool ends the test unless the program is installed.
func requireTool(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	missing(t, name+" (package e2fsprogs)")
	return ""
}

// requireLoop ends the test unless this machine can mount files through loop devices.
func requireLoop(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "root, to mount")
	}
	if unix.Access("/dev/loop-control", unix.R_OK|unix.W_OK) != nil {
		missing(t, "/dev/loop-control")
	}
}

// run runs a program with a time limit and returns what it printed. A zero exit status is required.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// fsck fails the test unless the checker finds nothing at all.
func fsck(t testing.TB, image string) {
	t.Helper()
	out, err := try(requireTool(t, "e2fsck"), "-fn", image)
	if err != nil {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		known := strings.HasPrefix(line, "Pass ") || strings.HasPrefix(line, "e2fsck 1.") || strings.Contains(line, " files (")
		if !known {
			t.Errorf("e2fsck says: %s", line)
		}
	}
}

// mountImage mounts a file until the test ends, or until unmount is called.
func mountImage(t testing.TB, image, options string) (dir string, unmount func()) {
	t.Helper()
	requireLoop(t)
	dir, err := os.MkdirTemp("", "ext4-") // not below t.TempDir: a mount left there would be deleted with it
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", "ext4", "-o", "loop,"+options, image, dir)
	mounted := true
	unmount = func() {
		if !mounted {
			return
		}
		mounted = false
		if out, err := try("umount", dir); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
			try("umount", "-l", dir)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}

// newImage makes a sparse file.
func newImage(t testing.TB, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// item is an entry with the content of a regular file.
type item struct {
	ext4.Entry
	content []byte
}

func file(path string, content string) item {
	return item{ext4.Entry{Path: path, Mode: unix.S_IFREG | 0o644, Size: int64(len(content))}, []byte(content)}
}

func directory(path string) item {
	return item{Entry: ext4.Entry{Path: path, Mode: unix.S_IFDIR | 0o755}}
}

// write makes a file system of the items.
func write(t testing.TB, dst io.WriterAt, o ext4.Options, items ...item) {
	t.Helper()
	w, err := ext4.NewWriter(t.Context(), dst, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		if err := w.Add(t.Context(), i.Entry, bytes.NewReader(i.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// facts is all that can be seen of one path of a mounted tree. Links is the first path, in order of names, of the same
// inode.
type facts struct {
	Mode                        uint32
	UID, GID                    uint32
	Links                       uint64
	Size                        int64
	Device                      string
	Target                      string
	Modified, Accessed, Changed time.Time
	Same                        string
	Content                     string
	Xattrs                      map[string]string
}

// look collects the facts of a tree; directories have no size, since that is the file system's choice.
func look(t testing.TB, root string) map[string]facts {
	t.Helper()
	all, first := map[string]facts{}, map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if first[st.Ino] == "" {
			first[st.Ino] = rel
		}
		f, err := factsOf(path, &st)
		f.Same = first[st.Ino]
		all[rel] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func factsOf(path string, st *unix.Stat_t) (f facts, err error) {
	f = facts{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Links: uint64(st.Nlink), Size: st.Size,
		Modified: time.Unix(st.Mtim.Unix()).UTC(), Accessed: time.Unix(st.Atim.Unix()).UTC(),
		Changed: time.Unix(st.Ctim.Unix()).UTC()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Content, err = digestFile(path)
	case unix.S_IFLNK:
		f.Target, err = os.Readlink(path)
	case unix.S_IFDIR:
		f.Size = 0
	case unix.S_IFCHR, unix.S_IFBLK:
		f.Device = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	if err == nil {
		f.Xattrs, err = xattrs(path)
	}
	return f, err
}

func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

func digest(p []byte) string { return fmt.Sprintf("%x", sha256.Sum256(p)) }

func xattrs(path string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n == 0 {
		return nil, err
	}
	all := map[string]string{}
	for _, name := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("%s of %q: %w", name, path, err)
		}
		all[name] = string(value[:n])
	}
	return all, nil
}
