package ext4

import "golang.org/x/sys/unix"

// Tags of ACL entries.
const (
	aclUserObject  = 0x01
	aclUser        = 0x02
	aclGroupObject = 0x04
	aclGroup       = 0x08
	aclMask        = 0x10
	aclOther       = 0x20
)

const (
	aclAttrVersion = 2 // of the extended attribute: 4 bytes, then 8 per entry
	aclDiskVersion = 1 // of ext4: 4 bytes, then 8 per entry with an id and 4 per entry without
)

// aclEntry is one line of an ACL.
type aclEntry struct {
	tag, perm uint16
	id        uint32
}

func (e aclEntry) named() bool { return e.tag == aclUser || e.tag == aclGroup }

// parseACL reads the value of an extended attribute. It asks for what the kernel does: known tags in ascending order, one
// each of owner, group and others, and a mask if anyone is named.
func parseACL(value string) (list []aclEntry, err error) {
	p := []byte(value)
	if len(p) < 4 || len(p)%8 != 4 || le.Uint32(p) != aclAttrVersion {
		return nil, invalid("ACL of %d bytes: must have version %d and entries of 8 bytes", len(p), aclAttrVersion)
	}
	seen, last := map[uint16]int{}, uint16(0)
	for p = p[4:]; len(p) > 0; p = p[8:] {
		e := aclEntry{le.Uint16(p), le.Uint16(p[2:]), le.Uint32(p[4:])}
		switch e.tag {
		case aclUserObject, aclUser, aclGroupObject, aclGroup, aclMask, aclOther:
		default:
			return nil, invalid("ACL: tag %#x is not known", e.tag)
		}
		if e.tag < last || e.perm > 7 {
			return nil, invalid("ACL: tag %#x with permissions %#o is out of order or range", e.tag, e.perm)
		}
		seen[e.tag]++
		last, list = e.tag, append(list, e)
	}
	named := seen[aclUser]+seen[aclGroup] > 0
	if len(list) > 0 && (seen[aclUserObject] != 1 || seen[aclGroupObject] != 1 || seen[aclOther] != 1 ||
		seen[aclMask] > 1 || named && seen[aclMask] == 0) {
		return nil, invalid("ACL: must have owner, group and others once, and a mask if it names anyone")
	}
	return list, nil
}

// accessACL is the value on disk of an access ACL for an inode of this mode. The owner's, the others' and the mask's
// permissions are those of the mode, which a chmod makes so. An ACL that says no more than the mode is not kept.
func accessACL(value string, mode uint32) ([]byte, error) {
	list, err := parseACL(value)
	if err != nil || len(list) <= 3 {
		return nil, err
	}
	masked := false
	for i, e := range list {
		switch e.tag {
		case aclUserObject:
			list[i].perm = uint16(mode >> 6 & 7)
		case aclMask:
			list[i].perm, masked = uint16(mode>>3&7), true
		case aclOther:
			list[i].perm = uint16(mode & 7)
		}
	}
	for i := range list {
		if list[i].tag == aclGroupObject && !masked {
			list[i].perm = uint16(mode >> 3 & 7)
		}
	}
	return encodeACL(list), nil
}

// defaultACL is the value on disk of a directory's default ACL.
func defaultACL(value string, mode uint32) ([]byte, error) {
	if mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, invalid("default ACL: only directories have one")
	}
	list, err := parseACL(value)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return encodeACL(list), nil
}

func encodeACL(list []aclEntry) []byte {
	b := le.AppendUint32(nil, aclDiskVersion)
	for _, e := range list {
		b = le.AppendUint16(b, e.tag)
		b = le.AppendUint16(b, e.perm)
		if e.named() {
			b = le.AppendUint32(b, e.id)
		}
	}
	return b
}
