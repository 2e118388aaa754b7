package ext4

import "fmt"

const (
	blockSize      = 4096
	blocksPerGroup = 8 * blockSize // as many as one block of bitmap has bits
	inodeSize      = 256
	inodesPerBlock = blockSize / inodeSize
	descSize       = 64
	descPerBlock   = blockSize / descSize
	pointers       = blockSize / 4 // 32-bit block numbers in an indirect block
	maxInodesGroup = 8 * blockSize

	bytesPerInode = 16 << 10 // an inode for so many bytes, unless Options.Inodes asks for more
)

// Limits of Options.Size.
const (
	// MinSize is the smallest device that takes a file system: below it there is no room for a journal.
	MinSize = 16 << 20
	// MaxSize is the largest: 2³² blocks.
	MaxSize = 16 << 40
	// SizeUnit divides the size of every device that takes a file system.
	SizeUnit = 1 << 20
)

// layout says where the fixed parts of a file system are. It follows from the size and the number of inodes alone, so
// that data can be written before anything is known about what comes after it.
//
// The fixed parts of each group are at its start: in some groups a superblock with descriptors (front), and in the first
// group of each flex group the bitmaps and inode tables of all its groups. What follows is one run of free blocks.
type layout struct {
	blocks         uint64 // of the file system; the device may have a few more
	groups         uint32
	inodesPerGroup uint32
	tableBlocks    uint32 // of one group's inode table
	descBlocks     uint32 // of the group descriptors
	reserved       uint32 // blocks after the descriptors that they can grow into
	flexLog        uint32 // log2 of the groups whose tables are together
	journal        uint32 // blocks of the journal
}

func newLayout(size, inodes int64) (layout, error) {
	if size < MinSize || size > MaxSize || size%SizeUnit != 0 {
		return layout{}, fmt.Errorf("ext4: %w", invalid("size %d: must be a multiple of %d from %d to %d",
			size, SizeUnit, MinSize, MaxSize))
	}
	l := layout{blocks: uint64(size / blockSize), journal: journalBlocks(size)}
	l.groups = uint32((l.blocks + blocksPerGroup - 1) / blocksPerGroup)
	if err := l.setInodes(size, inodes); err != nil {
		return layout{}, err
	}
	l.descBlocks = (l.groups + descPerBlock - 1) / descPerBlock
	l.reserved = l.reserve()
	l.dropTail()
	return l, nil
}

// setInodes fixes the size of the inode tables: the usual ratio, or what was asked for and an eighth to spare.
func (l *layout) setInodes(size, inodes int64) error {
	if inodes < 0 || inodes > 1<<32 {
		return fmt.Errorf("ext4: %w", invalid("inodes %d: must be from 0 to 2³²", inodes))
	}
	want := uint64(max(size/bytesPerInode, inodes+inodes/8+2*firstInode))
	perGroup := (want + uint64(l.groups) - 1) / uint64(l.groups)
	perGroup = (perGroup + inodesPerBlock - 1) / inodesPerBlock * inodesPerBlock
	if perGroup > maxInodesGroup || perGroup*uint64(l.groups) > 1<<32-1 {
		return fmt.Errorf("%w: %d inodes in %d bytes, at most %d fit", ErrNoSpace, inodes, size,
			uint64(l.groups)*maxInodesGroup)
	}
	l.inodesPerGroup = uint32(perGroup)
	l.tableBlocks = l.inodesPerGroup / inodesPerBlock
	// All tables of a flex group must fit into its first group.
	l.flexLog = 4
	for l.tableBlocks<<l.flexLog > blocksPerGroup/2 {
		l.flexLog--
	}
	return nil
}

// reserve is the number of blocks kept for more descriptors: enough for 16 times the size, and for 64 GiB at least. The
// kernel can grow a file system further, at the price of a scattered descriptor table.
func (l *layout) reserve() uint32 {
	limit := uint32(MaxSize/blockSize/blocksPerGroup/descPerBlock) - l.descBlocks
	return min(max(15*l.descBlocks, 7), limit, pointers)
}

// dropTail leaves out a last group that has no room for its own fixed parts and a few blocks more.
func (l *layout) dropTail() {
	last := l.groups - 1
	rest := l.groupBlocks(last)
	if rest == blocksPerGroup || rest >= l.fixed(last)+64 {
		return
	}
	l.blocks -= uint64(rest)
	l.groups--
	l.descBlocks = (l.groups + descPerBlock - 1) / descPerBlock
}

func (l *layout) inodes() uint32 { return l.groups * l.inodesPerGroup }

func (l *layout) firstBlock(group uint32) uint64 { return uint64(group) * blocksPerGroup }

func (l *layout) groupBlocks(group uint32) uint32 {
	return uint32(min(l.blocks-l.firstBlock(group), blocksPerGroup))
}

// isSparse says whether a group starts with a superblock: 0, 1 and the powers of 3, 5 and 7.
func isSparse(group uint64) bool {
	if group <= 1 {
		return true
	}
	for _, base := range []uint64{3, 5, 7} {
		rest := group
		for rest%base == 0 {
			rest /= base
		}
		if rest == 1 {
			return true
		}
	}
	return false
}

// backups lists the groups with a copy of the superblock.
func (l *layout) backups() (groups []uint32) {
	for g := uint32(1); g < l.groups; g++ {
		if isSparse(uint64(g)) {
			groups = append(groups, g)
		}
	}
	return groups
}

// front is the number of blocks of a group's superblock, its descriptors and the room for more of them.
func (l *layout) front(group uint32) uint32 {
	if !isSparse(uint64(group)) {
		return 0
	}
	return 1 + l.descBlocks + l.reserved
}

// flex returns the flex group of a group: its first group and how many it has.
func (l *layout) flex(group uint32) (first, n uint32) {
	first = group >> l.flexLog << l.flexLog
	return first, min(1<<l.flexLog, l.groups-first)
}

// fixed is the number of blocks at a group's start that are not for data.
func (l *layout) fixed(group uint32) uint32 {
	first, n := l.flex(group)
	if group != first {
		return l.front(group)
	}
	return l.front(group) + n*(2+l.tableBlocks)
}

func (l *layout) blockBitmap(group uint32) uint64 {
	first, _ := l.flex(group)
	return l.firstBlock(first) + uint64(l.front(first)+group-first)
}

func (l *layout) inodeBitmap(group uint32) uint64 {
	_, n := l.flex(group)
	return l.blockBitmap(group) + uint64(n)
}

func (l *layout) inodeTable(group uint32) uint64 {
	first, n := l.flex(group)
	return l.firstBlock(first) + uint64(l.front(first)+2*n) + uint64(group-first)*uint64(l.tableBlocks)
}

// journalBlocks is the size of the journal. It is written round and round, so that its size is a floor of what a busy
// volume publishes at each pause; more than 64 MiB would buy a single guest little.
func journalBlocks(size int64) uint32 {
	switch {
	case size < 128<<20:
		return 4 << 20 / blockSize
	case size < 1<<30:
		return 16 << 20 / blockSize
	case size < 8<<30:
		return 32 << 20 / blockSize
	default:
		return 64 << 20 / blockSize
	}
}
