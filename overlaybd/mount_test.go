package overlaybd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// needMounts skips a test where nothing can be mounted, and fails it where that must not be.
func needMounts(t *testing.T) {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "root"
	} else if _, err := os.Stat("/dev/loop-control"); err != nil {
		missing = "loop devices"
	} else if _, err := exec.LookPath("mount"); err != nil {
		missing = "mount"
	}
	if missing == "" {
		return
	}
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("this machine has no %s", missing)
	}
	t.Skipf("mounting an image needs %s", missing)
}

// the kernel mounts the golden images, read-only, and finds the very trees that were recorded when the
// reference had mounted them: the one of two layers in tar files, and the TurboOCI layer whose contents are elsewhere.
func TestGoldenImagesMountToTheirRecordedTrees(t *testing.T) {
	needMounts(t)
	r := newRepo()
	e := newEngine(t, r)
	one := goldenStack(t, r, 64<<20, "ext4/ext4-layer1.tar")
	both := goldenStack(t, r, 64<<20, "ext4/ext4-layer1.tar", "ext4/ext4-layer2.tar")
	remote, err := New(Config{Open: func(context.Context, Layer) (Source, error) { return turboSource(t), nil }})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		engine *Engine
		stack  Stack
		tree   string
	}{
		{"one layer", e, one, "ext4/layer1.tree.tsv"},
		{"two layers", e, both, "ext4/layer12.tree.tsv"},
		{"turbo", remote, Stack{VirtualSize: 1 << 30, Layers: []Layer{{}}}, "ext4/layer1.tree.tsv"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, err := c.engine.OpenReadOnly(t.Context(), c.stack)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			dir := mountImage(t, imageOf(t, dev))
			if err := os.WriteFile(filepath.Join(dir, "of-no-image"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("a file was made in a read-only image: %v", err)
			}
			want := strings.Split(strings.TrimSpace(string(goldenBytes(t, c.tree))), "\n")
			slices.Sort(want)
			if diff := cmp.Diff(want, treeOf(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// imageOf copies a device to a file, with holes where it is zero.
func imageOf(t *testing.T, dev Device) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf, zeroes := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < dev.Size(); off += int64(len(buf)) {
		if _, err := dev.ReadAt(buf, off); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(buf, zeroes) {
			continue
		}
		if _, err := f.WriteAt(buf, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(dev.Size()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func mountImage(t *testing.T, image string) string {
	t.Helper()
	dir := t.TempDir()
	mount := func(ctx context.Context, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	}
	if out, err := mount(t.Context(), "mount", "-t", "ext4", "-o", "loop,ro,noload", image, dir); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := mount(context.Background(), "umount", dir); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// treeOf lists a mounted tree, sorted, in the columns of the recorded ones: path, type, mode, uid, gid, links, size,
// mtime, what it holds, extended attributes.
func treeOf(t *testing.T, root string) (lines []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if rel == "lost+found" {
			return fs.SkipDir
		}
		if err != nil {
			return err
		}
		line, err := treeLine(path, rel)
		lines = append(lines, line)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func treeLine(path, rel string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	kind := map[uint32]string{
		unix.S_IFDIR: "d", unix.S_IFREG: "f", unix.S_IFLNK: "l", unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFIFO: "p",
	}[st.Mode&unix.S_IFMT]
	links, size, holds := fmt.Sprint(st.Nlink), "-", "-"
	var err error
	switch kind {
	case "d":
		links = "-"
	case "f":
		size = fmt.Sprint(st.Size)
		holds, err = fileSum(path)
	case "l":
		size = fmt.Sprint(st.Size)
		holds, err = os.Readlink(path)
	case "c", "b":
		holds = fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	}
	if err != nil {
		return "", err
	}
	attrs, err := attributes(path)
	if err != nil {
		return "", err
	}
	mtime := fmt.Sprint(st.Mtim.Sec)
	return strings.Join([]string{
		escaped(rel), kind, fmt.Sprintf("%o", st.Mode&0o7777), fmt.Sprint(st.Uid), fmt.Sprint(st.Gid), links, size, mtime, holds, attrs,
	}, "\t"), nil
}

// escaped writes bytes outside of ASCII as \xNN.
func escaped(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c < 0x80 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// attributes lists name=hex, sorted, with commas between.
func attributes(path string) (string, error) {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil || n == 0 {
		return "-", err
	}
	var all []string
	for _, name := range strings.Split(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		m, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", err
		}
		all = append(all, name+"="+hex.EncodeToString(value[:m]))
	}
	slices.Sort(all)
	return strings.Join(all, ","), nil
}
