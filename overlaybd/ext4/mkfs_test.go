package ext4_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// requireTool ends the test unless the program is installed.
func requireTool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("%s is not installed (package e2fsprogs)", name)
	}
	t.Skipf("%s is not installed (package e2fsprogs)", name)
	return ""
}

func format(t *testing.T, size int64) *mounttest.MemDevice {
	t.Helper()
	requireTool(t, "mkfs.ext4")
	dir := t.TempDir()
	dev := mounttest.NewMemDevice(size)
	if err := (ext4.Mkfs{TempDir: dir}).Format(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
	return dev
}

// dump writes the device to a sparse file and returns its path.
func dump(t *testing.T, dev overlaybd.Device) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(dev.Size()); err != nil {
		t.Fatal(err)
	}
	eachChunk(t, dev, func(off int64, p []byte) {
		if bytes.Equal(p, make([]byte, len(p))) {
			return
		}
		if _, err := f.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	})
	return path
}

func digest(t *testing.T, dev overlaybd.Device) string {
	t.Helper()
	h := sha256.New()
	eachChunk(t, dev, func(_ int64, p []byte) { h.Write(p) })
	return fmt.Sprintf("%x", h.Sum(nil))
}

func eachChunk(t *testing.T, dev overlaybd.Device, f func(off int64, p []byte)) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for off := int64(0); off < dev.Size(); off += int64(len(buf)) {
		n, err := dev.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		f(off, buf[:n])
	}
}

// what an empty volume holds is an ext4 file system that its checker has nothing to say about.
func TestFormattedDeviceIsClean(t *testing.T) {
	check, show := requireTool(t, "e2fsck"), requireTool(t, "dumpe2fs")
	for _, size := range []int64{16 << 20, 200 << 20} {
		t.Run(fmt.Sprintf("%dMiB", size>>20), func(t *testing.T) {
			image := dump(t, format(t, size))
			if out, err := exec.Command(check, "-fn", image).CombinedOutput(); err != nil {
				t.Fatalf("e2fsck: %v\n%s", err, out)
			}
			out, err := exec.Command(show, image).CombinedOutput()
			if err != nil {
				t.Fatalf("dumpe2fs: %v\n%s", err, out)
			}
			checkProperties(t, string(out), size)
		})
	}
}

func checkProperties(t *testing.T, dump string, size int64) {
	t.Helper()
	for _, want := range []string{
		"has_journal",
		"metadata_csum",
		fmt.Sprintf("Block count:              %d\n", size/4096),
		"Reserved block count:     0\n",
		"Block size:               4096\n",
	} {
		if !strings.Contains(dump, want) {
			t.Errorf("dumpe2fs does not say %q", want)
		}
	}
	// A group whose inode table is not marked as zeroed makes the kernel zero it after the first mount.
	for line := range strings.Lines(dump) {
		isGroup := strings.HasPrefix(line, "Group ") && strings.Contains(line, "(Blocks ")
		if isGroup && !strings.Contains(line, "ITABLE_ZEROED") {
			t.Errorf("inode table not marked as zeroed: %s", line)
		}
	}
}

// the bytes depend on the size alone, so that any node may make the base of all empty volumes.
func TestFormatIsDeterministic(t *testing.T) {
	t.Setenv("MKE2FS_FIRST_META_BG", "1") // the host program's environment must not matter
	first := digest(t, format(t, 64<<20))
	time.Sleep(1100 * time.Millisecond) // a time stamp would show
	if second := digest(t, format(t, 64<<20)); first != second {
		t.Errorf("two runs differ: %s and %s", first, second)
	}
}

func TestFormatCostsLittleWhateverTheSize(t *testing.T) {
	start := time.Now()
	dev := format(t, 64<<30)
	took := time.Since(start)
	c := dev.Counts()
	t.Logf("64 GiB: %v, %d KiB in %d writes", took, c.BytesWritten>>10, c.Writes)
	if c.BytesWritten > 8<<20 {
		t.Errorf("wrote %d bytes, want at most 8 MiB", c.BytesWritten)
	}
	if c.Flushes == 0 || c.Unflushed != 0 {
		t.Errorf("%d flushes, %d writes not covered; want the result durable", c.Flushes, c.Unflushed)
	}
}

func TestFormatRefusesOtherSizes(t *testing.T) {
	for _, size := range []int64{0, 512, 16<<20 - 512, 15 << 20, 16<<20 + 512} {
		dev := mounttest.NewMemDevice(size)
		err := ext4.Mkfs{}.Format(t.Context(), dev)
		if !errors.Is(err, overlaybd.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("size %d: %v, want ErrInvalid with the value", size, err)
		}
		if c := dev.Counts(); c.Writes > 0 {
			t.Errorf("size %d: %d writes", size, c.Writes)
		}
	}
}

// a missing tool is a clear error, and Check finds it before anything is made.
func TestMissingToolNamesThePackage(t *testing.T) {
	m := ext4.Mkfs{Path: filepath.Join(t.TempDir(), "absent")}
	dev := mounttest.NewMemDevice(16 << 20)
	for op, err := range map[string]error{"check": m.Check(t.Context()), "format": m.Format(t.Context(), dev)} {
		if !errors.Is(err, ext4.ErrToolMissing) || !strings.Contains(err.Error(), "e2fsprogs") {
			t.Errorf("%s: %v, want ErrToolMissing and the package", op, err)
		}
	}
}

func TestFailingToolReportsWhatItSaid(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "mkfs.ext4")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho no such feature >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	err := ext4.Mkfs{Path: tool, TempDir: dir}.Format(t.Context(), mounttest.NewMemDevice(16<<20))
	if err == nil || !strings.Contains(err.Error(), "no such feature") {
		t.Errorf("%v, want the tool's words", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFormatPassesOnDeviceErrors(t *testing.T) {
	requireTool(t, "mkfs.ext4")
	for _, op := range []mounttest.Op{mounttest.OpWrite, mounttest.OpFlush} {
		broken := errors.New("broken")
		dev := mounttest.NewMemDevice(16 << 20)
		dev.Hook = func(at mounttest.Op, _, _ int64) error {
			if at == op {
				return broken
			}
			return nil
		}
		if err := (ext4.Mkfs{TempDir: t.TempDir()}).Format(t.Context(), dev); !errors.Is(err, broken) {
			t.Errorf("%s fails: %v, want its error", op, err)
		}
	}
}

func TestFormatEndsWithItsContext(t *testing.T) {
	requireTool(t, "mkfs.ext4")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := ext4.Mkfs{TempDir: t.TempDir()}.Format(ctx, mounttest.NewMemDevice(16<<20))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}
