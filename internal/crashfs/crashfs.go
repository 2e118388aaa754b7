package crashfs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// replyTimeout bounds every answer of the daemon. A cut of a disk with a few gigabytes takes a second.
const replyTimeout = 30 * time.Second

// daemonReady is set once this process has given RunDaemon the chance to be the daemon.
var daemonReady bool

// Main is TestMain for a package that uses this one: it runs the tests and exits with their status.
func Main(m interface{ Run() int }) {
	RunDaemon()
	os.Exit(m.Run())
}

// FS is a disk mounted at a directory. Its methods may be called from any goroutine of the test; on failure they end
// the test.
type FS struct {
	t   testing.TB
	dir string
	cmd *exec.Cmd

	mu      sync.Mutex
	control *os.File
	in      *json.Decoder
	out     *json.Encoder
}

// New mounts an empty disk, which goes away with the test. It skips the test where there is no root or no /dev/fuse,
// and fails it instead when SANDVOL_REQUIRE_REAL is 1.
func New(t testing.TB) *FS {
	t.Helper()
	if !daemonReady {
		t.Fatal("crashfs: TestMain must call crashfs.Main(m) or begin with crashfs.RunDaemon()")
	}
	probe(t)
	f := &FS{t: t, dir: t.TempDir()}
	f.start()
	t.Cleanup(f.close)
	f.do(request{Op: opMount, Dir: f.dir})
	return f
}

func probe(t testing.TB) {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "mounting needs root"
	} else if fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		missing = fmt.Sprintf("/dev/fuse: %v", err)
	} else {
		unix.Close(fd)
	}
	switch {
	case missing == "":
	case os.Getenv("SANDVOL_REQUIRE_REAL") == "1":
		t.Fatal("crashfs: ", missing)
	default:
		t.Skip("no disk that can lose power: ", missing)
	}
}

// start runs this test binary again as the daemon, with a socket between the two.
func (f *FS) start() {
	f.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		f.t.Fatal("crashfs: socketpair: ", err)
	}
	// Non-blocking, so that deadlines work.
	f.control = os.NewFile(uintptr(pair[0]), "crashfs control")
	theirs := os.NewFile(uintptr(pair[1]), "crashfs control of the daemon")
	defer theirs.Close()
	f.in, f.out = json.NewDecoder(f.control), json.NewEncoder(f.control)

	f.cmd = exec.Command("/proc/self/exe")
	// A binary built with the race detector sleeps a second before it exits, unless told not to.
	f.cmd.Env = append(os.Environ(), daemonEnv+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	f.cmd.ExtraFiles = []*os.File{theirs}
	f.cmd.Stderr = os.Stderr
	// A terminal's interrupt must not reach it: it unmounts when the test process is gone.
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := f.cmd.Start(); err != nil {
		f.control.Close()
		f.t.Fatal("crashfs: start the daemon: ", err)
	}
}

// Dir returns the directory where the disk is mounted. It is the same for the life of the FS.
func (f *FS) Dir() string { return f.dir }

// Ops returns the number of operations so far that change something: create, write, truncate, fallocate, mkdir, link,
// rename, unlink, rmdir and fsync, refused ones included. A power cut does not restart the count.
func (f *FS) Ops() int {
	f.t.Helper()
	return f.do(request{Op: opOps})
}

// StopAt makes the operation with number n, counted as Ops does and from 1, and all later ones fail with EIO and
// without effect: the machine is dying. Reads go on. 0 takes it back.
func (f *FS) StopAt(n int) {
	f.t.Helper()
	f.do(request{Op: opStopAt, N: int64(n)})
}

// FailSync makes the next fsync fail, and lose for good what it should have written.
func (f *FS) FailSync() {
	f.t.Helper()
	f.FailSyncAt(1)
}

// FailSyncAt makes the n-th fsync from now fail, counted from 1, as FailSync does with the next. 0 takes it back.
func (f *FS) FailSyncAt(n int) {
	f.t.Helper()
	f.do(request{Op: opFailSync, N: int64(n)})
}

// PowerCut takes the disk to a state that a power cut may leave, chosen by seed, and mounts it again; StopAt and
// FailSync are cleared. Seed 0 leaves only what was synced. Files that were open stay readable with what they had and
// refuse every change.
func (f *FS) PowerCut(seed int64) {
	f.t.Helper()
	f.do(request{Op: opPowerCut, N: seed})
}

// Erase replaces the disk with an empty one. It is a cheaper way than New to begin again.
func (f *FS) Erase() {
	f.t.Helper()
	f.do(request{Op: opErase})
}

func (f *FS) do(req request) int {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.roundTrip(req)
	if err != nil {
		f.abort()
		f.t.Fatalf("crashfs: %s: %v", req.Op, err)
	}
	return n
}

func (f *FS) roundTrip(req request) (int, error) {
	if err := f.control.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return 0, err
	}
	if err := f.out.Encode(req); err != nil {
		return 0, err
	}
	var rep reply
	if err := f.in.Decode(&rep); err != nil {
		return 0, fmt.Errorf("no answer from the daemon: %w", err)
	}
	if rep.Err != "" {
		return 0, fmt.Errorf("daemon: %s", rep.Err)
	}
	return rep.N, nil
}

// close ends the daemon: it unmounts and exits when the channel is closed.
func (f *FS) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.control.Close()
	// One that hangs is killed; the kernel then answers whatever still waits on the mount.
	kill := time.AfterFunc(replyTimeout, f.abort)
	if err := f.cmd.Wait(); err != nil {
		f.t.Errorf("crashfs: daemon: %v", err)
	}
	kill.Stop()
	_ = unix.Unmount(f.dir, unix.MNT_DETACH)
}

// abort ends the daemon without its help, and takes its mount away.
func (f *FS) abort() {
	// It may have exited by itself, and unmounted.
	_ = f.cmd.Process.Kill()
	_ = unix.Unmount(f.dir, unix.MNT_DETACH)
}
