package ext4

import "encoding/binary"

var be = binary.BigEndian // of everything in a journal

const journalMagic = 0xC03B3998

// Kinds of journal blocks.
const (
	kindDescriptor = 1
	kindCommit     = 2
	kindSuperV1    = 3
	kindSuperV2    = 4
	kindRevoke     = 5
)

// Byte offsets of the header that all but copied blocks have.
const (
	jhMagic     = 0
	jhKind      = 4
	jhSequence  = 8
	jhSize      = 12
	jcChecksum  = 16 // of a commit block
	jcSeconds   = 48
	jcNanos     = 56
	jrUsed      = 12 // of a revoke block: bytes in use
	jrEntriesAt = 16
)

// Byte offsets of the journal's superblock.
const (
	jsBlockSize    = 0x0C
	jsBlocks       = 0x10
	jsFirst        = 0x14
	jsSequence     = 0x18
	jsStart        = 0x1C // first block of the log; 0: it is empty
	jsErrno        = 0x20
	jsCompat       = 0x24
	jsIncompat     = 0x28
	jsROCompat     = 0x2C
	jsUUID         = 0x30
	jsUsers        = 0x40
	jsChecksumType = 0x50
	jsFastBlocks   = 0x54
	jsHead         = 0x58
	jsChecksum     = 0xFC
	jsSize         = 1024
)

// Features of a journal.
const (
	journalSums       = 0x1 // compatible: one checksum for each transaction
	journalRevokes    = 0x1
	journal64Bit      = 0x2
	journalAsync      = 0x4
	journalSumsV2     = 0x8
	journalSumsV3     = 0x10
	journalFastCommit = 0x20

	journalKnown = journalRevokes | journal64Bit | journalAsync | journalSumsV2 | journalSumsV3 | journalFastCommit
)

// newJournalSuper is the first block of a journal of so many blocks without transactions. The kernel sets the features
// that it wants when it mounts the file system.
func newJournalSuper(blocks uint32, uuid [16]byte) []byte {
	b := make([]byte, blockSize)
	be.PutUint32(b[jhMagic:], journalMagic)
	be.PutUint32(b[jhKind:], kindSuperV2)
	be.PutUint32(b[jsBlockSize:], blockSize)
	be.PutUint32(b[jsBlocks:], blocks)
	be.PutUint32(b[jsFirst:], 1)
	be.PutUint32(b[jsSequence:], 1)
	copy(b[jsUUID:], uuid[:])
	be.PutUint32(b[jsUsers:], 1)
	return b
}
