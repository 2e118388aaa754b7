package ext4

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

// Inode numbers with a meaning.
const (
	rootInode    = 2
	resizeInode  = 7
	journalInode = 8
	firstInode   = 11 // that is free; lost+found has it
)

// Byte offsets of an inode's fields.
const (
	inMode       = 0x00
	inUID        = 0x02
	inSize       = 0x04
	inAccessed   = 0x08
	inChanged    = 0x0C
	inModified   = 0x10
	inDeleted    = 0x14
	inGID        = 0x18
	inLinks      = 0x1A
	inSectors    = 0x1C
	inFlags      = 0x20
	inBlock      = 0x28
	inGeneration = 0x64
	inACL        = 0x68
	inSizeHigh   = 0x6C
	inSectorsHi  = 0x74
	inACLHigh    = 0x76
	inUIDHigh    = 0x78
	inGIDHigh    = 0x7A
	inChecksum   = 0x7C
	inExtraSize  = 0x80
	inChecksumHi = 0x82
	inChangedX   = 0x84
	inModifiedX  = 0x88
	inAccessedX  = 0x8C
	inCreated    = 0x90
	inCreatedX   = 0x94
	inXattrs     = 0xA0 // after the 32 bytes of extra fields

	extraSize = inXattrs - inExtraSize
	blockArea = 60 // bytes of inBlock
)

// Flags of an inode.
const (
	flagIndex   = 0x1000
	flagExtents = 0x80000
)

// stamp is a time as an inode keeps it: the low 32 bits of the seconds, then nanoseconds and two more bits of seconds.
type stamp struct{ low, extra uint32 }

func newStamp(t time.Time) stamp {
	const first, last = -1 << 31, 3<<32 + 1<<31 - 1
	sec, ns := t.Unix(), uint32(t.Nanosecond())
	if sec < first || sec > last {
		sec, ns = min(max(sec, first), last), 0
	}
	epoch := uint32((sec - int64(int32(sec))) >> 32)
	return stamp{uint32(sec), ns<<2 | epoch}
}

func (s stamp) encode(b []byte, low, extra int) {
	le.PutUint32(b[low:], s.low)
	le.PutUint32(b[extra:], s.extra)
}

// inode is what is kept in memory of an inode until the tables are written.
type inode struct {
	mode                        uint16
	xattrs                      uint32 // number of a set in xattrTable, from 1; 0 is none
	uid, gid                    uint32
	links                       uint32 // of a directory: how many directories are in it
	flags                       uint32
	size                        int64
	sectors                     uint64 // of 512 bytes: data, extent tree and xattr block
	accessed, modified, changed stamp
	block                       [blockArea]byte
}

func (n *inode) is(kind uint32) bool { return uint32(n.mode)&unix.S_IFMT == kind }

// storedLinks is the count on disk: a directory has its own two names and one in each directory below it, and from
// 65,000 on the number 1, which means many.
func (n *inode) storedLinks() uint16 {
	if !n.is(unix.S_IFDIR) {
		return uint16(n.links)
	}
	if n.links+2 >= maxLinks {
		return 1
	}
	return uint16(n.links + 2)
}

// encode fills b, inodeSize zero bytes. local is the part of the extended attributes that lives in the inode, acl the
// block of the rest.
func (n *inode) encode(b []byte, ino, seed uint32, local []byte, acl uint64) {
	le.PutUint16(b[inMode:], n.mode)
	le.PutUint16(b[inUID:], uint16(n.uid))
	le.PutUint16(b[inUIDHigh:], uint16(n.uid>>16))
	le.PutUint16(b[inGID:], uint16(n.gid))
	le.PutUint16(b[inGIDHigh:], uint16(n.gid>>16))
	le.PutUint32(b[inSize:], uint32(n.size))
	le.PutUint32(b[inSizeHigh:], uint32(n.size>>32))
	le.PutUint16(b[inLinks:], n.storedLinks())
	sectors := n.sectors
	if acl != 0 {
		sectors += blockSize / 512
	}
	le.PutUint32(b[inSectors:], uint32(sectors))
	le.PutUint16(b[inSectorsHi:], uint16(sectors>>32))
	le.PutUint32(b[inFlags:], n.flags)
	copy(b[inBlock:], n.block[:])
	le.PutUint32(b[inACL:], uint32(acl))
	le.PutUint16(b[inACLHigh:], uint16(acl>>32))
	le.PutUint16(b[inExtraSize:], extraSize)
	n.accessed.encode(b, inAccessed, inAccessedX)
	n.modified.encode(b, inModified, inModifiedX)
	n.changed.encode(b, inChanged, inChangedX)
	n.changed.encode(b, inCreated, inCreatedX)
	copy(b[inXattrs:], local)
	setInodeChecksum(b, inodeSeed(seed, ino))
}

// setInodeChecksum computes the checksum of an encoded inode, whose own two fields count as zeroes.
func setInodeChecksum(b []byte, seed uint32) {
	le.PutUint16(b[inChecksum:], 0)
	le.PutUint16(b[inChecksumHi:], 0)
	sum := checksum(seed, b)
	le.PutUint16(b[inChecksum:], uint16(sum))
	le.PutUint16(b[inChecksumHi:], uint16(sum>>16))
}

// setDevice stores a device number: the old form where it fits, else the new one.
func (n *inode) setDevice(major, minor uint32) {
	if major < 256 && minor < 256 {
		le.PutUint32(n.block[0:], major<<8|minor)
		return
	}
	le.PutUint32(n.block[4:], minor&0xFF|major<<8|minor&^0xFF<<12)
}
