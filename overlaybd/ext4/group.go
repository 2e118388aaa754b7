package ext4

import "context"

// Byte offsets of a group descriptor's fields; the high halves are 0x20 further on.
const (
	gdBlockBitmap    = 0x00
	gdInodeBitmap    = 0x04
	gdInodeTable     = 0x08
	gdFreeBlocks     = 0x0C
	gdFreeInodes     = 0x0E
	gdDirs           = 0x10
	gdFlags          = 0x12
	gdBlockBitmapSum = 0x18
	gdInodeBitmapSum = 0x1A
	gdUnusedInodes   = 0x1C
	gdChecksum       = 0x1E
	gdHigh           = 0x20 // of 32-bit fields: 0x20 after the low half
	gdBlocksSumHigh  = 0x38
	gdInodesSumHigh  = 0x3A
)

// Flags of a group.
const (
	groupInodesUnused = 0x1 // no inode is used: the inode bitmap need not be read
	groupBlocksUnused = 0x2 // no block but the fixed ones is used: the block bitmap need not be read
	// groupTableZeroed: the inode table is zeroes, which is true of a fresh device. Without it the kernel would write them
	// after the first mount, 1 GiB in a volume of 64 GiB, and every one would be published.
	groupTableZeroed = 0x4
)

// totals is what superblocks say of all groups.
type totals struct {
	freeBlocks uint64
	freeInodes uint32
}

// writeGroups writes the bitmaps and returns the descriptors.
func (w *Writer) writeGroups(ctx context.Context) (desc []byte, sum totals, err error) {
	desc = make([]byte, int(w.layout.descBlocks)*blockSize)
	dirs := w.directoriesByGroup()
	runs := w.alloc.runs
	for g := range w.layout.groups {
		for len(runs) > 0 && runs[0].start+runs[0].n <= w.layout.firstBlock(g) {
			runs = runs[1:]
		}
		d := desc[int(g)*descSize:][:descSize]
		w.putLocations(d, g)
		le.PutUint16(d[gdDirs:], uint16(dirs[g]))
		flags := uint16(groupTableZeroed)
		freeBlocks, used, err := w.writeBlockBitmap(ctx, d, g, runs)
		if err != nil {
			return nil, sum, err
		}
		if !used {
			flags |= groupBlocksUnused
		}
		freeInodes, err := w.writeInodeBitmap(ctx, d, g)
		if err != nil {
			return nil, sum, err
		}
		if freeInodes == w.layout.inodesPerGroup {
			flags |= groupInodesUnused
		}
		le.PutUint16(d[gdFlags:], flags)
		le.PutUint16(d[gdChecksum:], groupChecksum(w.seed, g, d))
		sum.freeBlocks += uint64(freeBlocks)
		sum.freeInodes += freeInodes
	}
	return desc, sum, nil
}

// groupChecksum is over the group's number and its descriptor, whose own field counts as zero.
func groupChecksum(seed, group uint32, d []byte) uint16 {
	sum := checksum(checksum32(seed, group), d[:gdChecksum])
	sum = checksum(sum, zeroes[:2])
	return uint16(checksum(sum, d[gdChecksum+2:]))
}

func (w *Writer) putLocations(d []byte, g uint32) {
	putBlock(d, gdBlockBitmap, w.layout.blockBitmap(g))
	putBlock(d, gdInodeBitmap, w.layout.inodeBitmap(g))
	putBlock(d, gdInodeTable, w.layout.inodeTable(g))
}

func putBlock(d []byte, at int, block uint64) {
	le.PutUint32(d[at:], uint32(block))
	le.PutUint32(d[at+gdHigh:], uint32(block>>32))
}

// directoriesByGroup counts the directories whose inodes are in each group.
func (w *Writer) directoriesByGroup() map[uint32]int {
	dirs := map[uint32]int{}
	for ino := range w.tree.dirs {
		dirs[(ino-1)/w.layout.inodesPerGroup]++
	}
	return dirs
}

// writeBlockBitmap writes the bitmap of a group, unless nothing but a superblock and descriptors is in it: those the
// kernel marks by itself. The last group always has one, since it may be short. runs are what is used, from this group
// on.
func (w *Writer) writeBlockBitmap(ctx context.Context, d []byte, g uint32, runs []run) (
	free uint32, used bool, err error,
) {
	l, first := &w.layout, w.layout.firstBlock(g)
	end := first + uint64(l.groupBlocks(g))
	free = l.groupBlocks(g) - l.fixed(g)
	flexFirst, _ := l.flex(g)
	used = g == flexFirst || g == l.groups-1 || len(runs) > 0 && runs[0].start < end
	if used {
		bitmap := make([]byte, blockSize)
		setBits(bitmap, 0, uint64(l.fixed(g)))
		for _, r := range runs {
			if r.start >= end {
				break
			}
			from, to := max(r.start, first)-first, min(r.start+r.n, end)-first
			setBits(bitmap, from, to)
			free -= uint32(to - from)
		}
		setBits(bitmap, uint64(l.groupBlocks(g)), blocksPerGroup) // what is past the end is never free
		putBitmapSum(d, gdBlockBitmapSum, gdBlocksSumHigh, checksum(w.seed, bitmap))
		if err := w.out.write(ctx, l.blockBitmap(g), bitmap); err != nil {
			return 0, false, err
		}
	}
	le.PutUint16(d[gdFreeBlocks:], uint16(free))
	le.PutUint16(d[gdFreeBlocks+gdHigh:], uint16(free>>16))
	return free, used, nil
}

// writeInodeBitmap writes the bitmap of a group that has inodes in use. Inodes are given out in order, so that the used
// ones are at the start.
func (w *Writer) writeInodeBitmap(ctx context.Context, d []byte, g uint32) (free uint32, err error) {
	perGroup := w.layout.inodesPerGroup
	before := g * perGroup
	inUse := min(max(w.tree.inodes.n-1, before)-before, perGroup)
	free = perGroup - inUse
	for _, at := range []int{gdFreeInodes, gdUnusedInodes} {
		le.PutUint16(d[at:], uint16(free))
		le.PutUint16(d[at+gdHigh:], uint16(free>>16))
	}
	if inUse == 0 {
		return free, nil
	}
	bitmap := make([]byte, blockSize)
	setBits(bitmap, 0, uint64(inUse))
	setBits(bitmap, uint64(perGroup), maxInodesGroup) // what has no inode is never free
	putBitmapSum(d, gdInodeBitmapSum, gdInodesSumHigh, checksum(w.seed, bitmap[:perGroup/8]))
	return free, w.out.write(ctx, w.layout.inodeBitmap(g), bitmap)
}

func putBitmapSum(d []byte, low, high int, sum uint32) {
	le.PutUint16(d[low:], uint16(sum))
	le.PutUint16(d[high:], uint16(sum>>16))
}

// setBits sets the bits from from to to, the latter excluded.
func setBits(bitmap []byte, from, to uint64) {
	for ; from < to && from%8 != 0; from++ {
		bitmap[from/8] |= 1 << (from % 8)
	}
	for ; from+8 <= to; from += 8 {
		bitmap[from/8] = 0xFF
	}
	for ; from < to; from++ {
		bitmap[from/8] |= 1 << (from % 8)
	}
}

// writeTables writes the used part of the inode tables.
func (w *Writer) writeTables(ctx context.Context) error {
	block := make([]byte, blockSize)
	for first := uint32(1); first < w.tree.inodes.n; first += inodesPerBlock {
		clear(block)
		for i := range min(inodesPerBlock, w.tree.inodes.n-first) {
			n := w.tree.inodes.at(first + i)
			if n.mode == 0 {
				continue // a reserved number that nothing uses
			}
			local, acl := w.xattrs.attributesOf(n)
			n.encode(block[i*inodeSize:][:inodeSize], first+i, w.seed, local, acl)
		}
		group, at := (first-1)/w.layout.inodesPerGroup, (first-1)%w.layout.inodesPerGroup
		if err := w.out.write(ctx, w.layout.inodeTable(group)+uint64(at/inodesPerBlock), block); err != nil {
			return err
		}
	}
	return nil
}

// writeSupers writes all superblocks with their descriptors, the first one last: a device on which writing stopped
// before is not taken for a file system.
func (w *Writer) writeSupers(ctx context.Context, desc []byte, sum totals) error {
	groups := append(w.layout.backups(), 0)
	for _, g := range groups {
		if err := w.out.write(ctx, w.layout.firstBlock(g)+1, desc); err != nil {
			return err
		}
		if err := w.out.flush(ctx); err != nil {
			return err
		}
		block, at := make([]byte, blockSize), 0
		if g == 0 {
			at = superOffset
		}
		copy(block[at:], w.encodeSuper(g, sum.freeBlocks, sum.freeInodes))
		if err := w.out.write(ctx, w.layout.firstBlock(g), block); err != nil {
			return err
		}
	}
	return w.out.flush(ctx)
}
