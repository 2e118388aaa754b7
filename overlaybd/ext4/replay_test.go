package ext4_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// fileDevice is a file as a device.
type fileDevice struct {
	*os.File
	size int64
}

func (d fileDevice) Size() int64                { return d.size }
func (d fileDevice) Discard(off, n int64) error { return errors.New("not used") }
func (d fileDevice) Flush() error               { return nil }

func openDevice(t testing.TB, path string) fileDevice {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return fileDevice{f, size}
}

// busy changes a mounted tree in ways that journals have to cope with: blocks that are freed and used again for data,
// large directories, renames, truncations, hard links.
func busy(t testing.TB, dir string, round int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sub := filepath.Join(dir, fmt.Sprint("d", round))
	check(os.MkdirAll(filepath.Join(sub, "deep", "er"), 0o755))
	for i := range 300 {
		name := filepath.Join(sub, fmt.Sprintf("file-%d-%s", i, strings.Repeat("n", i%90)))
		check(os.WriteFile(name, []byte(strings.Repeat(fmt.Sprint(i), i)), 0o640))
		if i%3 == 0 {
			check(os.Link(name, name+"-link"))
		}
		if i%7 == 0 {
			check(os.Rename(name, filepath.Join(sub, "deep", fmt.Sprint(i))))
		}
	}
	// What looks like a block of the journal must be escaped in it: the first block of a directory cannot, but that of a
	// long symbolic link, which is metadata, can.
	check(os.Symlink("\xc0\x3b\x39\x98"+strings.Repeat("s", 200), filepath.Join(sub, "escaped")))
	if round > 0 {
		// The blocks of directories and symbolic links that go are revoked.
		check(os.RemoveAll(filepath.Join(dir, fmt.Sprint("d", round-1))))
		big, err := os.Create(filepath.Join(dir, fmt.Sprint("big", round)))
		check(err)
		_, err = big.Write(make([]byte, 3<<20))
		check(err)
		check(big.Truncate(1 << 20))
		check(big.Close())
	}
}

// cutPower mounts an image, works on it, and copies it while it is mounted and synced, as the disk is after a power cut.
func cutPower(t testing.TB, image, options string, rounds int) (cut string) {
	t.Helper()
	dir, unmount := mountImage(t, image, options)
	for round := range rounds {
		busy(t, dir, round)
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil { // commits; the blocks stay in the journal until a checkpoint
			t.Fatal(err)
		}
		f.Close()
	}
	run(t, "sync", "-f", dir)
	cut = filepath.Join(t.TempDir(), "cut")
	run(t, "cp", "--sparse=always", image, cut)
	unmount()
	return cut
}

func replay(t testing.TB, path string) {
	t.Helper()
	if err := (ext4.Replayer{}).Replay(t.Context(), openDevice(t, path)); err != nil {
		t.Fatal(err)
	}
}

func needsReplay(t testing.TB, path string) bool {
	t.Helper()
	d := openDevice(t, path)
	needs, err := ext4.NeedsReplay(d, d.Size())
	if err != nil {
		t.Fatal(err)
	}
	return needs
}

// The tree after a replay is the one that the kernel shows after its own replay, and the checker finds nothing, for each
// form of a journal.
func TestReplayGivesWhatTheKernelGives(t *testing.T) {
	requireLoop(t)
	for name, options := range map[string][]string{
		"own":          nil,
		"sums of v3":   {"-O", "metadata_csum,64bit"},
		"no sums":      {"-O", "^metadata_csum,64bit"},
		"no 64bit":     {"-O", "^metadata_csum,^64bit"},
		"1 KiB blocks": {"-b", "1024"},
		"meta_bg":      {"-O", "meta_bg,^resize_inode"},
	} {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, 64<<20)
			if options == nil {
				write(t, image, ext4.Options{Size: 64 << 20})
			} else {
				args := append([]string{"-q", "-t", "ext4", "-b", "4096"}, options...)
				run(t, requireTool(t, "mke2fs"), append(args, image.Name())...)
			}
			cut := cutPower(t, image.Name(), "rw", 3)
			if !needsReplay(t, cut) {
				t.Fatal("the copy has nothing in its journal: the test is of no use")
			}
			checkReplay(t, cut)
		})
	}
}

// checkReplay replays one copy of a cut image with this package and one with the kernel, and compares them.
func checkReplay(t *testing.T, cut string) {
	t.Helper()
	other := filepath.Join(t.TempDir(), "kernel")
	run(t, "cp", "--sparse=always", cut, other)
	dir, unmount := mountImage(t, other, "rw,noatime")
	want := look(t, dir)
	unmount()

	replay(t, cut)
	if needsReplay(t, cut) {
		t.Error("still needs a replay")
	}
	fsck(t, cut)
	dir, unmount = mountImage(t, cut, "ro,noload")
	got := look(t, dir)
	unmount()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("replayed by the kernel and by us (-kernel +ours):\n%s", diff)
	}
	if len(got) < 100 {
		t.Errorf("only %d names: the test is of no use", len(got))
	}
}

// Files that were deleted while they were open are freed, of every kind and with everything they have.
func TestReplayFreesWhatWasDeletedWhileOpen(t *testing.T) {
	requireLoop(t)
	for name, options := range map[string][]string{
		"own":             nil,
		"no sums, 1 KiB":  {"-O", "^metadata_csum,^64bit", "-b", "1024"},
		"sums, no 64 bit": {"-O", "metadata_csum,^64bit"},
	} {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, 64<<20)
			if options == nil {
				write(t, image, ext4.Options{Size: 64 << 20})
			} else {
				args := append([]string{"-q", "-t", "ext4", "-b", "4096"}, options...)
				run(t, requireTool(t, "mke2fs"), append(args, image.Name())...)
			}
			cut := deleteOpen(t, image.Name())
			before := filepath.Join(t.TempDir(), "before")
			run(t, "cp", "--sparse=always", cut, before)
			checkReplay(t, cut)
			repeatReplay(t, before)
			fsck(t, before)
		})
	}
}

// deleteOpen copies a file system in which every fourth of some open files is not deleted, and the others are.
func deleteOpen(t *testing.T, image string) (cut string) {
	t.Helper()
	dir, unmount := mountImage(t, image, "rw")
	var open []*os.File
	closeAll := func() {
		for _, f := range open {
			f.Close()
		}
	}
	defer closeAll()
	for i := range 40 {
		name := filepath.Join(dir, fmt.Sprint(i))
		if i%10 == 9 {
			if err := os.Mkdir(name, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(name, []byte(strings.Repeat("x", i*5000)), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			if f, err = os.Open(name); err != nil {
				t.Fatal(err)
			}
		}
		open = append(open, f)
		if i == 5 { // pieces, so that the map is a tree
			for at := range int64(100) {
				if _, err := f.WriteAt([]byte("y"), at*8192+1<<20); err != nil {
					t.Fatal(err)
				}
			}
		}
		if i%8 == 1 {
			if err := unix.Setxattr(name, "user.big", bytes.Repeat([]byte{byte(i)}, 700), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	busy(t, dir, 0)
	run(t, "sync", "-f", dir)
	for i := range open {
		if i%4 != 0 {
			if err := os.Remove(filepath.Join(dir, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(t, "sync", "-f", dir)
	cut = filepath.Join(t.TempDir(), "cut")
	run(t, "cp", "--sparse=always", image, cut)
	closeAll()
	unmount()
	return cut
}

// A replay that a crash interrupted is repeated from the start, and a second one finds nothing to do.
func TestReplayCanBeRepeated(t *testing.T) {
	requireLoop(t)
	image := newImage(t, 64<<20)
	write(t, image, ext4.Options{Size: 64 << 20})
	cut := cutPower(t, image.Name(), "rw", 2)
	repeatReplay(t, cut)
	counted := &failing{fileDevice: openDevice(t, cut)}
	if err := (ext4.Replayer{}).Replay(t.Context(), counted); err != nil {
		t.Errorf("second replay: %v, want no write and no error", err)
	}
}

// repeatReplay interrupts a replay after each of its writes, and the next one too. In the end all is as after one.
func repeatReplay(t *testing.T, cut string) {
	t.Helper()
	whole := filepath.Join(t.TempDir(), "whole")
	run(t, "cp", "--sparse=always", cut, whole)
	replay(t, whole)
	for failAt := 0; ; failAt++ {
		err := ext4.Replayer{}.Replay(t.Context(), &failing{fileDevice: openDevice(t, cut), left: failAt})
		if err == nil {
			break
		}
		if !errors.Is(err, errBroken) || failAt > 10_000 {
			t.Fatalf("fails at write %d: %v", failAt, err)
		}
	}
	run(t, "cmp", cut, whole)
}

var errBroken = errors.New("broken")

// failing is a device that takes so many writes and no more.
type failing struct {
	fileDevice
	left int
}

func (f *failing) WriteAt(p []byte, off int64) (int, error) {
	if f.left == 0 {
		return 0, errBroken
	}
	f.left--
	return f.fileDevice.WriteAt(p, off)
}

// Damage in the journal is found before anything is written.
func TestReplayRefusesADamagedJournal(t *testing.T) {
	requireLoop(t)
	image := newImage(t, 64<<20)
	write(t, image, ext4.Options{Size: 64 << 20})
	cut := cutPower(t, image.Name(), "rw", 1)
	d := openDevice(t, cut)
	at := logStart(t, d)
	// The first block after the first list belongs to the file system.
	damage(t, d, at+4096+100)
	err := ext4.Replayer{}.Replay(t.Context(), &failing{fileDevice: d})
	if !errors.Is(err, overlaybd.ErrCorrupt) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("damaged block: %v, want ErrCorrupt", err)
	}
	damage(t, d, at+100) // the list itself
	err = ext4.Replayer{}.Replay(t.Context(), &failing{fileDevice: d})
	if !errors.Is(err, overlaybd.ErrCorrupt) {
		t.Errorf("damaged list: %v, want ErrCorrupt", err)
	}
}

// logStart finds the first list of blocks of the journal: it follows the journal's superblock.
func logStart(t *testing.T, d fileDevice) int64 {
	t.Helper()
	p := make([]byte, 12)
	for off := int64(0); off < d.size; off += 4096 {
		if _, err := d.ReadAt(p, off); err != nil {
			t.Fatal(err)
		}
		if string(p[:8]) == "\xc0\x3b\x39\x98\x00\x00\x00\x01" {
			return off
		}
	}
	t.Fatal("no journal found")
	return 0
}

func damage(t *testing.T, d fileDevice, off int64) {
	t.Helper()
	p := make([]byte, 1)
	if _, err := d.ReadAt(p, off); err != nil {
		t.Fatal(err)
	}
	p[0] ^= 0x55
	if _, err := d.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

// Fast commits describe changes of files, which only the kernel can apply: they are refused and not dropped.
func TestReplayRefusesFastCommits(t *testing.T) {
	requireLoop(t)
	image := newImage(t, 64<<20)
	if out, err := try(requireTool(t, "mke2fs"), "-q", "-t", "ext4", "-O", "fast_commit", image.Name()); err != nil {
		t.Skipf("mke2fs does not know fast commits: %s", out)
	}
	dir, unmount := mountImage(t, image.Name(), "rw")
	run(t, "sync", "-f", dir)
	for i := range 5 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	cut := filepath.Join(t.TempDir(), "cut")
	run(t, "cp", "--sparse=always", image.Name(), cut)
	unmount()
	err := ext4.Replayer{}.Replay(t.Context(), &failing{fileDevice: openDevice(t, cut)})
	if !errors.Is(err, ext4.ErrUnsupported) || !strings.Contains(err.Error(), "fast commits") {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

func TestReplayLeavesCleanFileSystemsAlone(t *testing.T) {
	image := newImage(t, 16<<20)
	write(t, image, ext4.Options{Size: 16 << 20})
	if err := (ext4.Replayer{}).Replay(t.Context(), &failing{fileDevice: openDevice(t, image.Name())}); err != nil {
		t.Errorf("%v, want no write and no error", err)
	}
}

func TestReplayRefusesWhatIsNoFileSystem(t *testing.T) {
	image := newImage(t, 16<<20)
	err := ext4.Replayer{}.Replay(t.Context(), &failing{fileDevice: openDevice(t, image.Name())})
	if !errors.Is(err, ext4.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

func TestReplayEndsWithItsContext(t *testing.T) {
	requireLoop(t)
	image := newImage(t, 64<<20)
	write(t, image, ext4.Options{Size: 64 << 20})
	cut := cutPower(t, image.Name(), "rw", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := ext4.Replayer{}.Replay(ctx, &failing{fileDevice: openDevice(t, cut)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}
