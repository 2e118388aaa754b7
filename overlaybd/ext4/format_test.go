package ext4_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
)

var _ volume.Formatter = ext4.Formatter{}

func format(t testing.TB, size int64) *mounttest.MemDevice {
	t.Helper()
	dev := mounttest.NewMemDevice(size)
	if err := (ext4.Formatter{}).Format(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	return dev
}

// formatFile makes an empty file system in a sparse file.
func formatFile(t testing.TB, size int64) *os.File {
	t.Helper()
	f := newImage(t, size)
	write(t, f, ext4.Options{Size: size})
	return f
}

func deviceDigest(t testing.TB, dev overlaybd.Device) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(dev, 0, dev.Size())); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// what an empty volume holds is an ext4 file system that its checker has nothing to say about: at the
// limits of sizes, just before and after groups and flex groups begin, and where a last group would be too small.
func TestFormattedDeviceIsClean(t *testing.T) {
	const group, flex = 128 << 20, 2 << 30
	for _, size := range []int64{
		16 << 20, 17 << 20, group - 1<<20, group, group + 1<<20, group + 2<<20, 200 << 20, 3*group + 1<<20,
		flex, flex + 1<<20, flex + 3<<20, flex + 35<<20, 5 * flex, 64 << 30, 1<<40 + 1<<20,
	} {
		t.Run(fmt.Sprintf("%dMiB", size>>20), func(t *testing.T) {
			image := formatFile(t, size).Name()
			fsck(t, image)
			checkProperties(t, run(t, requireTool(t, "dumpe2fs"), image), size)
		})
	}
}

func checkProperties(t *testing.T, dump string, size int64) {
	t.Helper()
	for _, want := range []string{
		"has_journal", "metadata_csum", "64bit", "extent ", "dir_index", "flex_bg", "resize_inode",
		"Reserved block count:     0\n",
		"Block size:               4096\n",
		"Filesystem state:         clean\n",
		"Journal start:            0\n",
	} {
		if !strings.Contains(dump, want) {
			t.Errorf("dumpe2fs does not say %q", want)
		}
	}
	var blocks int64
	_, rest, _ := strings.Cut(dump, "Block count:")
	fmt.Sscan(rest, &blocks)
	if lost := size/4096 - blocks; lost < 0 || lost > 1<<15 || size < 2<<30 && lost != 0 {
		t.Errorf("%d blocks of %d bytes", blocks, size)
	}
	// A group whose inode table is not marked as zeroed makes the kernel zero it after the first mount.
	for line := range strings.Lines(dump) {
		isGroup := strings.HasPrefix(line, "Group ") && strings.Contains(line, "(Blocks ")
		if isGroup && !strings.Contains(line, "ITABLE_ZEROED") {
			t.Errorf("inode table not marked as zeroed: %s", line)
		}
	}
}

// the bytes depend on the size alone, so that any node may make the base of all empty volumes. The digest is of
// this writer's version: when it changes, Version must.
func TestFormatIsDeterministicGolden(t *testing.T) {
	first, second := deviceDigest(t, format(t, 64<<20)), deviceDigest(t, format(t, 64<<20))
	if first != second {
		t.Errorf("two runs differ: %s and %s", first, second)
	}
	version := strings.ReplaceAll(ext4.Formatter{}.Version(), "/", "-")
	golden, err := os.ReadFile("testdata/golden/" + version + "-64MiB.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(golden)); first != want {
		t.Errorf("digest %s, want %s", first, want)
	}
}

func TestFormatCostsLittleWhateverTheSize(t *testing.T) {
	dev := format(t, 64<<30)
	c := dev.Counts()
	t.Logf("64 GiB: %d KiB in %d writes", c.BytesWritten>>10, c.Writes)
	if c.BytesWritten > 2<<20 {
		t.Errorf("wrote %d bytes, want at most 2 MiB", c.BytesWritten)
	}
	if c.Flushes == 0 || c.Unflushed != 0 {
		t.Errorf("%d flushes, %d writes not covered; want the result durable", c.Flushes, c.Unflushed)
	}
}

func TestFormatRefusesOtherSizes(t *testing.T) {
	for _, size := range []int64{0, 512, 16<<20 - 512, 15 << 20, 16<<20 + 512, 16<<40 + 1<<20} {
		dev := mounttest.NewMemDevice(size)
		err := ext4.Formatter{}.Format(t.Context(), dev)
		if !errors.Is(err, overlaybd.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("size %d: %v, want ErrInvalid with the value", size, err)
		}
		if c := dev.Counts(); c.Writes > 0 {
			t.Errorf("size %d: %d writes", size, c.Writes)
		}
	}
}

// empty volumes need no tool, so that nothing can be missing.
func TestFormatNeedsNoTool(t *testing.T) {
	t.Setenv("PATH", "")
	if err := (ext4.Formatter{}).Check(t.Context()); err != nil {
		t.Error(err)
	}
	format(t, 16<<20)
}

func TestFormatPassesOnDeviceErrors(t *testing.T) {
	for _, op := range []mounttest.Op{mounttest.OpWrite, mounttest.OpFlush} {
		broken := errors.New("broken")
		dev := mounttest.NewMemDevice(16 << 20)
		dev.Hook = func(at mounttest.Op, _, _ int64) error {
			if at == op {
				return broken
			}
			return nil
		}
		if err := (ext4.Formatter{}).Format(t.Context(), dev); !errors.Is(err, broken) {
			t.Errorf("%s fails: %v, want its error", op, err)
		}
	}
}

func TestFormatEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := ext4.Formatter{}.Format(ctx, mounttest.NewMemDevice(16<<20))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

// A kernel mounts what was written, writes to it, and does not fill it with zeroes behind our back.
func TestKernelWritesToAFormattedDevice(t *testing.T) {
	requireLoop(t)
	image := formatFile(t, 4<<30)
	dir, unmount := mountImage(t, image.Name(), "rw")
	for round := range 2 {
		busy(t, dir, round)
	}
	unmount()
	fsck(t, image.Name())
	info, err := os.Stat(image.Name())
	if err != nil {
		t.Fatal(err)
	}
	if used := allocated(t, info); used > 40<<20 {
		t.Errorf("the image takes %d MiB", used>>20)
	}
}

// A volume can be larger than its source: the tool grows the file system while it is not mounted, and the kernel while it
// is.
func TestFileSystemGrows(t *testing.T) {
	resize := requireTool(t, "resize2fs")
	for _, c := range []struct{ from, to int64 }{
		{16 << 20, 32 << 20}, {16 << 20, 1 << 30}, {100 << 20, 5 << 30}, {2<<30 + 1<<20, 64 << 30}, {64 << 30, 256 << 30},
	} {
		t.Run(fmt.Sprintf("%dMiB to %dMiB", c.from>>20, c.to>>20), func(t *testing.T) {
			image := newImage(t, c.from)
			write(t, image, ext4.Options{Size: c.from}, file("kept", "content"))
			if err := image.Truncate(c.to); err != nil {
				t.Fatal(err)
			}
			if mayGrowMounted(t) {
				growMounted(t, image.Name(), resize)
			} else {
				run(t, resize, image.Name())
			}
			fsck(t, image.Name())
			dump := run(t, requireTool(t, "dumpe2fs"), "-h", image.Name())
			if want := fmt.Sprintf("Block count:              %d\n", c.to/4096); !strings.Contains(dump, want) {
				t.Errorf("dumpe2fs does not say %q", want)
			}
		})
	}
}

// mayGrowMounted says whether the kernel lets this process grow a mounted file system.
func mayGrowMounted(t *testing.T) bool {
	t.Helper()
	requireLoop(t)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func growMounted(t *testing.T, image, resize string) {
	t.Helper()
	dir, unmount := mountImage(t, image, "rw")
	run(t, resize, strings.TrimSpace(run(t, "findmnt", "-n", "-o", "SOURCE", dir)))
	if got, err := os.ReadFile(dir + "/kept"); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
	unmount()
}
