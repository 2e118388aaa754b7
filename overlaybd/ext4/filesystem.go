package ext4

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// filesystem is what a superblock says of an existing file system, after checks that make the numbers safe to use. Its
// blocks may have another size than those that a Writer makes.
type filesystem struct {
	r          io.ReaderAt
	super      []byte
	block      int64 // bytes
	first      uint64
	blocks     uint64
	groups     uint64
	groupSize  uint64 // blocks
	perGroup   uint64 // inodes
	inodeBytes int64
	descBytes  int64
	incompat   uint32
	checksums  bool
	seed       uint32
}

// Incompatible features that do not change what a journal is. Those about directories, names and content do not matter.
const replayable = incompatFileType | incompatRecover | incompatMetaGroups | incompatExtents | incompat64Bit |
	incompatFlexGroups | incompatValues | incompatSeed |
	0x100 | // multiple mount protection
	0x1000 | 0x4000 | 0x8000 | 0x10000 | 0x20000 // directory data, large directories, inline data, encryption, case folding

// open reads and checks the superblock of a device of the given size.
func open(r io.ReaderAt, size int64) (*filesystem, error) {
	f := &filesystem{r: r, super: make([]byte, superSize)}
	if size < superOffset+superSize {
		return nil, unsupported("no file system in %d bytes", size)
	}
	if err := readFull(r, f.super, superOffset); err != nil {
		return nil, fmt.Errorf("ext4: read the superblock: %w", err)
	}
	if le.Uint16(f.super[sbMagic:]) != superMagic {
		return nil, unsupported("the device has no ext4 file system")
	}
	f.incompat = le.Uint32(f.super[sbIncompat:])
	if unknown := f.incompat &^ replayable; unknown != 0 {
		return nil, unsupported("incompatible features %#x of the file system", unknown)
	}
	f.checksums = le.Uint32(f.super[sbROCompat:])&roCompatChecksums != 0
	if f.checksums {
		if f.super[sbChecksumType] != checksumCRC32C {
			return nil, unsupported("checksum type %d of the file system", f.super[sbChecksumType])
		}
		if checksum(checksumStart, f.super[:sbChecksum]) != le.Uint32(f.super[sbChecksum:]) {
			return nil, corrupt("superblock: wrong checksum")
		}
	}
	f.seed = checksum(checksumStart, f.super[sbUUID:sbUUID+16])
	if f.incompat&incompatSeed != 0 {
		f.seed = le.Uint32(f.super[sbChecksumSeed:])
	}
	return f, f.geometry(size)
}

// geometry takes the sizes from the superblock. After it no product of them overflows, and no loop over groups or blocks
// is longer than the device allows.
func (f *filesystem) geometry(size int64) error {
	log := le.Uint32(f.super[sbLogBlockSize:])
	if log > 6 {
		return corrupt("superblock: log of block size %d, at most 6 allowed", log)
	}
	f.block = 1024 << log
	f.blocks = uint64(le.Uint32(f.super[sbBlocks:]))
	if f.incompat&incompat64Bit != 0 {
		f.blocks |= uint64(le.Uint32(f.super[sbBlocksHigh:])) << 32
	}
	f.first = uint64(le.Uint32(f.super[sbFirstBlock:]))
	if f.blocks > uint64(size/f.block) || f.first >= f.blocks || f.first > 1 {
		return corrupt("superblock: %d blocks of %d bytes from %d on, in a device of %d bytes",
			f.blocks, f.block, f.first, size)
	}
	f.groupSize = uint64(le.Uint32(f.super[sbBlocksPerGroup:]))
	f.perGroup = uint64(le.Uint32(f.super[sbInodesPerGroup:]))
	if f.groupSize < 256 || f.groupSize%8 != 0 || f.perGroup == 0 || f.perGroup > uint64(f.block)*8 {
		return corrupt("superblock: %d blocks and %d inodes per group", f.groupSize, f.perGroup)
	}
	if clusters := le.Uint32(f.super[sbROCompat:])&roCompatClusters != 0; !clusters && f.groupSize > uint64(f.block)*8 {
		return corrupt("superblock: %d blocks per group, more than a bitmap has bits", f.groupSize)
	}
	f.groups = (f.blocks - f.first + f.groupSize - 1) / f.groupSize
	if f.groups*f.perGroup != uint64(le.Uint32(f.super[sbInodes:])) {
		return corrupt("superblock: %d inodes, but %d groups of %d", le.Uint32(f.super[sbInodes:]), f.groups, f.perGroup)
	}
	f.inodeBytes, f.descBytes = 128, 32
	if le.Uint32(f.super[sbRevision:]) >= dynamicRevision {
		f.inodeBytes = int64(le.Uint16(f.super[sbInodeSize:]))
	}
	if f.incompat&incompat64Bit != 0 {
		f.descBytes = int64(le.Uint16(f.super[sbDescSize:]))
	}
	if !powerOfTwo(f.inodeBytes, 128, f.block) || !powerOfTwo(f.descBytes, 32, 1024) ||
		f.incompat&incompat64Bit != 0 && f.descBytes < 64 {
		return corrupt("superblock: inodes of %d and descriptors of %d bytes", f.inodeBytes, f.descBytes)
	}
	return nil
}

func powerOfTwo(v, low, high int64) bool {
	return v >= low && v <= high && bits.OnesCount64(uint64(v)) == 1
}

// readBlock reads one block of the file system.
func (f *filesystem) readBlock(p []byte, block uint64) error {
	if block >= f.blocks {
		return corrupt("block %d of a file system of %d", block, f.blocks)
	}
	if err := readFull(f.r, p[:f.block], int64(block)*f.block); err != nil {
		return fmt.Errorf("ext4: read block %d: %w", block, err)
	}
	return nil
}

// readFull fills p; that the device ends with it is no error.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// hasSuper says whether a group starts with a superblock, for the groups whose descriptors are beside it.
func (f *filesystem) hasSuper(group uint64) bool {
	compat, ro := le.Uint32(f.super[sbCompat:]), le.Uint32(f.super[sbROCompat:])
	switch {
	case group == 0:
		return true
	case compat&compatSparseSuper2 != 0:
		return group == uint64(le.Uint32(f.super[sbBackupGroups:])) || group == uint64(le.Uint32(f.super[sbBackupGroups+4:]))
	case ro&roCompatSparseSuper == 0:
		return true
	}
	return isSparse(group)
}

// descBlock is the block with the index-th part of the descriptors.
func (f *filesystem) descBlock(index uint64) uint64 {
	if f.incompat&incompatMetaGroups == 0 || index < uint64(le.Uint32(f.super[sbFirstMetaGroup:])) {
		return f.first + 1 + index
	}
	group := index * uint64(f.block/f.descBytes)
	block := f.first + group*f.groupSize
	if f.hasSuper(group) {
		block++
	}
	return block
}

// eachDesc calls fn with the descriptors of all groups, in order.
func (f *filesystem) eachDesc(fn func(group uint64, desc []byte) error) error {
	p, per := make([]byte, f.block), uint64(f.block/f.descBytes)
	for group := uint64(0); group < f.groups; group++ {
		if group%per == 0 {
			if err := f.readBlock(p, f.descBlock(group/per)); err != nil {
				return err
			}
		}
		if err := fn(group, p[int64(group%per)*f.descBytes:][:f.descBytes]); err != nil {
			return err
		}
	}
	return nil
}

// desc returns the descriptor of one group.
func (f *filesystem) desc(group uint64) ([]byte, error) {
	p, per := make([]byte, f.block), uint64(f.block/f.descBytes)
	if err := f.readBlock(p, f.descBlock(group/per)); err != nil {
		return nil, err
	}
	return p[int64(group%per)*f.descBytes:][:f.descBytes], nil
}

// inode returns the bytes of an inode, checked.
func (f *filesystem) inode(ino uint32) ([]byte, error) {
	block, at, err := f.inodePlace(ino)
	if err != nil {
		return nil, err
	}
	p := make([]byte, f.block)
	if err := f.readBlock(p, block); err != nil {
		return nil, err
	}
	p = p[at:][:f.inodeBytes]
	if f.checksums && !f.inodeSumOK(p, ino) {
		return nil, corrupt("inode %d: wrong checksum", ino)
	}
	return p, nil
}

// inodePlace is the block of an inode table that has an inode, and the inode's offset in it.
func (f *filesystem) inodePlace(ino uint32) (block uint64, at int64, err error) {
	if ino == 0 || uint64(ino) > f.groups*f.perGroup {
		return 0, 0, corrupt("inode %d: not in the file system", ino)
	}
	desc, err := f.desc(uint64(ino-1) / f.perGroup)
	if err != nil {
		return 0, 0, err
	}
	off := int64(uint64(ino-1)%f.perGroup) * f.inodeBytes
	return split(desc, gdInodeTable) + uint64(off/f.block), off % f.block, nil
}

// split reads a block number of a descriptor, whose high half is there only in long descriptors.
func split(desc []byte, at int) uint64 {
	v := uint64(le.Uint32(desc[at:]))
	if len(desc) > at+gdHigh {
		v |= uint64(le.Uint32(desc[at+gdHigh:])) << 32
	}
	return v
}

func (f *filesystem) seedOf(p []byte, ino uint32) uint32 {
	return checksum(checksum32(f.seed, ino), p[inGeneration:inGeneration+4])
}

func (f *filesystem) inodeSumOK(p []byte, ino uint32) bool {
	q := append([]byte(nil), p...)
	f.setInodeSum(q, ino)
	return string(p) == string(q)
}

// setInodeSum computes an inode's checksum, whose high half is there only in large inodes.
func (f *filesystem) setInodeSum(p []byte, ino uint32) {
	le.PutUint16(p[inChecksum:], 0)
	long := f.inodeBytes > 128 && le.Uint16(p[inExtraSize:]) >= 4
	if long {
		le.PutUint16(p[inChecksumHi:], 0)
	}
	sum := checksum(f.seedOf(p, ino), p)
	le.PutUint16(p[inChecksum:], uint16(sum))
	if long {
		le.PutUint16(p[inChecksumHi:], uint16(sum>>16))
	}
}
