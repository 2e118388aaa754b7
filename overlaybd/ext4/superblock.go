package ext4

const (
	superOffset = 1024 // of the first superblock on the device; the others are at the start of their group
	superSize   = 1024
	superMagic  = 0xEF53
)

// Byte offsets of a superblock's fields.
const (
	sbInodes         = 0x00
	sbBlocks         = 0x04
	sbFreeBlocks     = 0x0C
	sbFreeInodes     = 0x10
	sbFirstBlock     = 0x14
	sbLogBlockSize   = 0x18
	sbLogCluster     = 0x1C
	sbBlocksPerGroup = 0x20
	sbClustersGroup  = 0x24
	sbInodesPerGroup = 0x28
	sbWritten        = 0x30
	sbMaxMounts      = 0x36
	sbMagic          = 0x38
	sbState          = 0x3A
	sbErrors         = 0x3C
	sbChecked        = 0x40
	sbRevision       = 0x4C
	sbFirstInode     = 0x54
	sbInodeSize      = 0x58
	sbGroupNumber    = 0x5A
	sbCompat         = 0x5C
	sbIncompat       = 0x60
	sbROCompat       = 0x64
	sbUUID           = 0x68
	sbLabel          = 0x78
	sbReserved       = 0xCE
	sbJournalInode   = 0xE0
	sbLastOrphan     = 0xE8
	sbHashSeed       = 0xEC
	sbHashVersion    = 0xFC
	sbJournalBackup  = 0xFD
	sbDescSize       = 0xFE
	sbMountOptions   = 0x100
	sbFirstMetaGroup = 0x104
	sbMade           = 0x108
	sbJournalBlocks  = 0x10C
	sbBlocksHigh     = 0x150
	sbFreeBlocksHigh = 0x158
	sbMinExtra       = 0x15C
	sbWantExtra      = 0x15E
	sbFlags          = 0x160
	sbLogFlex        = 0x174
	sbChecksumType   = 0x175
	sbBackupGroups   = 0x24C
	sbChecksumSeed   = 0x270
	sbChecksum       = 0x3FC
)

// Features.
const (
	compatJournal  = 0x4
	compatXattr    = 0x8
	compatResize   = 0x10
	compatDirIndex = 0x20

	compatSparseSuper2 = 0x200

	incompatFileType   = 0x2
	incompatRecover    = 0x4 // the journal has transactions that are not in place yet
	incompatJournalDev = 0x8
	incompatMetaGroups = 0x10
	incompatExtents    = 0x40
	incompat64Bit      = 0x80
	incompatFlexGroups = 0x200
	incompatValues     = 0x400  // large values of extended attributes are in inodes of their own
	incompatSeed       = 0x2000 // the seed of checksums is stored and does not follow from the UUID

	roCompatSparseSuper = 0x1
	roCompatLargeFile   = 0x2
	roCompatHugeFile    = 0x8
	roCompatGroupSum    = 0x10 // the older checksum of group descriptors
	roCompatManyLinks   = 0x20
	roCompatExtraSize   = 0x40
	roCompatQuota       = 0x100
	roCompatClusters    = 0x200 // blocks are allocated in clusters
	roCompatChecksums   = 0x400
)

const (
	stateClean       = 1
	stateErrors      = 2
	unsignedHash     = 0x2       // in sbFlags
	defaultXattrACL  = 0x4 | 0x8 // in sbMountOptions: user_xattr, acl
	continueOnErrors = 1
	checksumCRC32C   = 1
	neverByMounts    = 0xFFFF // no check after a number of mounts
	dynamicRevision  = 1
	journalCopied    = 1
)

// encodeSuper returns the superblock of one group.
func (w *Writer) encodeSuper(group uint32, freeBlocks uint64, freeInodes uint32) []byte {
	b, l := make([]byte, superSize), &w.layout
	le.PutUint32(b[sbInodes:], l.inodes())
	le.PutUint32(b[sbBlocks:], uint32(l.blocks))
	le.PutUint32(b[sbBlocksHigh:], uint32(l.blocks>>32))
	le.PutUint32(b[sbFreeBlocks:], uint32(freeBlocks))
	le.PutUint32(b[sbFreeBlocksHigh:], uint32(freeBlocks>>32))
	le.PutUint32(b[sbFreeInodes:], freeInodes)
	le.PutUint32(b[sbLogBlockSize:], 2)
	le.PutUint32(b[sbLogCluster:], 2)
	le.PutUint32(b[sbBlocksPerGroup:], blocksPerGroup)
	le.PutUint32(b[sbClustersGroup:], blocksPerGroup)
	le.PutUint32(b[sbInodesPerGroup:], l.inodesPerGroup)
	le.PutUint32(b[sbWritten:], w.time.low)
	le.PutUint32(b[sbChecked:], w.time.low)
	le.PutUint32(b[sbMade:], w.time.low)
	le.PutUint16(b[sbMaxMounts:], neverByMounts)
	le.PutUint16(b[sbMagic:], superMagic)
	le.PutUint16(b[sbState:], stateClean)
	le.PutUint16(b[sbErrors:], continueOnErrors)
	le.PutUint32(b[sbRevision:], dynamicRevision)
	le.PutUint32(b[sbFirstInode:], firstInode)
	le.PutUint16(b[sbInodeSize:], inodeSize)
	le.PutUint16(b[sbGroupNumber:], uint16(group))
	w.putFeatures(b)
	copy(b[sbUUID:], w.options.UUID[:])
	copy(b[sbLabel:sbLabel+maxLabel], w.options.Label)
	le.PutUint16(b[sbReserved:], uint16(l.reserved))
	w.putJournalBackup(b)
	copy(b[sbHashSeed:], w.options.HashSeed[:])
	b[sbHashVersion] = indexHalfMD4
	le.PutUint16(b[sbDescSize:], descSize)
	le.PutUint32(b[sbMountOptions:], defaultXattrACL)
	le.PutUint16(b[sbMinExtra:], extraSize)
	le.PutUint16(b[sbWantExtra:], extraSize)
	le.PutUint32(b[sbFlags:], unsignedHash)
	b[sbLogFlex] = byte(l.flexLog)
	b[sbChecksumType] = checksumCRC32C
	setSuperChecksum(b)
	return b
}

func (w *Writer) putFeatures(b []byte) {
	compat := uint32(compatJournal | compatXattr | compatDirIndex)
	if w.layout.reserved > 0 {
		compat |= compatResize
	}
	le.PutUint32(b[sbCompat:], compat)
	le.PutUint32(b[sbIncompat:], incompatFileType|incompatExtents|incompat64Bit|incompatFlexGroups)
	le.PutUint32(b[sbROCompat:], roCompatSparseSuper|roCompatLargeFile|roCompatHugeFile|roCompatManyLinks|
		roCompatExtraSize|roCompatChecksums)
}

// putJournalBackup copies where the journal is, so that the checker finds it when the journal's inode is damaged.
func (w *Writer) putJournalBackup(b []byte) {
	n := w.tree.inodes.at(journalInode)
	le.PutUint32(b[sbJournalInode:], journalInode)
	b[sbJournalBackup] = journalCopied
	copy(b[sbJournalBlocks:], n.block[:])
	le.PutUint32(b[sbJournalBlocks+blockArea:], uint32(n.size>>32))
	le.PutUint32(b[sbJournalBlocks+blockArea+4:], uint32(n.size))
}

func setSuperChecksum(b []byte) {
	le.PutUint32(b[sbChecksum:], checksum(checksumStart, b[:sbChecksum]))
}
