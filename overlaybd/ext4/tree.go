package ext4

import (
	"strings"

	"golang.org/x/sys/unix"
)

// arena is a growing array whose elements never move: growing copies nothing, and a pointer to an element stays good.
type arena[T any] struct {
	chunks [][]T
	n      uint32
}

const arenaChunk = 1024

func (a *arena[T]) add(v T) (index uint32) {
	if a.n%arenaChunk == 0 {
		a.chunks = append(a.chunks, make([]T, 0, arenaChunk))
	}
	last := &a.chunks[len(a.chunks)-1]
	*last = append(*last, v)
	a.n++
	return a.n - 1
}

func (a *arena[T]) at(index uint32) *T { return &a.chunks[index/arenaChunk][index%arenaChunk] }

// name is one entry of a directory. The entries of a directory are a list in order of addition.
type name struct {
	text string
	ino  uint32
	next uint32 // index of the directory's next entry; 0 ends the list
}

// directory is what an inode does not say about a directory.
type directory struct {
	parent      uint32
	first, last uint32 // indexes of names
}

type nameKey struct {
	dir  uint32
	text string
}

// tree is everything that was added, without the content of files. Its memory is what grows with the number of entries,
// about 250 bytes each, so that 200,000 files stay far below 100 MB.
type tree struct {
	inodes arena[inode] // by number; 0 is not used
	names  arena[name]  // 0 is not used
	lookup map[nameKey]uint32
	dirs   map[uint32]*directory
	// long has the maps of files that do not fit into the inode. Their trees are written after all data, so that data
	// depends on content and position alone.
	long map[uint32]extents
}

func newTree() tree {
	t := tree{
		lookup: make(map[nameKey]uint32),
		dirs:   map[uint32]*directory{rootInode: {parent: rootInode}},
		long:   make(map[uint32]extents),
	}
	t.names.add(name{})
	for range firstInode {
		t.inodes.add(inode{})
	}
	return t
}

// find returns the inode of a path, or 0.
func (t *tree) find(names []string) uint32 {
	ino := uint32(rootInode)
	for _, n := range names {
		if ino = t.lookup[nameKey{ino, n}]; ino == 0 {
			return 0
		}
	}
	return ino
}

// link adds a name to a directory.
func (t *tree) link(dir uint32, text string, ino uint32) {
	text = strings.Clone(text) // it may be a piece of a long path
	index := t.names.add(name{text: text, ino: ino})
	d := t.dirs[dir]
	if d.first == 0 {
		d.first = index
	} else {
		t.names.at(d.last).next = index
	}
	d.last = index
	t.lookup[nameKey{dir, text}] = ino
	if n := t.inodes.at(ino); n.is(unix.S_IFDIR) {
		t.dirs[ino] = &directory{parent: dir}
		t.inodes.at(dir).links++
	} else {
		n.links++
	}
}

// kind is the type of an inode as directory entries have it.
func (n *inode) kind() byte {
	switch uint32(n.mode) & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	default:
		return 7
	}
}
