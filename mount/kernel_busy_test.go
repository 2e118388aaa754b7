package mount_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

func TestBusyMountStaysUntilItsUsersLeave(t *testing.T) {
	r := newRig(t)
	m := r.mount(r.expose("drive", r.formatted(size), false), r.path("data"), mount.KernelOptions{})
	f, err := os.Create(r.path("data/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Unmount(ctx); !errors.Is(err, mount.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want ErrBusy at the deadline", err)
	}
	if _, err := os.Stat(r.path("data/file")); err != nil {
		t.Errorf("a refused unmount took the drive away: %v", err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = f.Close()
	}()
	if err := m.Unmount(t.Context()); err != nil {
		t.Errorf("unmount while the last user leaves: %v", err)
	}
}

func TestDetachSaysWhetherSomethingWasLeft(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	unused := r.mount(r.expose("unused", r.formatted(size), true), r.path("unused"), mount.KernelOptions{ReadOnly: true})
	if err := unused.Detach(t.Context()); err != nil {
		t.Errorf("not in use: %v", err)
	}
	m := r.mount(r.expose("drive", dev, false), r.path("data"), mount.KernelOptions{})
	f, err := os.Create(r.path("data/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := m.Detach(t.Context()); !errors.Is(err, mount.ErrDetached) {
		t.Errorf("in use: %v, want ErrDetached", err)
	}
	if left := mountsBelow(t, r.path("data")[:len(r.path("data"))-1]); len(left) > 0 {
		t.Errorf("still there: %q", left)
	}
	if _, err := f.WriteString("late"); err != nil {
		t.Errorf("the last user was cut off: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Errorf("after the last user left: %v", err)
	}
}

func TestFreezeStopsWritesUntilThaw(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	m := r.mount(r.expose("drive", dev, false), r.path("data"), mount.KernelOptions{})
	r.write(r.path("data/before"), content(100_000))
	thaw, err := m.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Freeze(t.Context()); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("second freeze: %v, want ErrBusy", err)
	}
	frozen := dev.Counts()
	if frozen.Unflushed != 0 {
		t.Errorf("%d changes not flushed by the freeze", frozen.Unflushed)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(r.path("data/during"), content(100_000), 0o600) }()
	select {
	case err := <-written:
		t.Errorf("a write returned %v while frozen", err)
	case <-time.After(100 * time.Millisecond):
	}
	r.want(r.path("data/before"), content(100_000))
	if after := dev.Counts(); after.Writes != frozen.Writes {
		t.Errorf("%d writes while frozen", after.Writes-frozen.Writes)
	}
	if err := errors.Join(thaw(), thaw(), <-written); err != nil {
		t.Errorf("thaw, thaw again, write: %v", err)
	}
}

func TestUnmountThawsWhatWasLeftFrozen(t *testing.T) {
	r := newRig(t)
	x := r.expose("drive", r.formatted(size), false)
	m := r.mount(x, r.path("data"), mount.KernelOptions{})
	thaw, err := m.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.gone(x)
	if err := thaw(); err != nil {
		t.Errorf("thaw after unmount: %v", err)
	}
	if _, err := m.Freeze(t.Context()); !errors.Is(err, mount.ErrClosed) {
		t.Errorf("freeze after unmount: %v, want ErrClosed", err)
	}
}

// gate is a hook that holds operations back while closed.
type gate struct{ held chan chan struct{} }

func newGate() *gate {
	g := &gate{held: make(chan chan struct{}, 1)}
	g.held <- nil
	return g
}

func (g *gate) shut() { <-g.held; g.held <- make(chan struct{}) }

func (g *gate) open() {
	if c := <-g.held; c != nil {
		close(c)
	}
	g.held <- nil
}

func (g *gate) pass() {
	c := <-g.held
	g.held <- c
	if c != nil {
		<-c
	}
}

// A device that hangs costs the caller its time limit, and leaves nothing behind once it answers again.
func TestHungDeviceDoesNotHangTheCaller(t *testing.T) {
	r := newRig(t)
	dev, g := r.formatted(size), newGate()
	dev.Hook = func(mounttest.Op, int64, int64) error { g.pass(); return nil }
	t.Cleanup(g.open)
	x := r.expose("drive", dev, false)
	g.shut()
	start := time.Now()
	o := mount.KernelOptions{Timeout: 100 * time.Millisecond}
	_, err := mount.MountKernel(t.Context(), x.Path(), r.path("data"), o)
	if !errors.Is(err, mount.ErrTimeout) || time.Since(start) > 5*time.Second {
		t.Fatalf("mount: %v after %v, want ErrTimeout at once", err, time.Since(start))
	}
	g.open()
	r.eventually("the target to vanish", func() bool { _, err := os.Stat(r.path("data")); return err != nil })

	m := r.mount(x, r.path("data"), mount.KernelOptions{Timeout: 10 * time.Second})
	r.write(r.path("data/file"), content(4096))
	g.shut()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := m.Freeze(ctx); !errors.Is(err, mount.ErrTimeout) {
		t.Errorf("freeze: %v, want ErrTimeout", err)
	}
	g.open()
	// The freeze that came too late thaws itself, so that this write does not block for ever.
	r.eventually("a write to return", func() bool {
		return os.WriteFile(r.path("data/after"), content(4096), 0o600) == nil
	})
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.gone(x)
}

// A drive that was cut off under its file system gives errors, never a hang, and all of it can be taken down.
func TestMountOverACutDriveComesDown(t *testing.T) {
	r := newRig(t)
	dev := r.formatted(size)
	x := r.expose("drive", dev, false)
	m := r.mount(x, r.path("data"), mount.KernelOptions{})
	r.write(r.path("data/file"), content(1<<20))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := x.Close(ctx); !errors.Is(err, mount.ErrDetached) {
		t.Fatalf("%v, want ErrDetached", err)
	}
	if err := m.Sync(t.Context()); err == nil {
		t.Error("a sync succeeded although its drive is gone")
	}
	before := dev.Counts()
	if err := m.Unmount(t.Context()); err != nil {
		t.Errorf("unmount: %v", err)
	}
	if after := dev.Counts(); after != before {
		t.Errorf("the device was used after it was cut off: %+v, before %+v", after, before)
	}
}

func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("waited too long for %s", what)
		}
	}
}

// After the process that served a mounted drive was killed, the next one finds the mount and takes it down.
func TestMountOfAKilledProcessComesDown(t *testing.T) {
	r := newRig(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperHost$")
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_HOST="+r.path("host"))
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
	m, err := mount.AdoptKernel(r.path("host/data"), mount.KernelOptions{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Sync(t.Context()); err == nil {
		t.Error("a sync succeeded although nobody serves the drive")
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Error(err)
	}
	server, err := fuse.New(r.path("host/drives"))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHelperHost is the process that the test above kills.
func TestHelperHost(t *testing.T) {
	dir := os.Getenv("SANDVOL_TEST_HOST")
	if dir == "" {
		return
	}
	server, err := fuse.New(filepath.Join(dir, "drives"))
	if err != nil {
		t.Fatal(err)
	}
	dev := mounttest.NewMemDevice(size)
	if err := (ext4.Formatter{}).Format(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	x, err := server.Expose(t.Context(), "drive", dev, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mount.MountKernel(t.Context(), x.Path(), filepath.Join(dir, "data"), mount.KernelOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data/file"), content(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("x")
	time.Sleep(time.Minute)
}
