package ext4_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// acl is the value of an ACL attribute: tag, permissions, id for each entry.
func acl(entries ...uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for i := 0; i < len(entries); i += 3 {
		b = binary.LittleEndian.AppendUint16(b, uint16(entries[i]))
		b = binary.LittleEndian.AppendUint16(b, uint16(entries[i+1]))
		b = binary.LittleEndian.AppendUint32(b, entries[i+2])
	}
	return string(b)
}

const (
	accessName  = "system.posix_acl_access"
	defaultName = "system.posix_acl_default"
	nobody      = 0xFFFFFFFF // the id of entries that have none
)

var (
	minimalACL = acl(0x01, 6, nobody, 0x04, 4, nobody, 0x20, 4, nobody)
	namedACL   = acl(0x01, 7, nobody, 0x02, 5, 1000, 0x02, 6, 4000000000, 0x04, 4, nobody, 0x08, 7, 12,
		0x10, 7, nobody, 0x20, 1, nobody)
	maskOnlyACL = acl(0x01, 7, nobody, 0x04, 7, nobody, 0x10, 5, nobody, 0x20, 0, nobody)
)

// OBD#301: a kernel reads capabilities, ACLs and other attributes as it reads those that it wrote itself, with chmod
// after them as in the unpacking of an archive.
func TestXattrsAreAsTheKernelWritesThem(t *testing.T) {
	requireLoop(t)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	var items []item
	add := func(kind, mode uint32, xattrs map[string]string) {
		items = append(items, item{Entry: ext4.Entry{Path: fmt.Sprint("x", len(items)), Mode: kind | mode, Xattrs: xattrs}})
	}
	for _, mode := range []uint32{0, 0o644, 0o751, 0o4777} {
		for _, value := range []string{minimalACL, namedACL, maskOnlyACL} {
			add(unix.S_IFREG, mode, map[string]string{accessName: value})
			add(unix.S_IFDIR, mode, map[string]string{accessName: value, defaultName: value, "user.d": "1"})
			add(unix.S_IFIFO, mode, map[string]string{accessName: value, "trusted.f": ""})
		}
	}
	add(unix.S_IFREG, 0o755, map[string]string{"security.capability": capability, "user.empty": "",
		"user.big": strings.Repeat("b", 3900)})
	add(unix.S_IFREG, 0o755, map[string]string{"trusted.overlay.opaque": "y",
		"user." + strings.Repeat("n", 250): "long name"})

	own, theirs := newImage(t, 64<<20), newImage(t, 64<<20)
	write(t, own, ext4.Options{Size: 64 << 20}, items...)
	fsck(t, own.Name())
	run(t, requireTool(t, "mke2fs"), "-q", "-t", "ext4", "-b", "4096", "-I", "256", theirs.Name())
	dir, unmount := mountImage(t, theirs.Name(), "rw,acl,user_xattr")
	for _, i := range items {
		applyByKernel(t, filepath.Join(dir, i.Path), i)
	}
	want := map[string]facts{}
	for p, f := range look(t, dir) {
		want[p] = facts{Mode: f.Mode, Xattrs: f.Xattrs}
	}
	unmount()
	dir, unmount = mountImage(t, own.Name(), "ro,noload")
	defer unmount()
	got := map[string]facts{}
	for p, f := range look(t, dir) {
		got[p] = facts{Mode: f.Mode, Xattrs: f.Xattrs}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-kernel +ours:\n%s", diff)
	}
}

func applyByKernel(t *testing.T, path string, i item) {
	t.Helper()
	var err error
	switch i.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = os.WriteFile(path, i.content, 0o600)
	case unix.S_IFDIR:
		err = os.Mkdir(path, 0o700)
	default:
		err = unix.Mknod(path, i.Mode, 0)
	}
	for name, value := range i.Xattrs {
		err = errors.Join(err, unix.Lsetxattr(path, name, []byte(value), 0))
	}
	if err = errors.Join(err, unix.Chmod(path, i.Mode&0o7777)); err != nil {
		t.Fatal(err)
	}
}

// Equal sets of attributes share blocks, at most 1,024 inodes one, so that labels on every file cost little.
func TestEqualXattrsShareBlocks(t *testing.T) {
	label := map[string]string{"security.selinux": strings.Repeat("label", 30)}
	used := func(xattrs func(i int) map[string]string) (blocks int64) {
		image := newImage(t, 64<<20)
		var items []item
		for i := range 3000 {
			f := file(fmt.Sprint(i), "")
			f.Xattrs = xattrs(i)
			items = append(items, f)
		}
		write(t, image, ext4.Options{Size: 64 << 20}, items...)
		fsck(t, image.Name())
		_, rest, _ := strings.Cut(run(t, requireTool(t, "dumpe2fs"), "-h", image.Name()), "Free blocks:")
		fmt.Sscan(rest, &blocks)
		return 64<<20/4096 - blocks
	}
	none := used(func(int) map[string]string { return nil })
	if got := used(func(int) map[string]string { return label }) - none; got != 3 {
		t.Errorf("3,000 equal labels take %d blocks, want 3", got)
	}
	odd := used(func(i int) map[string]string {
		return map[string]string{"user.x": strings.Repeat(fmt.Sprint(i%500), 100)}
	})
	if got := odd - none; got != 500 {
		t.Errorf("500 different sets take %d blocks, want 500", got)
	}
}

func TestACLsTheKernelWouldRefuseAreRefused(t *testing.T) {
	for name, value := range map[string]string{
		"short":       "\x02\x00",
		"version":     "\x01\x00\x00\x00" + namedACL[4:],
		"cut":         namedACL[:len(namedACL)-1],
		"no mask":     acl(0x01, 7, nobody, 0x02, 5, 1000, 0x04, 4, nobody, 0x20, 1, nobody),
		"two owners":  acl(0x01, 7, nobody, 0x01, 7, nobody, 0x04, 4, nobody, 0x20, 1, nobody),
		"order":       acl(0x04, 4, nobody, 0x01, 7, nobody, 0x20, 1, nobody),
		"tag":         acl(0x01, 7, nobody, 0x04, 4, nobody, 0x20, 1, nobody, 0x40, 1, nobody),
		"permissions": acl(0x01, 8, nobody, 0x04, 4, nobody, 0x20, 1, nobody),
		"no others":   acl(0x01, 7, nobody, 0x04, 4, nobody),
	} {
		w, err := ext4.NewWriter(t.Context(), newImage(t, 16<<20), ext4.Options{Size: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		e := ext4.Entry{Path: "a", Mode: unix.S_IFDIR | 0o755, Xattrs: map[string]string{defaultName: value}}
		err = w.Add(t.Context(), e, nil)
		if !errors.Is(err, overlaybd.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
