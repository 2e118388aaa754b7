package mount_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/mounttest"
)

// Each target that could hide data or lead elsewhere is refused with its reason, and nothing is left of the attempt.
func TestBadTargetsAreRefused(t *testing.T) {
	r := newRig(t)
	x := r.expose("drive", r.formatted(size), false)
	for _, dir := range []string{"full", "empty"} {
		if err := os.Mkdir(r.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.write(r.path("full/file"), nil)
	r.write(r.path("plain"), nil)
	for name, to := range map[string]string{"link": "empty", "out": "/"} {
		if err := os.Symlink(to, r.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		target, reason string
		class          error
		o              mount.KernelOptions
	}{
		{"relative/path", "clean absolute", mount.ErrInvalid, mount.KernelOptions{}},
		{"/", "clean absolute", mount.ErrInvalid, mount.KernelOptions{}},
		{r.dir + "/empty/../x", "clean absolute", mount.ErrInvalid, mount.KernelOptions{}},
		{r.path("link"), "symbolic link", mount.ErrInvalid, mount.KernelOptions{}},
		{r.path("out/tmp/new"), "symbolic link", mount.ErrInvalid, mount.KernelOptions{}},
		{r.path("plain"), "not a directory", mount.ErrInvalid, mount.KernelOptions{}},
		{r.path("plain/below"), "not a directory", mount.ErrInvalid, mount.KernelOptions{}},
		{r.path("full"), `"file"`, mount.ErrExists, mount.KernelOptions{}},
		{r.path("drives"), "mount point", mount.ErrExists, mount.KernelOptions{OverlayExisting: true}},
		{r.path("missing"), "missing", unix.ENOENT, mount.KernelOptions{ExistingTarget: true}},
	} {
		_, err := mount.MountKernel(t.Context(), x.Path(), c.target, c.o)
		var typed *mount.TargetError
		if !errors.As(err, &typed) || !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v, want a TargetError of class %q about %q", c.target, err, c.class, c.reason)
		}
	}
	r.wantMissing(r.path("missing"))
	r.gone(x)
}

func TestOverlayExistingHidesAndShowsAgain(t *testing.T) {
	r := newRig(t)
	if err := os.Mkdir(r.path("full"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write(r.path("full/file"), content(10))
	m := r.mount(r.expose("drive", r.formatted(size), false), r.path("full"), mount.KernelOptions{OverlayExisting: true})
	r.wantMissing(r.path("full/file"))
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want(r.path("full/file"), content(10))
}

func TestFailedMountsLeaveNothing(t *testing.T) {
	r := newRig(t)
	blank := mounttest.NewMemDevice(size)
	broken := r.formatted(size)
	if _, err := broken.WriteAt(bytes.Repeat([]byte{0xff}, 512), 1536); err != nil { // second half of the superblock
		t.Fatal(err)
	}
	good := r.formatted(size)
	for _, c := range []struct {
		name     string
		dev      *mounttest.MemDevice
		readOnly bool
		o        mount.KernelOptions
		want     error
	}{
		{"blank", blank, false, mount.KernelOptions{}, mount.ErrUnsupported},
		{"broken", broken, false, mount.KernelOptions{}, unix.EBADMSG},
		{"other-type", good, false, mount.KernelOptions{FSType: "xfs"}, mount.ErrInvalid},
		{"write-to-read-only", good, true, mount.KernelOptions{}, unix.EROFS},
		{"negative-limit", good, true, mount.KernelOptions{Timeout: -1}, mount.ErrInvalid},
	} {
		x := r.expose(c.name, c.dev, c.readOnly)
		_, err := mount.MountKernel(t.Context(), x.Path(), r.path("made/for/it"), c.o)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		r.gone(x)
		r.wantMissing(r.path("made"))
	}
	_, err := mount.MountKernel(t.Context(), r.path("absent"), r.path("made"), mount.KernelOptions{})
	if !errors.Is(err, unix.ENOENT) {
		t.Errorf("no source: %v, want ENOENT", err)
	}
	r.wantMissing(r.path("made"))
}
