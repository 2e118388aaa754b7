package ext4

import (
	"errors"
	"maps"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"
)

// Files that were deleted while they were open have no name any more, but inodes and blocks until they are closed. A list
// through their inodes remembers them, and whoever recovers the file system frees them.
//
// Freeing is safe to repeat after a crash: clearing bits is, and counts are counted again from the bitmaps. The inodes,
// which are the list, change after that, one by one.

// orphans is what the list's inodes take.
type orphans struct {
	fs     *filesystem
	inodes []uint32
	groups map[uint64]*freed
}

// freed is what is to be freed in one group.
type freed struct {
	blocks []run
	inodes []uint32
	dirs   []uint32 // of inodes: directories
}

// errLeave: the list has something that only a kernel can free. It is left as it is, and the next writable mount frees
// all of it.
var errLeave = errors.New("left to the kernel")

// findOrphans collects what can be freed. Nothing can be if the list has anything that this package does not know how to
// free: truncations that were not finished, shared blocks of attributes, maps without extents, quota.
func findOrphans(f *filesystem) (*orphans, error) {
	o := &orphans{fs: f, groups: map[uint64]*freed{}}
	ro := le.Uint32(f.super[sbROCompat:])
	next := le.Uint32(f.super[sbLastOrphan:])
	if next != 0 && (ro&(roCompatQuota|roCompatClusters) != 0 || !f.checksums && ro&roCompatGroupSum != 0 ||
		f.incompat&incompatValues != 0 || f.perGroup%8 != 0) {
		return nil, errLeave
	}
	for seen := map[uint32]bool{}; next != 0 && next <= le.Uint32(f.super[sbInodes:]); {
		in, err := f.inode(next)
		if err != nil {
			return nil, err
		}
		if seen[next] || next < firstInode {
			return nil, errLeave
		}
		seen[next] = true
		if err := o.add(next, in); err != nil {
			return nil, err
		}
		next = le.Uint32(in[inDeleted:])
	}
	return o, nil
}

// add collects one inode with its blocks.
func (o *orphans) add(ino uint32, in []byte) error {
	const inline = 0x10000000
	flags, kind := le.Uint32(in[inFlags:]), uint32(le.Uint16(in[inMode:]))&unix.S_IFMT
	acl := uint64(le.Uint32(in[inACL:])) | uint64(le.Uint16(in[inACLHigh:]))<<32
	sectors := uint64(le.Uint32(in[inSectors:])) | uint64(le.Uint16(in[inSectorsHi:]))<<32
	if le.Uint16(in[inLinks:]) != 0 || flags&inline != 0 {
		return errLeave
	}
	if acl != 0 {
		if err := o.addAttributes(acl); err != nil {
			return err
		}
		sectors -= min(sectors, uint64(o.fs.block/512))
	}
	if flags&flagExtents != 0 {
		w := walker{fs: o.fs, seed: o.fs.seedOf(in, ino), holes: true}
		if err := w.walk(in[inBlock:inBlock+blockArea], -1); err != nil {
			return err
		}
		for _, r := range w.runs {
			o.addRun(r)
		}
		for _, block := range w.tree {
			o.addRun(run{block, 1})
		}
	} else if sectors != 0 {
		return errLeave
	}
	g := o.group(uint64(ino-1) / o.fs.perGroup)
	g.inodes = append(g.inodes, ino)
	if kind == unix.S_IFDIR {
		g.dirs = append(g.dirs, ino)
	}
	o.inodes = append(o.inodes, ino)
	return nil
}

// addAttributes collects a block of extended attributes that no other inode shares.
func (o *orphans) addAttributes(block uint64) error {
	b := make([]byte, o.fs.block)
	if err := o.fs.readBlock(b, block); err != nil {
		return err
	}
	if le.Uint32(b) != xattrMagic || le.Uint32(b[4:]) != 1 {
		return errLeave
	}
	o.addRun(run{block, 1})
	return nil
}

func (o *orphans) group(g uint64) *freed {
	if o.groups[g] == nil {
		o.groups[g] = &freed{}
	}
	return o.groups[g]
}

// addRun divides blocks among their groups.
func (o *orphans) addRun(r run) {
	for r.n > 0 {
		at := r.start - min(r.start, o.fs.first)
		n := min(r.n, o.fs.groupSize-at%o.fs.groupSize)
		g := o.group(at / o.fs.groupSize)
		g.blocks = append(g.blocks, run{at % o.fs.groupSize, n})
		r = run{r.start + n, r.n - n}
	}
}

// changes returns the blocks of bitmaps and descriptors as they are afterwards.
func (o *orphans) changes() (map[uint64][]byte, error) {
	f, all := o.fs, map[uint64][]byte{}
	load := func(block uint64) ([]byte, error) {
		if all[block] == nil {
			p := make([]byte, f.block)
			if err := f.readBlock(p, block); err != nil {
				return nil, err
			}
			all[block] = p
		}
		return all[block], nil
	}
	for _, g := range slices.Sorted(maps.Keys(o.groups)) {
		per := uint64(f.block / f.descBytes)
		descs, err := load(f.descBlock(g / per))
		if err != nil {
			return nil, err
		}
		d := descs[int64(g%per)*f.descBytes:][:f.descBytes]
		if le.Uint16(d[gdFlags:])&(groupInodesUnused|groupBlocksUnused) != 0 {
			return nil, errLeave // such a group has nothing to free
		}
		blocks, err := load(split(d, gdBlockBitmap))
		if err != nil {
			return nil, err
		}
		inodes, err := load(split(d, gdInodeBitmap))
		if err != nil {
			return nil, err
		}
		o.groups[g].clear(f, g, d, blocks[:f.groupSize/8], inodes[:f.perGroup/8])
	}
	return all, nil
}

// clear frees what is collected of one group: in its bitmaps, then in its descriptor.
func (r *freed) clear(f *filesystem, g uint64, d, blocks, inodes []byte) {
	for _, run := range r.blocks {
		for i := run.start; i < run.start+run.n; i++ {
			blocks[i/8] &^= 1 << (i % 8)
		}
	}
	for _, ino := range r.inodes {
		i := uint64(ino-1) % f.perGroup
		inodes[i/8] &^= 1 << (i % 8)
	}
	free := countFree(inodes)
	if free != joined(d, gdFreeInodes) { // otherwise a replay that was interrupted had come so far
		putJoined(d, gdDirs, joined(d, gdDirs)-uint32(len(r.dirs)))
	}
	putJoined(d, gdFreeInodes, free)
	putJoined(d, gdFreeBlocks, countFree(blocks))
	if !f.checksums {
		return
	}
	putSum := func(low, high int, bitmap []byte) {
		sum := checksum(f.seed, bitmap)
		le.PutUint16(d[low:], uint16(sum))
		if len(d) > high {
			le.PutUint16(d[high:], uint16(sum>>16))
		}
	}
	putSum(gdBlockBitmapSum, gdBlocksSumHigh, blocks)
	putSum(gdInodeBitmapSum, gdInodesSumHigh, inodes)
	le.PutUint16(d[gdChecksum:], groupChecksum(f.seed, uint32(g), d))
}

// joined reads a count of a descriptor, whose high half is there only in long descriptors.
func joined(d []byte, at int) uint32 {
	v := uint32(le.Uint16(d[at:]))
	if len(d) > at+gdHigh {
		v |= uint32(le.Uint16(d[at+gdHigh:])) << 16
	}
	return v
}

func putJoined(d []byte, at int, v uint32) {
	le.PutUint16(d[at:], uint16(v))
	if len(d) > at+gdHigh {
		le.PutUint16(d[at+gdHigh:], uint16(v>>16))
	}
}

// countFree is the number of bits of a bitmap that are not set.
func countFree(bitmap []byte) (free uint32) {
	for _, b := range bitmap {
		free += uint32(8 - bits.OnesCount8(b))
	}
	return free
}

// grave is a few sectors of an inode table, as they are after a deletion.
type grave struct {
	off int64
	b   []byte
}

// graves lists the writes that mark the inodes as deleted, at the time of the superblock. Until then their time of
// deletion is the link to the next of the list. The last comes first: a replay that was interrupted leaves the start of
// the list, which ends at the first time, as a time is greater than any number of an inode.
func (o *orphans) graves() (list []grave, err error) {
	f, blocks := o.fs, map[uint64][]byte{}
	unit := max(512, f.inodeBytes)
	at := max(le.Uint32(f.super[sbWritten:]), le.Uint32(f.super[sbInodes:])+1)
	for _, ino := range slices.Backward(o.inodes) {
		block, off, err := f.inodePlace(ino)
		if err != nil {
			return nil, err
		}
		if blocks[block] == nil {
			p := make([]byte, f.block)
			if err := f.readBlock(p, block); err != nil {
				return nil, err
			}
			blocks[block] = p
		}
		in := blocks[block][off:][:f.inodeBytes]
		le.PutUint32(in[inDeleted:], at)
		if f.checksums {
			f.setInodeSum(in, ino)
		}
		first := off / unit * unit
		list = append(list, grave{int64(block)*f.block + first, slices.Clone(blocks[block][first:][:unit])})
	}
	return list, nil
}
