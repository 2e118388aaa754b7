package ext4

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

const maxLabel = 16

// Options say what file system a Writer makes. Only Size is required.
type Options struct {
	// Size of the device in bytes: a multiple of SizeUnit from MinSize to MaxSize.
	Size int64
	// Inodes is how many entries to expect. There is an inode for every 16 KiB, or for these entries and an eighth more
	// where that is more.
	Inodes int64
	// UUID names the file system and is the seed of its checksums, HashSeed that of the order in large directories. Zero
	// ones are replaced by fixed ones: equal options and entries give equal bytes.
	UUID, HashSeed [16]byte
	// Label is the volume's label, up to 16 bytes.
	Label string
	// Time is when the file system was made, for itself and for what has no time of its own: 1970 when zero.
	Time time.Time
}

// The defaults could be any; they are fixed so that equal input gives equal bytes.
var (
	defaultUUID = [16]byte{0x5a, 0x4d, 0x07, 0x01, 0x0b, 0x5d, 0x4e, 0x34, 0x80, 0x01, 's', 'a', 'n', 'd', 'v', 'o'}
	defaultSeed = [16]byte{0x5a, 0x4d, 0x07, 0x02, 0x0b, 0x5d, 0x4e, 0x34, 0x80, 0x02, 's', 'a', 'n', 'd', 'v', 'o'}
)

// Writer makes one file system from a stream of entries. Content goes to the device at once, in the order of entries and
// of addresses; the rest is written by Finish, from memory that grows with entries and not with bytes. A Writer is for
// one goroutine. Without a Finish there is no file system, and nothing to clean up but the device.
type Writer struct {
	options  Options
	layout   layout
	seed     uint32 // of all checksums
	hashSeed [4]uint32
	time     stamp
	alloc    allocator
	out      output
	tree     tree
	xattrs   xattrTable
	buf      []byte // of content
	err      error  // why the Writer is of no more use
}

// NewWriter starts a file system on dst, which must read as zeroes: they are not written. Every write is of whole blocks
// of 4 KiB. Options outside their limits are overlaybd.ErrInvalid, more inodes than fit ErrNoSpace.
func NewWriter(ctx context.Context, dst io.WriterAt, o Options) (*Writer, error) {
	if len(o.Label) > maxLabel {
		return nil, fmt.Errorf("ext4: %w", invalid("label of %d bytes: at most %d allowed", len(o.Label), maxLabel))
	}
	l, err := newLayout(o.Size, o.Inodes)
	if err != nil {
		return nil, err
	}
	o.UUID, o.HashSeed = cmp.Or(o.UUID, defaultUUID), cmp.Or(o.HashSeed, defaultSeed)
	if o.Time.IsZero() {
		o.Time = time.Unix(0, 0)
	}
	w := &Writer{
		options: o,
		layout:  l,
		seed:    checksum(checksumStart, o.UUID[:]),
		time:    newStamp(o.Time),
		tree:    newTree(),
		out:     output{dst: dst},
	}
	for i := range w.hashSeed {
		w.hashSeed[i] = le.Uint32(o.HashSeed[4*i:])
	}
	w.alloc.layout = &w.layout
	w.xattrs.known = make(map[[32]byte]uint32)
	*w.tree.inodes.at(rootInode) = w.newInode(unix.S_IFDIR | 0o755)
	if err := w.writeReserved(ctx); err != nil {
		return nil, fmt.Errorf("ext4: %w", err)
	}
	lost := w.tree.inodes.add(w.newInode(unix.S_IFDIR | 0o700))
	w.tree.link(rootInode, "lost+found", lost)
	return w, nil
}

// Add adds an entry. Content is read for a regular file alone, exactly Entry.Size bytes; blocks of zeroes become holes.
// Directories above the path that are missing are made, of owner 0:0 and mode 0755. A directory that exists, the root
// and lost+found included, takes the new entry's metadata; any other path can be added once.
//
// An entry that is refused, with an *EntryError of class overlaybd.ErrInvalid, changes nothing, and the Writer can go on.
// After ErrNoSpace and errors of content, device or context it cannot: all further calls return the same error.
func (w *Writer) Add(ctx context.Context, e Entry, content io.Reader) error {
	if w.err != nil {
		return w.err
	}
	names, err := w.check(&e)
	if err == nil && content == nil && e.Link == "" && e.Mode&unix.S_IFMT == unix.S_IFREG && e.Size > 0 {
		err = invalid("content: missing, %d bytes expected", e.Size)
	}
	if err != nil {
		return &EntryError{e.Path, err}
	}
	if ino := w.tree.find(names); ino != 0 {
		if err := w.update(ino, &e); err != nil {
			return &EntryError{e.Path, err}
		}
		return nil
	}
	if err := w.store(ctx, names, &e, content); err != nil {
		// Blocks may be given out that no inode has: nothing correct can follow.
		w.err = &EntryError{e.Path, err}
		return w.err
	}
	return nil
}

// Next is the offset of the first byte that the next content can take.
func (w *Writer) Next() int64 { return int64(w.alloc.peek()) * blockSize }

// Skip moves on to the offset at which the next content starts, a multiple of 4096, and leaves free what is between. With
// it the content of some entries is at a place that depends on nothing that was added before.
func (w *Writer) Skip(off int64) error {
	if w.err != nil {
		return w.err
	}
	if off < 0 || off%blockSize != 0 {
		return fmt.Errorf("ext4: %w", invalid("offset %d: must be a multiple of %d", off, blockSize))
	}
	if err := w.alloc.seek(uint64(off / blockSize)); err != nil {
		return fmt.Errorf("ext4: %w", err)
	}
	return nil
}

// Finish writes all that is not content: directories, maps of fragmented files, extended attributes, then inodes, bitmaps
// and descriptors, and in the end the superblock that makes it a file system. The Writer takes nothing more after it. It
// does not flush the device.
func (w *Writer) Finish(ctx context.Context) error {
	if w.err != nil {
		return w.err
	}
	if err := w.finish(ctx); err != nil {
		w.err = fmt.Errorf("ext4: finish: %w", err)
		return w.err
	}
	w.err = fmt.Errorf("ext4: %w", invalid("the file system is finished"))
	return nil
}

func (w *Writer) finish(ctx context.Context) error {
	if err := w.writeDirectories(ctx); err != nil {
		return err
	}
	for ino := range w.tree.inodes.n {
		list, ok := w.tree.long[ino]
		if !ok {
			continue
		}
		if err := w.writeTree(ctx, ino, list); err != nil {
			return err
		}
	}
	if err := w.writeAttributes(ctx); err != nil {
		return err
	}
	if err := w.writeTables(ctx); err != nil {
		return err
	}
	desc, sum, err := w.writeGroups(ctx)
	if err != nil {
		return err
	}
	return w.writeSupers(ctx, desc, sum)
}

// check says whether an entry can be added, and changes nothing.
func (w *Writer) check(e *Entry) (names []string, err error) {
	if names, err = splitPath(e.Path); err != nil {
		return nil, err
	}
	if e.Link != "" {
		err = w.checkLink(names, e.Link)
	} else if err = e.check(); err == nil {
		err = checkXattrs(e.Xattrs, e.Mode)
	}
	if err != nil {
		return nil, err
	}
	return names, w.checkParents(names)
}

// checkLink says whether a path can become another name of an inode.
func (w *Writer) checkLink(names []string, target string) error {
	at, err := splitPath(target)
	if err != nil {
		return fmt.Errorf("link to %q: %w", target, err)
	}
	ino := w.tree.find(at)
	switch {
	case ino == 0:
		return invalid("link to %q: no such entry before this one", target)
	case w.tree.dirs[ino] != nil:
		return invalid("link to %q: is a directory", target)
	case w.tree.inodes.at(ino).links >= maxLinks:
		return invalid("link to %q: has %d names, at most %d allowed", target, maxLinks, maxLinks)
	case w.tree.find(names) != 0:
		return invalid("path: exists already")
	}
	return nil
}

// checkParents finds a path that leads through something else than directories.
func (w *Writer) checkParents(names []string) error {
	dir := uint32(rootInode)
	for _, name := range names[:max(len(names), 1)-1] {
		if dir = w.tree.lookup[nameKey{dir, name}]; dir == 0 {
			return nil
		}
		if w.tree.dirs[dir] == nil {
			return invalid("path: %q is not a directory", name)
		}
	}
	return nil
}

// store adds an entry that was checked and whose path is new.
func (w *Writer) store(ctx context.Context, names []string, e *Entry, content io.Reader) error {
	dir, err := w.parent(names)
	if err != nil {
		return err
	}
	ino := uint32(0)
	if e.Link != "" {
		at, _ := splitPath(e.Link)
		ino = w.tree.find(at)
	} else if ino, err = w.storeInode(ctx, e, content); err != nil {
		return err
	}
	w.tree.link(dir, names[len(names)-1], ino)
	return nil
}

func (w *Writer) storeInode(ctx context.Context, e *Entry, content io.Reader) (ino uint32, err error) {
	if err := w.spareInode(); err != nil {
		return 0, err
	}
	n, err := w.inodeOf(e)
	if err != nil {
		return 0, err
	}
	var long extents
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		long, err = w.writeContent(ctx, &n, content, e.Size)
	case unix.S_IFLNK:
		err = w.writeTarget(ctx, &n, e.Target)
	case unix.S_IFCHR, unix.S_IFBLK:
		n.setDevice(e.Major, e.Minor)
	}
	if err != nil {
		return 0, err
	}
	ino = w.tree.inodes.add(n)
	if long != nil {
		w.tree.long[ino] = long
	}
	return ino, nil
}

// inodeOf brings the metadata of an entry into an inode's form.
func (w *Writer) inodeOf(e *Entry) (n inode, err error) {
	n = inode{mode: uint16(e.Mode), uid: e.UID, gid: e.GID, modified: w.time}
	if !e.Modified.IsZero() {
		n.modified = newStamp(e.Modified)
	}
	n.accessed, n.changed = n.modified, n.modified
	if !e.Accessed.IsZero() {
		n.accessed = newStamp(e.Accessed)
	}
	if !e.Changed.IsZero() {
		n.changed = newStamp(e.Changed)
	}
	n.xattrs, err = w.xattrs.add(e.Xattrs, e.Mode)
	return n, err
}

// spareInode is ErrNoSpace when all inodes are given out.
func (w *Writer) spareInode() error {
	if w.tree.inodes.n > w.layout.inodes() {
		return fmt.Errorf("%w: all of its %d inodes are used", ErrNoSpace, w.layout.inodes())
	}
	return nil
}

// update gives an existing directory the metadata of an entry.
func (w *Writer) update(ino uint32, e *Entry) error {
	n := w.tree.inodes.at(ino)
	if !n.is(unix.S_IFDIR) || e.Mode&unix.S_IFMT != unix.S_IFDIR {
		return invalid("path: exists already")
	}
	next, err := w.inodeOf(e)
	if err != nil {
		return err
	}
	w.xattrs.drop(n.xattrs)
	next.links = n.links
	*n = next
	return nil
}

// parent returns the directory of a path and makes what is missing of it.
func (w *Writer) parent(names []string) (uint32, error) {
	dir := uint32(rootInode)
	for _, name := range names[:len(names)-1] {
		next := w.tree.lookup[nameKey{dir, name}]
		if next == 0 {
			if err := w.spareInode(); err != nil {
				return 0, err
			}
			next = w.tree.inodes.add(w.newInode(unix.S_IFDIR | 0o755))
			w.tree.link(dir, name, next)
		}
		dir = next
	}
	return dir, nil
}
