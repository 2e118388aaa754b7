package ext4_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

func allocated(t testing.TB, info fs.FileInfo) int64 {
	t.Helper()
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// expect is what a mounted tree of the items must look like.
func expect(items []item) map[string]facts {
	base := time.Unix(0, 0).UTC()
	dir := func(mode uint32) facts {
		return facts{Mode: unix.S_IFDIR | mode, Links: 2, Modified: base, Accessed: base, Changed: base}
	}
	all := map[string]facts{".": dir(0o755), "lost+found": dir(0o700)}
	for _, i := range items {
		if i.Link != "" {
			f := all[i.Link]
			f.Links++
			f.Same = i.Link
			all[i.Path] = f
			continue
		}
		f := facts{Mode: i.Mode, UID: i.UID, GID: i.GID, Links: 1, Modified: i.Modified.UTC(), Accessed: i.Accessed.UTC(),
			Changed: i.Changed.UTC(), Xattrs: i.Xattrs, Same: i.Path, Target: i.Target}
		switch i.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			f.Size, f.Content = i.Size, digest(i.content)
		case unix.S_IFLNK:
			f.Size = int64(len(i.Target))
		case unix.S_IFCHR, unix.S_IFBLK:
			f.Device = fmt.Sprintf("%d:%d", i.Major, i.Minor)
		case unix.S_IFDIR:
			f.Links = 2
		}
		all[i.Path] = f
	}
	return finishExpected(all)
}

// finishExpected brings links to all names of an inode: their number, and the first of them in order.
func finishExpected(all map[string]facts) map[string]facts {
	groups := map[string][]string{}
	for p, f := range all {
		if f.Mode&unix.S_IFMT == unix.S_IFDIR {
			f.Same = p
			if parent := all[path.Dir(p)]; p != "." {
				parent.Links++
				all[path.Dir(p)] = parent
				f.Links = all[p].Links
			}
			all[p] = f
			continue
		}
		groups[f.Same] = append(groups[f.Same], p)
	}
	for _, names := range groups {
		slices.SortFunc(names, walkOrder)
		for _, p := range names {
			f := all[p]
			f.Links, f.Same = uint64(len(names)), names[0]
			all[p] = f
		}
	}
	return all
}

// walkOrder is the order of filepath.WalkDir: by name, level for level.
func walkOrder(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) }

// checkMounted compares what a kernel shows of an image with the items that it was made of.
func checkMounted(t testing.TB, image string, items []item) {
	t.Helper()
	dir, unmount := mountImage(t, image, "ro,noload")
	defer unmount()
	got := look(t, dir)
	if diff := cmp.Diff(expect(items), got); diff != "" {
		t.Errorf("mounted tree (-want +got):\n%s", diff)
	}
}

// generator draws random trees.
type generator struct {
	t     *rapid.T
	dirs  []string
	files []string // that can be linked to
	used  map[string]bool
}

var names = rapid.Custom(func(t *rapid.T) string {
	b := rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 255).Draw(t, "name")
	for i := range b {
		if b[i] == '/' {
			b[i] = '_'
		}
	}
	if name := string(b); name != "." && name != ".." {
		return name
	}
	return "dots"
})

func (g *generator) path() string {
	for {
		p := path.Join(rapid.SampledFrom(g.dirs).Draw(g.t, "dir"), names.Draw(g.t, "name"))
		if !g.used[p] && len(p) < 3000 && p != "lost+found" {
			g.used[p] = true
			return p
		}
	}
}

// time draws times up to 2310: later ones the checker takes for a mistake of old kernels.
func (g *generator) time(label string) time.Time {
	sec := rapid.OneOf(rapid.Int64Range(-1<<31, 2<<32+1<<31-1),
		rapid.SampledFrom([]int64{-1 << 31, -1, 0, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 2<<32 + 1<<31 - 1}))
	return time.Unix(sec.Draw(g.t, label), rapid.Int64Range(0, 999_999_999).Draw(g.t, label+" ns"))
}

func (g *generator) content() []byte {
	var b []byte
	for range rapid.IntRange(0, 12).Draw(g.t, "pieces") {
		n := rapid.SampledFrom([]int{1, 100, 4095, 4096, 4097, 8192, 70000}).Draw(g.t, "length")
		piece := make([]byte, n)
		if rapid.Bool().Draw(g.t, "data") {
			for i := range piece {
				piece[i] = byte(i%251 + 1)
			}
		}
		b = append(b, piece...)
	}
	return b
}

func (g *generator) xattrs(kind uint32) map[string]string {
	spaces := []string{"trusted.", "security."}
	if kind == unix.S_IFREG || kind == unix.S_IFDIR {
		spaces = append(spaces, "user.")
	}
	all := map[string]string{}
	for i := range rapid.SampledFrom([]int{0, 0, 1, 2, 6}).Draw(g.t, "xattrs") {
		length := rapid.SampledFrom([]int{0, 1, 3, 20, 60, 500}).Draw(g.t, "value length")
		text := rapid.StringMatching(`[a-z\xe0-\xff]{1,20}`).Draw(g.t, "xattr name")
		all[fmt.Sprint(rapid.SampledFrom(spaces).Draw(g.t, "space"), text, i)] = strings.Repeat(string(rune('a'+i)), length)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

func (g *generator) item() item {
	if len(g.files) > 0 && rapid.IntRange(0, 7).Draw(g.t, "link") == 0 {
		return item{Entry: ext4.Entry{Path: g.path(), Link: rapid.SampledFrom(g.files).Draw(g.t, "target")}}
	}
	kind := rapid.SampledFrom([]uint32{unix.S_IFREG, unix.S_IFREG, unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFCHR,
		unix.S_IFBLK, unix.S_IFIFO, unix.S_IFSOCK}).Draw(g.t, "type")
	i := item{Entry: ext4.Entry{Path: g.path(), Mode: kind | rapid.Uint32Range(0, 0o7777).Draw(g.t, "mode"),
		UID: rapid.Uint32Max(1<<32-2).Draw(g.t, "uid"), GID: rapid.Uint32Max(1<<32-2).Draw(g.t, "gid"),
		Modified: g.time("mtime"), Accessed: g.time("atime"), Changed: g.time("ctime"), Xattrs: g.xattrs(kind)}}
	switch kind {
	case unix.S_IFREG:
		i.content = g.content()
		i.Size = int64(len(i.content))
	case unix.S_IFDIR:
		g.dirs = append(g.dirs, i.Path)
		return i
	case unix.S_IFLNK:
		i.Mode = kind | 0o777
		n := rapid.SampledFrom([]int{1, 59, 60, 61, 255, 4095}).Draw(g.t, "target length")
		i.Target = strings.Repeat("t", n)
	case unix.S_IFCHR, unix.S_IFBLK:
		i.Major = rapid.SampledFrom([]uint32{0, 1, 255, 256, 300, 4095}).Draw(g.t, "major")
		i.Minor = rapid.SampledFrom([]uint32{0, 3, 255, 256, 70000, 1<<20 - 1}).Draw(g.t, "minor")
	}
	g.files = append(g.files, i.Path)
	return i
}

// Whatever the tree: the checker has nothing to say, and a kernel shows what was added.
func TestAnyTreeIsWhatWasAdded(t *testing.T) {
	requireLoop(t)
	rapid.Check(t, func(r *rapid.T) {
		g := &generator{t: r, dirs: []string{"."}, used: map[string]bool{}}
		var items []item
		for range rapid.IntRange(0, 60).Draw(r, "entries") {
			items = append(items, g.item())
		}
		size := rapid.SampledFrom([]int64{24 << 20, 300 << 20, 3 << 30}).Draw(r, "size")
		image := newImage(t, size)
		defer os.Remove(image.Name())
		defer image.Close()
		write(t, image, ext4.Options{Size: size, Label: "any"}, items...)
		fsck(t, image.Name())
		checkMounted(t, image.Name(), items)
		if t.Failed() {
			r.FailNow()
		}
	})
}

// Equal entries give equal bytes, whatever the machine does meanwhile and however the content arrives.
func TestEqualEntriesGiveEqualBytes(t *testing.T) {
	items := []item{file("d/a", "a"), file("d/b", strings.Repeat("b", 100_000))}
	for i := range 2000 {
		f := file(fmt.Sprintf("d/%d", i), fmt.Sprint(i))
		f.Xattrs = map[string]string{"user.a": "1", "user.b": strings.Repeat("2", 200), "user.c": fmt.Sprint(i % 3)}
		items = append(items, f)
	}
	digests := map[string]int{}
	for _, procs := range []int{1, 2, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		dev := mounttest.NewMemDevice(64 << 20)
		w, err := ext4.NewWriter(t.Context(), dev, ext4.Options{Size: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			pieces := io.MultiReader(bytes.NewReader(i.content[:1]), bytes.NewReader(i.content[1:]))
			if err := w.Add(t.Context(), i.Entry, pieces); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		digests[deviceDigest(t, dev)]++
	}
	if len(digests) != 1 {
		t.Errorf("digests %v, want one", slices.Collect(maps.Keys(digests)))
	}
}

// Names given in another order make other inode numbers, but Skip puts content where nothing before it matters.
func TestSkippedContentDependsOnItsPlaceAlone(t *testing.T) {
	const at, size = 32 << 20, 64 << 20
	content := bytes.Repeat([]byte("layer"), 200_000)
	var regions [][]byte
	for _, before := range []int{0, 100} {
		dev := mounttest.NewMemDevice(size)
		w, err := ext4.NewWriter(t.Context(), dev, ext4.Options{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		for i := range before {
			f := file(fmt.Sprint(i), "before")
			if err := w.Add(t.Context(), f.Entry, bytes.NewReader(f.content)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Skip(at); err != nil {
			t.Fatal(err)
		}
		if w.Next() != at {
			t.Errorf("next content at %d, want %d", w.Next(), at)
		}
		f := file("content", string(content))
		if err := w.Add(t.Context(), f.Entry, bytes.NewReader(f.content)); err != nil {
			t.Fatal(err)
		}
		end := w.Next()
		if err := w.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, end-at)
		if _, err := dev.ReadAt(p, at); err != nil {
			t.Fatal(err)
		}
		regions = append(regions, p)
		if err := w.Skip(0); !errors.Is(err, overlaybd.ErrInvalid) {
			t.Errorf("skip after Finish: %v, want ErrInvalid", err)
		}
		image := newImage(t, size)
		copyDevice(t, image, dev)
		fsck(t, image.Name())
	}
	if !bytes.Equal(regions[0], regions[1]) || !bytes.HasPrefix(regions[0], content) {
		t.Error("content differs, or is not at its place")
	}
}

func copyDevice(t testing.TB, dst *os.File, dev overlaybd.Device) {
	t.Helper()
	if _, err := io.Copy(dst, io.NewSectionReader(dev, 0, dev.Size())); err != nil {
		t.Fatal(err)
	}
}

// OBD#285: reserved inodes count as used, and bits past the end of bitmaps too: with few and with many inodes.
func TestInodesOnRequest(t *testing.T) {
	for _, inodes := range []int64{0, 1000, 60_000, 400_000} {
		image := newImage(t, 2<<30)
		write(t, image, ext4.Options{Size: 2 << 30, Inodes: inodes}, file("a", "a"))
		fsck(t, image.Name())
		dump := run(t, requireTool(t, "dumpe2fs"), "-h", image.Name())
		var free int64
		_, rest, _ := strings.Cut(dump, "Free inodes:")
		if fmt.Sscan(rest, &free); free < inodes {
			t.Errorf("%d free inodes, %d were asked for", free, inodes)
		}
	}
	_, err := ext4.NewWriter(t.Context(), mounttest.NewMemDevice(16<<20), ext4.Options{Size: 16 << 20, Inodes: 1 << 20})
	if !errors.Is(err, ext4.ErrNoSpace) {
		t.Errorf("2²⁰ inodes in 16 MiB: %v, want ErrNoSpace", err)
	}
}

// Times are kept from 1901 to 2446, and others become the nearest of these, as in the kernel.
func TestTimesOutOfRangeAreTheNearest(t *testing.T) {
	requireLoop(t)
	first, last := time.Unix(-1<<31, 0), time.Unix(3<<32+1<<31-1, 0)
	times := map[string]struct{ in, want time.Time }{
		"early":   {first.Add(-time.Second), first},
		"ancient": {time.Date(-4000, 1, 1, 0, 0, 0, 1, time.UTC), first},
		"late":    {last.Add(time.Hour), last},
		"last":    {last.Add(5), last.Add(5)},
	}
	var items []item
	for name, c := range times {
		f := file(name, "")
		f.Modified = c.in
		items = append(items, f)
	}
	image := newImage(t, 16<<20)
	write(t, image, ext4.Options{Size: 16 << 20}, items...)
	run(t, requireTool(t, "e2fsck"), "-fn", image.Name())
	dir, unmount := mountImage(t, image.Name(), "ro,noload")
	defer unmount()
	got := look(t, dir)
	for name, c := range times {
		if !got[name].Modified.Equal(c.want) || !got[name].Changed.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got[name].Modified, c.want)
		}
	}
}

// A directory that is added again takes the new metadata, and parents that are missing are made.
func TestDirectoriesCanComeLate(t *testing.T) {
	requireLoop(t)
	stamp := time.Unix(1_000_000_000, 5)
	late := item{Entry: ext4.Entry{Path: "a/b", Mode: unix.S_IFDIR | 0o1777, UID: 7, Modified: stamp,
		Xattrs: map[string]string{"user.late": "yes"}}}
	root := item{Entry: ext4.Entry{Path: "./", Mode: unix.S_IFDIR | 0o700, GID: 8, Modified: stamp}}
	image := newImage(t, 16<<20)
	write(t, image, ext4.Options{Size: 16 << 20}, file("a/b/c", "c"), late, late, root)
	fsck(t, image.Name())
	dir, unmount := mountImage(t, image.Name(), "ro,noload")
	defer unmount()
	got := look(t, dir)
	if f := got["a/b"]; f.Mode != late.Mode || f.UID != 7 || !f.Modified.Equal(stamp) || f.Links != 2 ||
		f.Xattrs["user.late"] != "yes" {
		t.Errorf("a/b: %+v", f)
	}
	if f := got["."]; f.Mode != root.Mode || f.GID != 8 || f.Links != 4 {
		t.Errorf("root: %+v", f)
	}
	if f := got["a"]; f.Mode != unix.S_IFDIR|0o755 || got["a/b/c"].Size != 1 {
		t.Errorf("a: %+v", f)
	}
}

// Bad entries are refused with the path and the value, and change nothing: the result is as if they had not been there.
func TestBadEntriesAreRefusedAndLeaveNothing(t *testing.T) {
	long := strings.Repeat("n", 256)
	reg := uint32(unix.S_IFREG | 0o644)
	bad := map[string]ext4.Entry{
		"dot dot":             {Path: "a/../b", Mode: reg},
		"zero byte":           {Path: "a\x00", Mode: reg},
		"long name":           {Path: "d/" + long, Mode: reg},
		"no type":             {Path: "a", Mode: 0o644},
		"strange bits":        {Path: "a", Mode: reg | 1<<20},
		"negative size":       {Path: "a", Mode: reg, Size: -1},
		"huge size":           {Path: "a", Mode: reg, Size: 1 << 44},
		"no content":          {Path: "a", Mode: reg, Size: 1},
		"root as a file":      {Path: "/", Mode: reg},
		"again":               {Path: "file", Mode: reg},
		"file for directory":  {Path: "dir", Mode: reg},
		"directory for file":  {Path: "file", Mode: unix.S_IFDIR},
		"below a file":        {Path: "new/../file", Mode: reg},
		"file as parent":      {Path: "file/x/y", Mode: reg},
		"empty target":        {Path: "a", Mode: unix.S_IFLNK},
		"long target":         {Path: "a", Mode: unix.S_IFLNK, Target: strings.Repeat("t", 4096)},
		"major":               {Path: "a", Mode: unix.S_IFCHR, Major: 4096},
		"minor":               {Path: "a", Mode: unix.S_IFBLK, Minor: 1 << 20},
		"link to nothing":     {Path: "a", Link: "absent"},
		"link to a directory": {Path: "a", Link: "dir"},
		"link to the root":    {Path: "a", Link: "/"},
		"link over a file":    {Path: "file", Link: "file"},
		"name space":          {Path: "a", Mode: reg, Xattrs: map[string]string{"other.x": ""}},
		"empty xattr name":    {Path: "a", Mode: reg, Xattrs: map[string]string{"user.": ""}},
		"large xattrs":        {Path: "a", Mode: reg, Xattrs: map[string]string{"user.x": strings.Repeat("v", 4100)}},
		"user on a symlink":   {Path: "a", Mode: unix.S_IFLNK, Target: "t", Xattrs: map[string]string{"user.x": ""}},
		"broken ACL":          {Path: "a", Mode: reg, Xattrs: map[string]string{"system.posix_acl_access": "acl"}},
		"default ACL of file": {Path: "a", Mode: reg, Xattrs: map[string]string{"system.posix_acl_default": ""}},
	}
	digests := map[string]bool{}
	for _, withBad := range []bool{false, true} {
		dev := mounttest.NewMemDevice(16 << 20)
		w, err := ext4.NewWriter(t.Context(), dev, ext4.Options{Size: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []item{file("file", "f"), directory("dir")} {
			if err := w.Add(t.Context(), i.Entry, bytes.NewReader(i.content)); err != nil {
				t.Fatal(err)
			}
		}
		for name, e := range bad {
			if !withBad {
				break
			}
			err := w.Add(t.Context(), e, nil)
			var entry *ext4.EntryError
			if !errors.Is(err, overlaybd.ErrInvalid) || !errors.As(err, &entry) || entry.Path != e.Path {
				t.Errorf("%s: %v, want ErrInvalid with the path", name, err)
			}
		}
		if err := w.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		digests[deviceDigest(t, dev)] = true
	}
	if len(digests) != 1 {
		t.Error("refused entries changed the file system")
	}
}

// After an error that is not about the entry alone the Writer says so for ever, and there is no file system.
func TestBrokenWriterStaysBroken(t *testing.T) {
	for name, add := range map[string]func(w *ext4.Writer) error{
		"short content": func(w *ext4.Writer) error {
			return w.Add(t.Context(), ext4.Entry{Path: "a", Mode: unix.S_IFREG, Size: 10}, strings.NewReader("short"))
		},
		"no space": func(w *ext4.Writer) error {
			return w.Add(t.Context(), ext4.Entry{Path: "a", Mode: unix.S_IFREG, Size: 32 << 20}, endless{})
		},
		"no inodes": func(w *ext4.Writer) error {
			for i := range 2000 {
				if err := w.Add(t.Context(), ext4.Entry{Path: fmt.Sprint(i), Mode: unix.S_IFIFO}, nil); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		dev := mounttest.NewMemDevice(16 << 20)
		w, err := ext4.NewWriter(t.Context(), dev, ext4.Options{Size: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		err = add(w)
		want := ext4.ErrNoSpace
		if name == "short content" {
			want = io.ErrUnexpectedEOF
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if again := w.Finish(t.Context()); again != err {
			t.Errorf("%s: Finish: %v, want %v", name, again, err)
		}
		if _, err := ext4.NeedsReplay(dev, dev.Size()); !errors.Is(err, ext4.ErrUnsupported) {
			t.Errorf("%s: the device has a file system: %v", name, err)
		}
	}
}

// endless is content without zeroes or end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}
