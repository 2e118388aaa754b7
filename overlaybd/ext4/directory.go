package ext4

import (
	"cmp"
	"context"
)

const (
	nameHeader = 8
	leafRoom   = blockSize - 12 // the last 12 bytes are an entry in disguise that has the checksum
)

// nameSize is the length of a directory entry.
func nameSize(text string) int { return nameHeader + (len(text)+3)&^3 }

// putName encodes an entry of the given length.
func putName(b []byte, size int, ino uint32, text string, kind byte) {
	le.PutUint32(b, ino)
	le.PutUint16(b[4:], uint16(size))
	b[6] = byte(len(text))
	b[7] = kind
	copy(b[nameHeader:], text)
}

// leaf fills one block with entries.
type leaf struct {
	block []byte
	used  int
	last  int // where the last entry starts
}

func newLeaf() *leaf { return &leaf{block: make([]byte, blockSize)} }

func (l *leaf) fits(text string) bool { return l.used+nameSize(text) <= leafRoom }

func (l *leaf) add(ino uint32, text string, kind byte) {
	l.last = l.used
	l.used += nameSize(text)
	putName(l.block[l.last:], l.used-l.last, ino, text, kind)
}

// done makes the last entry reach to the checksum, which it adds. A block without entries gets one that is free.
func (l *leaf) done(seed uint32) []byte {
	le.PutUint16(l.block[l.last+4:], uint16(leafRoom-l.last))
	tail := l.block[leafRoom:]
	le.PutUint16(tail[4:], 12)
	tail[7] = 0xDE
	le.PutUint32(tail[8:], checksum(seed, l.block[:leafRoom]))
	return l.block
}

// writeDirectories writes every directory, in order of inode numbers.
func (w *Writer) writeDirectories(ctx context.Context) error {
	for ino := uint32(rootInode); ino < w.tree.inodes.n; ino++ {
		d := w.tree.dirs[ino]
		if d == nil {
			continue
		}
		content, indexed, err := w.encodeDirectory(ino, d)
		if err != nil {
			return &EntryError{w.pathOf(ino), err}
		}
		if err := w.writeDirectory(ctx, ino, content, indexed); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) writeDirectory(ctx context.Context, ino uint32, content []byte, indexed bool) error {
	n := w.tree.inodes.at(ino)
	n.size = int64(len(content))
	n.sectors = uint64(len(content)) / 512
	if indexed {
		n.flags |= flagIndex
	}
	var list extents
	for logical := uint32(0); len(content) > 0; {
		r, err := w.alloc.take(uint64(len(content)) / blockSize)
		if err != nil {
			return err
		}
		if err := w.out.write(ctx, r.start, content[:r.n*blockSize]); err != nil {
			return err
		}
		list.add(logical, r)
		content, logical = content[r.n*blockSize:], logical+uint32(r.n)
	}
	return w.writeTree(ctx, ino, list)
}

// encodeDirectory returns the blocks of a directory: one, or an index and its leaves.
func (w *Writer) encodeDirectory(ino uint32, d *directory) (content []byte, indexed bool, err error) {
	seed, first := inodeSeed(w.seed, ino), newLeaf()
	first.add(ino, ".", 2)
	first.add(d.parent, "..", 2)
	for i := d.first; i != 0; {
		n := w.tree.names.at(i)
		if !first.fits(n.text) {
			content, err = w.encodeIndexed(ino, d)
			return content, true, err
		}
		first.add(n.ino, n.text, w.tree.inodes.at(n.ino).kind())
		i = n.next
	}
	content = first.done(seed)
	if ino == firstInode {
		// The checker moves what it finds into lost+found. It has room from the start, since a damaged file system is
		// the wrong place to allocate.
		for range 3 {
			content = append(content, newLeaf().done(seed)...)
		}
	}
	return content, false, nil
}

// pathOf finds a directory's path again, for messages.
func (w *Writer) pathOf(ino uint32) string {
	path := ""
	for ino != rootInode {
		parent := w.tree.dirs[ino].parent
		for i := w.tree.dirs[parent].first; i != 0; i = w.tree.names.at(i).next {
			if n := w.tree.names.at(i); n.ino == ino {
				path = "/" + n.text + path
			}
		}
		ino = parent
	}
	return cmp.Or(path, "/")
}
