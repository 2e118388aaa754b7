package mount_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

const size = 64 << 20

// requireKernelMounts ends the test unless this machine can mount FUSE files through loop devices.
func requireKernelMounts(t *testing.T) {
	t.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, path := range []string{"/dev/fuse", "/dev/loop-control"} {
		if unix.Access(path, unix.R_OK|unix.W_OK) != nil {
			missing = append(missing, path)
		}
	}
	if len(missing) == 0 {
		return
	}
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("kernel mounts are required, missing: %v", missing)
	}
	t.Skipf("no kernel mounts, missing: %v", missing)
}

// rig is a FUSE server over memory, which shows in the end that nothing was left behind.
type rig struct {
	*testing.T
	server *fuse.Server
	dir    string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	requireKernelMounts(t)
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	dir := t.TempDir()
	server, err := fuse.New(filepath.Join(dir, "drives"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Errorf("close the server: %v", err) // a loop device still had a drive open
		}
		if left := mountsBelow(t, dir); len(left) > 0 {
			t.Errorf("still mounted: %q", left)
			for i := len(left) - 1; i >= 0; i-- {
				_ = unix.Unmount(left[i], unix.MNT_DETACH)
			}
		}
	})
	return &rig{T: t, server: server, dir: dir}
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, dir+"/") {
			found = append(found, path)
		}
	}
	return found
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// formatted returns a device with an empty file system.
func (r *rig) formatted(size int64) *mounttest.MemDevice {
	r.Helper()
	dev := mounttest.NewMemDevice(size)
	if err := (ext4.Formatter{}).Format(r.Context(), dev); err != nil {
		r.Fatal(err)
	}
	return dev
}

func (r *rig) expose(name string, dev *mounttest.MemDevice, readOnly bool) mount.Exposure {
	r.Helper()
	x, err := r.server.Expose(r.Context(), name, dev, readOnly)
	if err != nil {
		r.Fatal(err)
	}
	return x
}

// mount mounts and, unless the test did, unmounts at its end.
func (r *rig) mount(x mount.Exposure, target string, o mount.KernelOptions) *mount.KernelMount {
	r.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	m, err := mount.MountKernel(r.Context(), x.Path(), target, o)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := m.Unmount(context.Background()); err != nil {
			r.Errorf("unmount at the end: %v", err)
		}
	})
	return m
}

// gone fails unless nothing has the exposure open any more: no loop device was left over it.
func (r *rig) gone(x mount.Exposure) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := x.Close(ctx); err != nil {
		r.Errorf("something is left over the drive: %v", err)
	}
}

func (r *rig) write(path string, p []byte) {
	r.Helper()
	if err := os.WriteFile(path, p, 0o644); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) want(path string, p []byte) {
	r.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	if !bytes.Equal(got, p) {
		r.Errorf("%s: %d other bytes, want %d", path, len(got), len(p))
	}
}

// wantMissing fails if the directory was left or removed against expectation.
func (r *rig) wantMissing(path string) {
	r.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		r.Errorf("%s is left behind", path)
	}
}

func content(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}

// After Unmount the device holds every byte, and nothing reaches it any more: it can be sealed.
func TestUnmountedDriveHoldsEveryWrite(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	target := r.path("a/b/data")
	for i := range 3 {
		x := r.expose("drive", dev, false)
		m := r.mount(x, target, mount.KernelOptions{})
		for j := range i {
			r.want(filepath.Join(target, fmt.Sprint(j)), content(1<<20+j))
		}
		r.write(filepath.Join(target, fmt.Sprint(i)), content(1<<20+i)) // no sync: it is in page caches
		if err := m.Unmount(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.Unmount(t.Context()); err != nil {
			t.Errorf("unmounted again: %v", err)
		}
		before := dev.Counts()
		r.gone(x)
		r.wantMissing(r.path("a"))
		if after := dev.Counts(); after != before {
			t.Errorf("the device was used after Unmount: %+v, before %+v", after, before)
		}
	}
}

func TestLoopDeviceIsDirectAndDiscards(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	m := r.mount(r.expose("drive", dev, false), r.path("data"), mount.KernelOptions{})
	sys := "/sys/block/" + filepath.Base(m.Device())
	for name, want := range map[string]string{
		"loop/dio": "1", "loop/autoclear": "1", "ro": "0", "queue/logical_block_size": "512",
	} {
		if got, err := os.ReadFile(filepath.Join(sys, name)); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, %v; want %s", name, got, err, want)
		}
	}
	file := r.path("data/file")
	r.write(file, content(8<<20))
	flushes := dev.Counts().Flushes
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := dev.Counts(); c.Flushes == flushes || c.BytesWritten < 8<<20 {
		t.Errorf("%+v after Sync, want 8 MiB written and a flush", c)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := dev.Counts(); c.BytesDiscarded < 8<<20 {
		t.Errorf("%d bytes discarded after 8 MiB were deleted", c.BytesDiscarded)
	}
}

// any number of readers at once; the file system and the block device refuse writes.
func TestReadOnlyMountsRefuseWrites(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	x := r.expose("writer", dev, false)
	m := r.mount(x, r.path("w"), mount.KernelOptions{})
	r.write(r.path("w/file"), content(4096))
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := dev.Counts()
	for i := range 4 {
		target := r.path(fmt.Sprintf("r%d", i))
		m := r.mount(r.expose(fmt.Sprintf("reader-%d", i), dev, true), target, mount.KernelOptions{ReadOnly: true})
		r.want(filepath.Join(target, "file"), content(4096))
		for _, name := range []string{"file", "new"} {
			fd, err := unix.Open(filepath.Join(target, name), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err == nil {
				_ = unix.Close(fd)
			}
			if !errors.Is(err, unix.EROFS) {
				t.Errorf("reader %d: open %s for writing: %v, want EROFS", i, name, err)
			}
		}
		if ro, err := os.ReadFile("/sys/block/" + filepath.Base(m.Device()) + "/ro"); err != nil || string(ro) != "1\n" {
			t.Errorf("reader %d: block device ro is %q, %v", i, ro, err)
		}
		if err := writeDevice(m.Device()); err == nil {
			t.Errorf("reader %d: a write to the block device succeeded", i)
		}
	}
	if after := dev.Counts(); after.Writes != before.Writes || after.Discards != before.Discards {
		t.Errorf("the device was changed: %+v, before %+v", after, before)
	}
}

func writeDevice(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, make([]byte, 512), 0)
	return err
}

func TestMountsOfAnEarlierProcessAreAdopted(t *testing.T) {
	r := newRig(t)
	if _, err := mount.AdoptKernel(r.path("data"), mount.KernelOptions{}); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("nothing there: %v, want ErrNotMounted", err)
	}
	if _, err := mount.AdoptKernel(r.path("drives"), mount.KernelOptions{}); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("no loop device: %v, want ErrNotMounted", err)
	}
	x := r.expose("drive", r.formatted(size), false)
	first := r.mount(x, r.path("data"), mount.KernelOptions{})
	again, err := mount.AdoptKernel(r.path("data"), mount.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Device() != first.Device() || again.FSType() != "ext4" {
		t.Errorf("adopted %s with %s, want %s with ext4", again.Device(), again.FSType(), first.Device())
	}
	if err := again.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.gone(x)
}

func TestGrownDriveGrowsItsFileSystem(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	x := r.expose("drive", dev, false)
	m := r.mount(x, r.path("data"), mount.KernelOptions{})
	r.write(r.path("data/file"), content(1<<20))
	if err := dev.Grow(4 * size); err != nil {
		t.Fatal(err)
	}
	if err := x.Resize(); err != nil {
		t.Fatal(err)
	}
	err := m.Grow(t.Context())
	sectors, serr := os.ReadFile("/sys/block/" + filepath.Base(m.Device()) + "/size")
	if want := fmt.Sprintln(4 * size / 512); serr != nil || string(sectors) != want {
		t.Errorf("block device of %q sectors, %v; want %q", sectors, serr, want)
	}
	if !capable(t, unix.CAP_SYS_RESOURCE) {
		// The kernel refuses then, and the error has to say so.
		if !errors.Is(err, mount.ErrUnsupported) || !errors.Is(err, unix.EPERM) {
			t.Errorf("without CAP_SYS_RESOURCE: %v, want ErrUnsupported", err)
		}
		return
	}
	if err := errors.Join(err, m.Grow(t.Context())); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.path("data"), &st); err != nil || int64(st.Blocks)*st.Bsize < 3*size {
		t.Errorf("file system of %d bytes, %v; want nearly %d", int64(st.Blocks)*st.Bsize, err, 4*size)
	}
	r.want(r.path("data/file"), content(1<<20))
	r.write(r.path("data/large"), content(2*size))
}

func capable(t *testing.T, capability uint) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// the kernel initialises nothing in a fresh file system, whatever its size, so an idle volume publishes
// nothing.
func TestMountedEmptyVolumeStaysSmall(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(64 << 30)
	before := dev.Counts()
	m := r.mount(r.expose("drive", dev, false), r.path("data"), mount.KernelOptions{})
	time.Sleep(2 * time.Second)
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := dev.Counts()
	if n := after.BytesWritten - before.BytesWritten; n > 256<<10 {
		t.Errorf("%d bytes written by mounting and waiting", n)
	}
}
