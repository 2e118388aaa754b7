package crashfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/internal/crashfs"
)

func TestMain(m *testing.M) { crashfs.Main(m) }

// box wraps a disk with calls that must succeed.
type box struct {
	t *testing.T
	*crashfs.FS
}

func newBox(t *testing.T) box { return box{t, crashfs.New(t)} }

func (b box) path(name string) string { return filepath.Join(b.Dir(), name) }

func (b box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b box) write(name, data string) {
	b.t.Helper()
	b.must(os.WriteFile(b.path(name), []byte(data), 0o644))
}

// sync syncs a file or directory, "." for the top one.
func (b box) sync(name string) {
	b.t.Helper()
	f, err := os.Open(b.path(name))
	b.must(err)
	defer f.Close()
	b.must(f.Sync())
}

// tree is every file below the top with its content; directories end in a slash.
func (b box) tree() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	b.must(filepath.WalkDir(b.Dir(), func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, b.Dir()+"/")
		if err != nil || path == b.Dir() {
			return err
		}
		if d.IsDir() {
			all[name+"/"] = ""
			return nil
		}
		data, err := os.ReadFile(path)
		all[name] = string(data)
		return err
	}))
	return all
}

func (b box) want(want map[string]string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.tree()); diff != "" {
		b.t.Fatalf("on the disk (-want +got):\n%s", diff)
	}
}

func TestUnsyncedIsGoneAndSyncedStays(t *testing.T) {
	b := newBox(t)
	b.write("synced", "one")
	b.sync("synced")
	b.write("unsynced", "two")
	b.sync(".")
	b.write("nameless", "three")
	b.sync("nameless")
	b.want(map[string]string{"synced": "one", "unsynced": "two", "nameless": "three"})
	b.PowerCut(0)
	b.want(map[string]string{"synced": "one", "unsynced": ""})
}

func TestOverwriteGoesBack(t *testing.T) {
	b := newBox(t)
	b.write("f", "old bytes")
	b.sync("f")
	b.sync(".")
	f, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
	b.must(err)
	defer f.Close()
	_, err = f.WriteAt([]byte("new"), 0)
	b.must(err)
	b.want(map[string]string{"f": "new bytes"})
	b.PowerCut(0)
	b.want(map[string]string{"f": "old bytes"})
	if _, err := f.WriteAt([]byte("ghost"), 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("write by a file from before the cut: %v, want EIO", err)
	}
	b.want(map[string]string{"f": "old bytes"})
}

func TestRenameWithoutDirectorySyncGoesBack(t *testing.T) {
	b := newBox(t)
	for _, name := range []string{"a", "b"} {
		b.write(name, name)
		b.sync(name)
	}
	b.sync(".")
	b.must(os.Rename(b.path("a"), b.path("b")))
	b.want(map[string]string{"b": "a"})
	b.PowerCut(0)
	b.want(map[string]string{"a": "a", "b": "b"})
	b.must(os.Rename(b.path("a"), b.path("b")))
	b.sync(".")
	b.PowerCut(0)
	b.want(map[string]string{"b": "a"})
}

func TestRenameIsWholeOrNotAtAll(t *testing.T) {
	b := newBox(t)
	seen := map[string]int{}
	for seed := int64(1); seed <= 40; seed++ {
		b.Erase()
		b.must(os.Mkdir(b.path("d"), 0o755))
		for _, name := range []string{"a", "d/b"} {
			b.write(name, name)
			b.sync(name)
		}
		b.sync("d")
		b.sync(".")
		b.must(os.Rename(b.path("a"), b.path("d/b")))
		b.PowerCut(seed)
		got := fmt.Sprint(b.tree())
		seen[got]++
	}
	want := map[string]bool{"map[a:a d/: d/b:d/b]": true, "map[d/: d/b:a]": true}
	for got := range seen {
		if !want[got] {
			t.Errorf("found %s", got)
		}
	}
	if len(seen) != 2 {
		t.Errorf("40 seeds showed %d outcomes, want both: %v", len(seen), seen)
	}
}

func TestRenameAcrossDirectoriesIsDurableByEither(t *testing.T) {
	b := newBox(t)
	for _, dir := range []string{"from", "to"} {
		b.Erase()
		b.must(os.Mkdir(b.path("from"), 0o755))
		b.must(os.Mkdir(b.path("to"), 0o755))
		b.sync(".")
		b.write("from/f", "x")
		b.sync("from/f")
		b.must(os.Rename(b.path("from/f"), b.path("to/g")))
		b.sync(dir)
		b.PowerCut(0)
		b.want(map[string]string{"from/": "", "to/": "", "to/g": "x"})
	}
}

func TestRemovalComesBack(t *testing.T) {
	b := newBox(t)
	b.must(os.Mkdir(b.path("d"), 0o755))
	b.write("f", "x")
	b.sync("f")
	b.sync(".")
	b.must(os.Remove(b.path("f")))
	b.must(os.Remove(b.path("d")))
	b.want(map[string]string{})
	b.PowerCut(0)
	b.want(map[string]string{"f": "x", "d/": ""})
	b.must(os.Remove(b.path("f")))
	b.sync(".")
	b.PowerCut(0)
	b.want(map[string]string{"d/": ""})
}

func TestNewDirectoryNeedsItsParentSynced(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("p/q"), 0o755))
	b.write("p/q/f", "x")
	b.sync("p/q/f")
	b.sync("p/q")
	b.PowerCut(0)
	b.want(map[string]string{})
	b.must(os.MkdirAll(b.path("p/q"), 0o755))
	b.write("p/q/f", "x")
	b.sync("p/q/f")
	for _, dir := range []string{"p/q", "p", "."} {
		b.sync(dir)
	}
	b.PowerCut(0)
	b.want(map[string]string{"p/": "", "p/q/": "", "p/q/f": "x"})
}

func TestLinkedFileIsOneFile(t *testing.T) {
	b := newBox(t)
	b.write("tmp", "x")
	b.sync("tmp")
	b.sync(".")
	b.must(os.Link(b.path("tmp"), b.path("final")))
	if err := os.Link(b.path("tmp"), b.path("final")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second link: %v", err)
	}
	b.sync(".")
	b.PowerCut(0)
	tmp, err := os.Stat(b.path("tmp"))
	b.must(err)
	final, err := os.Stat(b.path("final"))
	b.must(err)
	if n := final.Sys().(*syscall.Stat_t).Nlink; !os.SameFile(tmp, final) || n != 2 {
		t.Errorf("same file: %t, links: %d, want one file with 2", os.SameFile(tmp, final), n)
	}
}

func TestStopAtRefusesThatOperationAndAllLaterOnes(t *testing.T) {
	b := newBox(t)
	b.write("f", "x")
	b.sync("f")
	b.sync(".")
	b.StopAt(b.Ops() + 2)
	b.write("g", "")
	f, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
	b.must(err)
	defer f.Close()
	refused := map[string]error{
		"write":    func() error { _, err := f.WriteAt([]byte("y"), 0); return err }(),
		"truncate": f.Truncate(0),
		"allocate": unix.Fallocate(int(f.Fd()), 0, 0, 10),
		"sync":     f.Sync(),
		"create":   os.WriteFile(b.path("h"), nil, 0o644),
		"link":     os.Link(b.path("f"), b.path("h")),
		"rename":   os.Rename(b.path("f"), b.path("h")),
		"unlink":   os.Remove(b.path("g")),
		"mkdir":    os.Mkdir(b.path("d"), 0o755),
	}
	for op, err := range refused {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", op, err)
		}
	}
	b.want(map[string]string{"f": "x", "g": ""})
	b.PowerCut(0)
	b.want(map[string]string{"f": "x"})
	b.write("after", "the cut clears it")
}

func TestOpsCountsChangesOnly(t *testing.T) {
	b := newBox(t)
	for _, c := range []struct {
		name string
		do   func() error
		want int
	}{
		{"create and write", func() error { return os.WriteFile(b.path("f"), []byte("x"), 0o644) }, 2},
		{"read", func() error { _, err := os.ReadFile(b.path("f")); return err }, 0},
		{"list", func() error { _, err := os.ReadDir(b.Dir()); return err }, 0},
		{"chmod", func() error { return os.Chmod(b.path("f"), 0o600) }, 0},
		{"link", func() error { return os.Link(b.path("f"), b.path("g")) }, 1},
		{"sync", func() error { b.sync("f"); return nil }, 1},
		{"sync of a directory", func() error { b.sync("."); return nil }, 1},
		{"cut", func() error { b.PowerCut(0); return nil }, 0},
		{"unlink", func() error { return os.Remove(b.path("g")) }, 1},
	} {
		before := b.Ops()
		b.must(c.do())
		if got := b.Ops() - before; got != c.want {
			t.Errorf("%s: %d operations, want %d", c.name, got, c.want)
		}
	}
}

func TestFailedSyncLosesItsPagesForGood(t *testing.T) {
	b := newBox(t)
	b.write("f", "old")
	b.sync("f")
	b.sync(".")
	f, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
	b.must(err)
	defer f.Close()
	_, err = f.WriteAt([]byte("new"), 0)
	b.must(err)
	b.FailSync()
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v, want EIO", err)
	}
	b.must(f.Sync())
	b.want(map[string]string{"f": "new"})
	b.PowerCut(0)
	b.want(map[string]string{"f": "old"})
}

func TestFailedDirectorySyncLosesItsNamesForGood(t *testing.T) {
	b := newBox(t)
	b.write("f", "x")
	b.sync("f")
	dir, err := os.Open(b.Dir())
	b.must(err)
	defer dir.Close()
	b.FailSync()
	if err := dir.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v, want EIO", err)
	}
	b.must(dir.Sync())
	b.want(map[string]string{"f": "x"})
	b.PowerCut(0)
	b.want(map[string]string{})
}

func TestNothingIsLeftBehind(t *testing.T) {
	var dir string
	t.Run("disk", func(t *testing.T) {
		b := newBox(t)
		dir = b.Dir()
		f, err := os.Create(b.path("left open"))
		b.must(err)
		t.Cleanup(func() { f.Close() })
		b.PowerCut(0)
	})
	if dir == "" {
		return // left out, and the subtest says why
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Errorf("%s is still mounted", dir)
	}
}

func BenchmarkPowerCut(b *testing.B) {
	fs := crashfs.New(b)
	for b.Loop() {
		if err := os.WriteFile(filepath.Join(fs.Dir(), "f"), []byte("x"), 0o644); err != nil {
			b.Fatal(err)
		}
		fs.PowerCut(0)
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		crashfs.New(b)
	}
}
