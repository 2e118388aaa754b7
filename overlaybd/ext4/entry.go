package ext4

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one name of the tree and, unless it is a hard link, the inode behind it.
type Entry struct {
	// Path is relative to the root, with "/" between names. A name is 1 to 255 bytes of any value but 0 and "/". Empty
	// and "." names are skipped, so that "./a" and "/a/" are "a" and "/" is the root; ".." is refused. Symbolic links are
	// not followed: a path through anything but directories is refused.
	Path string
	// Link makes the entry another name of an earlier one, which must not be a directory; all other fields are ignored.
	Link string

	// Mode is as in stat(2): one of the types S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR, S_IFBLK, S_IFIFO and S_IFSOCK, and the
	// permission bits.
	Mode uint32
	// UID and GID are the numeric owner.
	UID, GID uint32
	// Modified, Accessed and Changed are kept to the nanosecond, from 1901 to 2446; others become the nearest that can be
	// kept, as in the kernel. A zero Accessed or Changed is Modified, a zero Modified is Options.Time.
	Modified, Accessed, Changed time.Time
	// Size is the length of a regular file's content.
	Size int64
	// Target is what a symbolic link says: 1 to 4095 bytes of any value but 0.
	Target string
	// Major and Minor are the number of a device, below 4096 and 2²⁰.
	Major, Minor uint32
	// Xattrs are extended attributes by full name, with values as getxattr(2) returns them. POSIX ACLs are brought into
	// ext4's form and agree with Mode afterwards, as after a chmod.
	Xattrs map[string]string
}

const (
	maxName   = 255
	maxTarget = blockSize - 1
	maxLinks  = 65000
	maxMajor  = 1<<12 - 1
	maxMinor  = 1<<20 - 1
	// maxFile is the size up to which blocks of a file have 32-bit numbers.
	maxFile = (1<<32 - 1) * blockSize
)

// splitPath returns the names of a path; the root has none.
func splitPath(path string) (names []string, err error) {
	for name := range strings.SplitSeq(path, "/") {
		switch {
		case name == "" || name == ".":
		case name == "..":
			return nil, invalid("path: has a name %q", name)
		case len(name) > maxName:
			return nil, invalid("path: has a name of %d bytes, at most %d allowed", len(name), maxName)
		case strings.IndexByte(name, 0) >= 0:
			return nil, invalid("path: has a name with a zero byte")
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// check validates what one entry says by itself.
func (e *Entry) check() error {
	if e.Mode&^(unix.S_IFMT|0o7777) != 0 {
		return invalid("mode %#o: has bits beyond type and permissions", e.Mode)
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFIFO, unix.S_IFSOCK:
	case unix.S_IFREG:
		if e.Size < 0 || e.Size > maxFile {
			return invalid("size %d: must be from 0 to %d", e.Size, int64(maxFile))
		}
	case unix.S_IFLNK:
		if n := len(e.Target); n == 0 || n > maxTarget || strings.IndexByte(e.Target, 0) >= 0 {
			return invalid("target of %d bytes: must have 1 to %d, none of them zero", n, maxTarget)
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		if e.Major > maxMajor || e.Minor > maxMinor {
			return invalid("device %d:%d: at most %d:%d allowed", e.Major, e.Minor, maxMajor, maxMinor)
		}
	default:
		return invalid("mode %#o: no known type", e.Mode)
	}
	return nil
}
