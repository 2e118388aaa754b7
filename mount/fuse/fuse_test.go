package fuse_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/mounttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// requireFUSE ends the test unless this process can mount.
func requireFUSE(t *testing.T) {
	t.Helper()
	reason := ""
	if os.Geteuid() != 0 {
		reason = "not root"
	} else if fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		reason = "/dev/fuse: " + err.Error()
	} else {
		_ = unix.Close(fd)
	}
	if reason == "" {
		return
	}
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("FUSE is required: %s", reason)
	}
	t.Skipf("no FUSE: %s", reason)
}

// newServer mounts a server whose clean-up never waits long, whatever the test left open.
func newServer(t *testing.T) *fuse.Server {
	t.Helper()
	requireFUSE(t)
	dir := filepath.Join(t.TempDir(), "drives")
	s, err := fuse.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil && !t.Failed() {
			t.Errorf("close: %v", err)
		}
		if mounted(t, dir) {
			t.Errorf("%s is still mounted", dir)
		}
	})
	return s
}

func mounted(t *testing.T, dir string) bool {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(info), " "+dir+" ")
}

func expose(t *testing.T, s *fuse.Server, name string, dev *mounttest.MemDevice, readOnly bool) mount.Exposure {
	t.Helper()
	x, err := s.Expose(t.Context(), name, dev, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestExposerContract(t *testing.T) {
	mounttest.Run(t, func(t *testing.T) mounttest.Env { return mounttest.Env{Exposer: newServer(t)} })
}

// the drive of a read-only volume cannot be opened for writing, and the reason is EROFS.
func TestReadOnlyDriveAnswersEROFS(t *testing.T) {
	s := newServer(t)
	x := expose(t, s, "ro", mounttest.NewMemDevice(1<<20), true)
	for _, flags := range []int{unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_TRUNC} {
		fd, err := unix.Open(x.Path(), flags|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("open with flags %#x: %v, want EROFS", flags, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(x.Path(), &st); err != nil || st.Mode&0o777 != 0o400 || st.Size != 1<<20 {
		t.Errorf("mode %o, size %d, %v; want 400 and %d", st.Mode, st.Size, err, 1<<20)
	}
}

func TestDriveIsNeverTruncatedOrRemoved(t *testing.T) {
	s := newServer(t)
	x := expose(t, s, "drive", mounttest.NewMemDevice(1<<20), false)
	if err := unix.Truncate(x.Path(), 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v, want EPERM", err)
	}
	if err := unix.Truncate(x.Path(), 1<<20); err != nil {
		t.Errorf("truncate to the same size: %v", err)
	}
	if fd, err := unix.Open(x.Path(), unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EPERM) {
		_ = unix.Close(fd)
		t.Errorf("open with O_TRUNC: %v, want EPERM", err)
	}
	if err := unix.Unlink(x.Path()); !errors.Is(err, unix.EPERM) {
		t.Errorf("unlink: %v, want EPERM", err)
	}
	if err := unix.Rename(x.Path(), x.Path()+"2"); err == nil {
		t.Error("rename succeeded")
	}
	if fd, err := unix.Open(x.Path()+"3", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
		_ = unix.Close(fd)
		t.Error("a file was created among the drives")
	}
	var st unix.Stat_t
	if err := unix.Stat(x.Path(), &st); err != nil || st.Size != 1<<20 {
		t.Errorf("size %d, %v; want %d", st.Size, err, 1<<20)
	}
}

// An unprivileged VMM can be given its drive, and no other.
func TestOwnerAndModeDecideWhoOpens(t *testing.T) {
	s := newServer(t)
	mine := expose(t, s, "mine", mounttest.NewMemDevice(1<<20), false)
	expose(t, s, "other", mounttest.NewMemDevice(1<<20), false)
	if err := unix.Chown(mine.Path(), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	// The test's temporary directory is closed to others by its parents.
	dir := filepath.Dir(mine.Path())
	for _, parent := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := `(exec 3<>"$0/mine") && ! (exec 4<>"$0/other") 2>/dev/null`
	cmd := exec.Command("/bin/sh", "-c", script, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as user 12345: %v: %s", err, out)
	}
	if err := unix.Chmod(mine.Path(), 0o777); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(mine.Path(), &st); err != nil || st.Mode&0o777 != 0o666 || st.Uid != 12345 {
		t.Errorf("mode %o, owner %d, %v; want 666 and 12345", st.Mode, st.Uid, err)
	}
}

func TestZeroRangeAndPlainAllocation(t *testing.T) {
	s := newServer(t)
	dev := mounttest.NewMemDevice(1 << 20)
	x := expose(t, s, "drive", dev, false)
	fd, err := unix.Open(x.Path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 4096, 8192); err != nil {
		t.Errorf("zero range: %v", err)
	}
	if c := dev.Counts(); c.Discards != 1 || c.BytesDiscarded != 8192 {
		t.Errorf("%+v, want one discard of 8192 bytes", c)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 1<<20-4096, 8192); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("zero range past the end: %v, want ENOSPC", err)
	}
	if err := unix.Fallocate(fd, 0, 0, 4096); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("plain allocation: %v, want EOPNOTSUPP", err)
	}
	// A hole may be punched past the end, as in any file; what is inside is discarded.
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20-4096, 1<<20); err != nil {
		t.Errorf("hole past the end: %v", err)
	}
	if c := dev.Counts(); c.Discards != 2 || c.BytesDiscarded != 8192+4096 {
		t.Errorf("%+v, want a second discard of 4096 bytes", c)
	}
}

func TestServerCloseCutsOffWhoDoesNotLeave(t *testing.T) {
	requireFUSE(t)
	dir := filepath.Join(t.TempDir(), "drives")
	s, err := fuse.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	x := expose(t, s, "drive", mounttest.NewMemDevice(1<<20), false)
	fd, err := unix.Open(x.Path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, mount.ErrDetached) {
		t.Errorf("%v, want ErrDetached", err)
	}
	if mounted(t, dir) {
		t.Error("still mounted")
	}
	if _, err := unix.Pread(fd, make([]byte, 512), 0); err == nil {
		t.Error("a read succeeded after the mount was aborted")
	}
	if _, err := s.Expose(t.Context(), "late", mounttest.NewMemDevice(1<<20), false); !errors.Is(err, mount.ErrClosed) {
		t.Errorf("expose after close: %v, want ErrClosed", err)
	}
}

func TestServerRefusesDirectoriesInUse(t *testing.T) {
	requireFUSE(t)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Dir(expose(t, newServer(t), "drive", mounttest.NewMemDevice(1<<20), false).Path())
	for dir, want := range map[string]error{
		"relative":     mount.ErrInvalid,
		full + "/../x": mount.ErrInvalid,
		full:           mount.ErrExists,
		taken:          mount.ErrExists,
	} {
		if s, err := fuse.New(dir); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", dir, err, want)
			if err == nil {
				_ = s.Close(t.Context())
			}
		}
	}
}

// After a host process was killed, its mount answers ENOTCONN to everything; the next one mounts over it.
func TestServerReplacesTheMountOfADeadProcess(t *testing.T) {
	requireFUSE(t)
	dir := filepath.Join(t.TempDir(), "drives")
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperServer$")
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_SERVER="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = out.Read(make([]byte, 1))
	if kerr := cmd.Process.Kill(); kerr != nil {
		t.Error(kerr)
	}
	_ = cmd.Wait() // "killed" is what it should say
	if err != nil {
		t.Fatal(err)
	}
	if !mounted(t, dir) {
		t.Fatal("the dead process left no mount; the test proves nothing")
	}
	s, err := fuse.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if mounted(t, dir) {
		t.Error("a mount is left")
	}
}

// TestHelperServer is the process that the test above kills.
func TestHelperServer(t *testing.T) {
	dir := os.Getenv("SANDVOL_TEST_SERVER")
	if dir == "" {
		return
	}
	if _, err := fuse.New(dir); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("x")
	time.Sleep(time.Minute)
}

// A sandbox is a child of the host. With the connection it could answer for the drives of others.
func TestChildrenDoNotInheritTheConnection(t *testing.T) {
	newServer(t)
	out, err := exec.Command("sh", "-c", "ls -l /proc/self/fd").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "/dev/fuse") {
		t.Errorf("a child has the connection:\n%s", out)
	}
}

func TestADirectoryIsServedByOneProcess(t *testing.T) {
	requireFUSE(t)
	dir := filepath.Join(t.TempDir(), "drives")
	s, err := fuse.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fuse.New(dir)
	if !errors.Is(err, mount.ErrExists) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second server on %s: %v", dir, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := fuse.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
