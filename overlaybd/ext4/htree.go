package ext4

import (
	"cmp"
	"slices"
)

// An indexed directory is a tree over the hashes of names. Its first block has the entries "." and "..", behind which
// older readers see nothing, and the index: pairs of the lowest hash of a block and that block's number in the directory.
// The first pair has no hash; the number of pairs and their limit are in its place.
const (
	indexHalfMD4  = 1
	indexRootAt   = 32 // of the pairs in the first block
	indexNodeAt   = 8  // of the pairs in a block of the second level
	indexPair     = 8
	indexRootRoom = (blockSize - indexRootAt - 8) / indexPair
	indexNodeRoom = (blockSize - indexNodeAt - 8) / indexPair
)

// hashedName is one entry with what orders it.
type hashedName struct{ major, minor, index uint32 }

// branch is a block of the directory and the lowest hash in it. The low bit of the hash says that the block before has
// names with the same hash.
type branch struct{ hash, block uint32 }

// encodeIndexed returns the blocks of a directory of more than one: the root of the index, the blocks of its second
// level if it has one, and the leaves.
func (w *Writer) encodeIndexed(ino uint32, d *directory) ([]byte, error) {
	seed := inodeSeed(w.seed, ino)
	leaves, branches := w.encodeLeaves(seed, w.sortNames(d))
	nodes := 0
	if len(branches) > indexRootRoom {
		nodes = (len(branches) + indexNodeRoom - 1) / indexNodeRoom
	}
	if nodes > indexRootRoom {
		return nil, invalid("directory: has %d blocks of names, at most %d allowed", len(branches),
			indexRootRoom*indexNodeRoom)
	}
	for i := range branches {
		branches[i].block += uint32(1 + nodes)
	}
	content := make([]byte, 0, blockSize*(1+nodes)+len(leaves))
	content = append(content, make([]byte, blockSize)...)
	top := branches
	if nodes > 0 {
		top = nil
		for part := range slices.Chunk(branches, indexNodeRoom) {
			top = append(top, branch{part[0].hash, uint32(len(content) / blockSize)})
			content = append(content, encodeNode(seed, part)...)
		}
	}
	w.putRoot(content[:blockSize], ino, d.parent, seed, nodes > 0, top)
	return append(content, leaves...), nil
}

// sortNames orders the entries of a directory by hash. Names that collide are ordered by their text, so that the result
// does not depend on the order in which they were added.
func (w *Writer) sortNames(d *directory) []hashedName {
	var list []hashedName
	for i := d.first; i != 0; i = w.tree.names.at(i).next {
		major, minor := nameHash(w.hashSeed, w.tree.names.at(i).text)
		list = append(list, hashedName{major, minor, i})
	}
	slices.SortFunc(list, func(a, b hashedName) int {
		if c := cmp.Or(cmp.Compare(a.major, b.major), cmp.Compare(a.minor, b.minor)); c != 0 {
			return c
		}
		return cmp.Compare(w.tree.names.at(a.index).text, w.tree.names.at(b.index).text)
	})
	return list
}

// encodeLeaves packs entries into full blocks, which the kernel splits when a name is added.
func (w *Writer) encodeLeaves(seed uint32, list []hashedName) (blocks []byte, branches []branch) {
	l := newLeaf()
	branches = append(branches, branch{})
	for i, h := range list {
		n := w.tree.names.at(h.index)
		if !l.fits(n.text) {
			blocks = append(blocks, l.done(seed)...)
			l = newLeaf()
			hash := h.major
			if list[i-1].major == h.major {
				hash |= 1
			}
			branches = append(branches, branch{hash, uint32(len(branches))})
		}
		l.add(n.ino, n.text, w.tree.inodes.at(n.ino).kind())
	}
	return append(blocks, l.done(seed)...), branches
}

func encodeNode(seed uint32, list []branch) []byte {
	b := make([]byte, blockSize)
	le.PutUint16(b[4:], blockSize) // one free entry over the whole block, for older readers
	putPairs(b, indexNodeAt, indexNodeRoom, seed, list)
	return b
}

func (w *Writer) putRoot(b []byte, ino, parent, seed uint32, deep bool, list []branch) {
	putName(b, 12, ino, ".", 2)
	putName(b[12:], blockSize-12, parent, "..", 2)
	b[28] = indexHalfMD4
	b[29] = 8 // length of these four bytes and the four zeroes before them
	if deep {
		b[30] = 1
	}
	putPairs(b, indexRootAt, indexRootRoom, seed, list)
}

// putPairs encodes the pairs of one block, and the checksum of what is used of it.
func putPairs(b []byte, at, room int, seed uint32, list []branch) {
	for i, pair := range list {
		le.PutUint32(b[at+i*indexPair:], pair.hash)
		le.PutUint32(b[at+i*indexPair+4:], pair.block)
	}
	le.PutUint16(b[at:], uint16(room))
	le.PutUint16(b[at+2:], uint16(len(list)))
	sum := checksum(seed, b[:at+len(list)*indexPair])
	sum = checksum(sum, zeroes[:8]) // the tail, whose checksum counts as zero
	le.PutUint32(b[at+room*indexPair+4:], sum)
}
