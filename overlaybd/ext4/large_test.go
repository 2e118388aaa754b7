package ext4_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// A directory of 100,000 entries is indexed in two levels: each name is found, names can be added and removed, and the
// checker agrees with the order of hashes, which at this number has collisions.
func TestDirectoryOf100000Entries(t *testing.T) {
	requireLoop(t)
	const n = 100_000
	image := newImage(t, 512<<20)
	name := func(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("\xfe", i%40)) }
	w, err := ext4.NewWriter(t.Context(), image, ext4.Options{Size: 512 << 20, Inodes: n})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		e := ext4.Entry{Path: "big/" + name(i), Mode: unix.S_IFREG | 0o600, UID: uint32(i)}
		if err := w.Add(t.Context(), e, strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fsck(t, image.Name())
	dir, unmount := mountImage(t, image.Name(), "rw")
	for i := 0; i < n; i += 7 {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, "big", name(i)), &st); err != nil || st.Uid != uint32(i) {
			t.Fatalf("%s: owner %d, %v", name(i), st.Uid, err)
		}
		if i%5 == 0 {
			if err := os.Remove(filepath.Join(dir, "big", name(i))); err != nil {
				t.Fatal(err)
			}
		} else if i%3 == 0 {
			if err := os.WriteFile(filepath.Join(dir, "big", fmt.Sprint("new", i)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	unmount()
	fsck(t, image.Name())
}

// Directories of every number of entries around the points where their form changes, of short and of the longest names.
func TestDirectoriesAtTheirLimits(t *testing.T) {
	image := newImage(t, 512<<20)
	w, err := ext4.NewWriter(t.Context(), image, ext4.Options{Size: 512 << 20, Inodes: 30_000})
	if err != nil {
		t.Fatal(err)
	}
	add := func(e ext4.Entry) {
		t.Helper()
		if err := w.Add(t.Context(), e, nil); err != nil {
			t.Fatal(err)
		}
	}
	add(ext4.Entry{Path: "node", Mode: unix.S_IFIFO})
	// 15 entries of the longest names fill a block; 507 blocks fill the root of an index.
	for _, n := range []int{14, 15, 16, 30, 31, 507 * 15, 507*15 + 16, 8200} {
		for i := range n {
			add(ext4.Entry{Path: fmt.Sprintf("d%d/%0255d", n, i), Mode: unix.S_IFIFO})
		}
	}
	for _, n := range []int{338, 339, 340} {
		for i := range n {
			add(ext4.Entry{Path: fmt.Sprintf("s%d/%d", n, i), Mode: unix.S_IFIFO})
		}
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fsck(t, image.Name())
}

// ext4 counts no more than 65,000 links: a directory with more directories in it says 1, a file takes no more names.
func TestManyLinks(t *testing.T) {
	const n = 65_010
	image := newImage(t, 512<<20)
	w, err := ext4.NewWriter(t.Context(), image, ext4.Options{Size: 512 << 20, Inodes: n})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range n {
		dir := ext4.Entry{Path: fmt.Sprint("dirs/", i), Mode: unix.S_IFDIR | 0o755}
		if err := w.Add(t.Context(), dir, nil); err != nil {
			t.Fatal(err)
		}
		link := ext4.Entry{Path: fmt.Sprint("links/", i), Link: "links/0"}
		if i == 0 {
			link = ext4.Entry{Path: "links/0", Mode: unix.S_IFSOCK}
		}
		if err := w.Add(t.Context(), link, nil); err != nil {
			refused++
		}
	}
	if refused != 10 {
		t.Errorf("%d links refused, want 10", refused)
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fsck(t, image.Name())
}

// counter counts what is allocated while it is written to; it keeps nothing.
type counter struct{ bytes int64 }

func (c *counter) WriteAt(p []byte, _ int64) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}

// Memory grows with entries and not with bytes: 200,000 small files take less than 100 MB.
func TestMemoryOf200000SmallFiles(t *testing.T) {
	var before, after runtime.MemStats
	debug.FreeOSMemory()
	runtime.ReadMemStats(&before)
	dst := &counter{}
	w, err := ext4.NewWriter(t.Context(), dst, ext4.Options{Size: 8 << 30, Inodes: 200_000})
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("c", 3000)
	for i := range 200_000 {
		e := ext4.Entry{Path: fmt.Sprintf("usr/lib/some/path/directory-%d/file-%d", i/50, i), Mode: unix.S_IFREG | 0o644,
			Size: 3000, Xattrs: map[string]string{"security.selinux": "system_u:object_r:lib_t:s0"}}
		if err := w.Add(t.Context(), e, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after) // heap that the collector has freed counts until it goes back to the system
	grown := int64(after.HeapSys-after.HeapReleased) - int64(before.HeapSys-before.HeapReleased)
	t.Logf("%d MB of heap for %d MB of file system", grown/1e6, dst.bytes/1e6)
	if grown > 100e6 {
		t.Errorf("heap grew by %d MB, want less than 100", grown/1e6)
	}
}

// A sparse file of 5 GiB costs what is in it, and fragments make a tree of extents.
func TestSparseFilesStaySparse(t *testing.T) {
	requireLoop(t)
	image := newImage(t, 8<<30)
	big := int64(5 << 30)
	if withRace {
		big = 300 << 20
	}
	w, err := ext4.NewWriter(t.Context(), image, ext4.Options{Size: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	e := ext4.Entry{Path: "sparse", Mode: unix.S_IFREG | 0o644, Size: big}
	if err := w.Add(t.Context(), e, io.LimitReader(&islands{every: big / 5}, big)); err != nil {
		t.Fatal(err)
	}
	e = ext4.Entry{Path: "comb", Mode: unix.S_IFREG | 0o644, Size: 16 << 20}
	if err := w.Add(t.Context(), e, io.LimitReader(&islands{every: 8192}, 16<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	fsck(t, image.Name())
	dir, unmount := mountImage(t, image.Name(), "ro,noload")
	defer unmount()
	for name, want := range map[string]int64{"sparse": 6 * 4096, "comb": 8<<20 + 8*4096} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := allocated(t, info); got != want {
			t.Errorf("%s takes %d bytes, want %d, maps included", name, got, want)
		}
	}
	got, err := digestFile(filepath.Join(dir, "comb"))
	if want, _ := io.ReadAll(io.LimitReader(&islands{every: 8192}, 16<<20)); err != nil || got != digest(want) {
		t.Errorf("content of comb differs, %v", err)
	}
}

// islands is zeroes with one byte set at each multiple of a distance.
type islands struct{ at, every int64 }

func (s *islands) Read(p []byte) (int, error) {
	clear(p)
	for next := (s.at + s.every - 1) / s.every * s.every; next < s.at+int64(len(p)); next += s.every {
		p[next-s.at] = byte(next/s.every) | 1
	}
	s.at += int64(len(p))
	return len(p), nil
}

// The largest file systems: one of all 2³² blocks, which few file systems could hold as a file, and one that is one unit
// smaller. A full check would take minutes; instead a kernel mounts it, which checks every descriptor, and allocates.
func TestLargestFileSystem(t *testing.T) {
	dst := &counter{}
	write(t, dst, ext4.Options{Size: ext4.MaxSize}, file("a", "content"))
	if dst.bytes > 256<<20 {
		t.Errorf("16 TiB cost %d bytes, want at most 256 MiB", dst.bytes)
	}

	requireLoop(t)
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	const size = ext4.MaxSize - ext4.SizeUnit
	if err := image.Truncate(size); err != nil {
		t.Logf("no mount: the file system of temporary files has no files of this size: %v", err)
		return
	}
	write(t, image, ext4.Options{Size: size}, file("a", "content"))
	dump := run(t, requireTool(t, "dumpe2fs"), "-h", image.Name())
	if want := fmt.Sprintf("Block count:              %d\n", size/4096); !strings.Contains(dump, want) {
		t.Errorf("dumpe2fs does not say %q:\n%s", want, dump)
	}
	dir, unmount := mountImage(t, image.Name(), "rw")
	defer unmount()
	if err := os.WriteFile(filepath.Join(dir, "b"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "sync", "-f", dir)
}
