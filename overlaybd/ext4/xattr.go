package ext4

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	xattrMagic     = 0xEA020000
	xattrEntry     = 16                       // bytes before the name
	xattrHeader    = 32                       // of a block
	xattrLocalRoom = inodeSize - inXattrs - 4 // in an inode, after the magic number
	xattrBlockRoom = blockSize - xattrHeader  // in a block
	xattrMaxShared = 1024                     // inodes that share a block
	xattrEnd       = 4                        // zero bytes that end the entries
	maxXattrName   = 255
)

// Name spaces, with the number that stands for the prefix on disk.
var xattrSpaces = []struct {
	prefix string
	index  byte
}{
	{"user.", 1},
	{"trusted.", 4},
	{"security.", 6},
	{"system.", 7},
}

const (
	xattrAccessACL  = 2
	xattrDefaultACL = 3
)

// attribute is one extended attribute in ext4's form.
type attribute struct {
	index byte
	name  string // without the prefix
	value []byte
}

func (a attribute) size() int { return pad4(xattrEntry+len(a.name)) + pad4(len(a.value)) }

func pad4(n int) int { return (n + 3) &^ 3 }

// newAttribute brings one extended attribute of an inode into ext4's form. There is nothing to keep of an ACL that says
// no more than the mode.
func newAttribute(name, value string, mode uint32) (a attribute, keep bool, err error) {
	kind := mode & unix.S_IFMT
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default":
		if kind == unix.S_IFLNK {
			return a, false, invalid("xattr %q: symbolic links have no ACL", name)
		}
		a.index = xattrAccessACL
		encode := accessACL
		if name == "system.posix_acl_default" {
			a.index, encode = xattrDefaultACL, defaultACL
		}
		a.value, err = encode(value, mode)
		return a, a.value != nil, err
	}
	for _, space := range xattrSpaces {
		rest, ok := strings.CutPrefix(name, space.prefix)
		if !ok {
			continue
		}
		if len(rest) == 0 || len(rest) > maxXattrName || strings.IndexByte(rest, 0) >= 0 {
			return a, false, invalid("xattr %q: name must have 1 to %d bytes after the prefix", name, maxXattrName)
		}
		if space.index == 1 && kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return a, false, invalid("xattr %q: only files and directories have user attributes", name)
		}
		if rest == "data" && space.index == 7 {
			return a, false, invalid("xattr %q: the name is the file system's own", name)
		}
		return attribute{space.index, rest, []byte(value)}, true, nil
	}
	return a, false, invalid("xattr %q: no such name space", name)
}

// attributeSet is the attributes of one or more inodes: those that fit into the inode, and a block for the rest.
type attributeSet struct {
	local  []byte
	shared []attribute
	uses   uint32 // inodes that have the set
	blocks []uint64
	given  uint32 // inodes that were given their block
}

// xattrTable keeps each set once: labels and capabilities are the same on most inodes.
type xattrTable struct {
	sets  arena[attributeSet]
	known map[[sha256.Size]byte]uint32
}

// attributes brings the extended attributes of an inode into ext4's form, in the order that a block must have.
func attributes(xattrs map[string]string, mode uint32) (list []attribute, err error) {
	for _, name := range slices.Sorted(maps.Keys(xattrs)) { // so that the first error is always the same
		a, keep, err := newAttribute(name, xattrs[name], mode)
		if err != nil {
			return nil, err
		}
		if keep {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b attribute) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	return list, nil
}

// checkXattrs says whether an inode can have these extended attributes.
func checkXattrs(xattrs map[string]string, mode uint32) error {
	list, err := attributes(xattrs, mode)
	if err == nil {
		_, err = newAttributeSet(list)
	}
	return err
}

// add returns the number, from 1, of the set of attributes, or 0 if there is nothing to keep.
func (t *xattrTable) add(xattrs map[string]string, mode uint32) (uint32, error) {
	list, err := attributes(xattrs, mode)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	key := digestAttributes(list)
	number, ok := t.known[key]
	if !ok {
		set, err := newAttributeSet(list)
		if err != nil {
			return 0, err
		}
		number = t.sets.add(set) + 1
		t.known[key] = number
	}
	t.sets.at(number-1).uses++
	return number, nil
}

// drop takes back one add.
func (t *xattrTable) drop(number uint32) {
	if number != 0 {
		t.sets.at(number-1).uses--
	}
}

func digestAttributes(list []attribute) (key [sha256.Size]byte) {
	h := sha256.New()
	for _, a := range list {
		var head [9]byte
		head[0] = a.index
		le.PutUint32(head[1:], uint32(len(a.name)))
		le.PutUint32(head[5:], uint32(len(a.value)))
		h.Write(head[:])
		h.Write([]byte(a.name))
		h.Write(a.value)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// newAttributeSet divides a sorted list: what fits into the inode goes there.
func newAttributeSet(list []attribute) (s attributeSet, err error) {
	var local []attribute
	localSize, sharedSize := xattrEnd, xattrEnd
	for _, a := range list {
		if localSize+a.size() <= xattrLocalRoom {
			local, localSize = append(local, a), localSize+a.size()
			continue
		}
		s.shared, sharedSize = append(s.shared, a), sharedSize+a.size()
	}
	if sharedSize > xattrBlockRoom {
		return s, invalid("xattrs: take %d bytes beside the inode, at most %d allowed", sharedSize, xattrBlockRoom)
	}
	if len(local) > 0 {
		s.local = make([]byte, 4+xattrLocalRoom)
		le.PutUint32(s.local, xattrMagic)
		putAttributes(s.local[4:], 0, local, false)
	}
	return s, nil
}

// putAttributes encodes entries from the position at on and their values from the end of b backwards. Only entries in a
// block are hashed.
func putAttributes(b []byte, at int, list []attribute, hashed bool) {
	end := len(b)
	for _, a := range list {
		e := b[at:]
		e[0], e[1] = byte(len(a.name)), a.index
		if len(a.value) > 0 {
			end -= pad4(len(a.value))
			copy(b[end:], a.value)
			le.PutUint16(e[2:], uint16(end))
		}
		le.PutUint32(e[8:], uint32(len(a.value)))
		copy(e[xattrEntry:], a.name)
		if hashed {
			le.PutUint32(e[12:], attributeHash(a.name, b[end:end+pad4(len(a.value))]))
		}
		at += pad4(xattrEntry + len(a.name))
	}
}

// attributeHash is over name and padded value. Bytes of the name count as signed: that is what kernels before 6.2 did,
// and what later ones and the checker accept beside the unsigned form.
func attributeHash(name string, value []byte) (hash uint32) {
	for i := range len(name) {
		hash = hash<<5 ^ hash>>27 ^ uint32(int8(name[i]))
	}
	for ; len(value) > 0; value = value[4:] {
		hash = hash<<16 ^ hash>>16 ^ le.Uint32(value)
	}
	return hash
}

// encodeBlock returns the block of a set for a number of inodes.
func (s *attributeSet) encodeBlock(seed uint32, block uint64, inodes uint32) []byte {
	b := make([]byte, blockSize)
	le.PutUint32(b[0:], xattrMagic)
	le.PutUint32(b[4:], inodes)
	le.PutUint32(b[8:], 1) // blocks
	putAttributes(b, xattrHeader, s.shared, true)
	var hash uint32
	at := xattrHeader
	for _, a := range s.shared {
		hash = hash<<16 ^ hash>>16 ^ le.Uint32(b[at+12:])
		at += pad4(xattrEntry + len(a.name))
	}
	le.PutUint32(b[12:], hash)
	sum := checksum32(checksum32(seed, uint32(block)), uint32(block>>32))
	le.PutUint32(b[16:], checksum(sum, b))
	return b
}

// writeAttributes writes the blocks of all sets that need some: one for every 1,024 inodes.
func (w *Writer) writeAttributes(ctx context.Context) error {
	for i := range w.xattrs.sets.n {
		s := w.xattrs.sets.at(i)
		if len(s.shared) == 0 {
			continue
		}
		for left := s.uses; left > 0; {
			r, err := w.alloc.take(1)
			if err != nil {
				return err
			}
			inodes := min(left, xattrMaxShared)
			if err := w.out.write(ctx, r.start, s.encodeBlock(w.seed, r.start, inodes)); err != nil {
				return err
			}
			s.blocks = append(s.blocks, r.start)
			left -= inodes
		}
	}
	return nil
}

// attributesOf returns the two parts of an inode's attributes. It is called once for each inode.
func (t *xattrTable) attributesOf(n *inode) (local []byte, block uint64) {
	if n.xattrs == 0 {
		return nil, 0
	}
	s := t.sets.at(n.xattrs - 1)
	if len(s.blocks) > 0 {
		block = s.blocks[s.given/xattrMaxShared]
		s.given++
	}
	return s.local, block
}
