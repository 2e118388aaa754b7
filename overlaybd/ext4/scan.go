package ext4

import (
	"context"
	"fmt"
)

// Flags of a tag.
const (
	tagEscaped  = 0x1 // the block began with the journal's magic number, which is stored as zeroes
	tagSameUUID = 0x2 // no UUID follows
	tagLast     = 0x8
)

// logged is a block of the file system as one transaction has it.
type logged struct {
	at       uint32 // block of the journal
	sequence uint32
	sum      uint32
	escaped  bool
}

// scanner goes through a log once. A transaction is one or more descriptor blocks, each followed by the blocks that it
// lists, revoke blocks, and a commit block. It counts only with its commit block.
type scanner struct {
	j        *journal
	sequence uint32 // of the transaction that is expected
	at       uint32 // block of the journal
	passed   uint32 // blocks
	seconds  uint64 // when the last transaction was committed
	nanos    uint32

	latest  map[uint64]logged // by block of the file system
	open    map[uint64]logged // the same, of the transaction that has no commit block yet
	revoked []uint64          // by that transaction
	suspect bool              // that transaction has a descriptor or revoke block with a wrong checksum
}

// scan returns what committed transactions leave of each block, and the sequence number that follows them.
func (j *journal) scan(ctx context.Context) (map[uint64]logged, uint32, error) {
	s := &scanner{j: j, sequence: j.sequence, at: j.start, latest: map[uint64]logged{}, open: map[uint64]logged{}}
	if j.start == 0 {
		return s.latest, s.sequence, nil
	}
	b := make([]byte, j.fs.block)
	for {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if err := j.read(b, s.at); err != nil {
			return nil, 0, err
		}
		if be.Uint32(b[jhMagic:]) != journalMagic || be.Uint32(b[jhSequence:]) != s.sequence {
			return s.latest, s.sequence, nil // the log was not written further
		}
		if err := s.advance(1); err != nil {
			return nil, 0, err
		}
		end, err := s.block(b)
		if err != nil || end {
			return s.latest, s.sequence, err
		}
	}
}

// advance moves on in the log, which has no end: block first follows the last. No log is longer than the journal.
func (s *scanner) advance(n uint32) error {
	size := s.j.end - s.j.first
	if n > size || s.passed+n > size {
		return corrupt("journal: transaction %d is longer than the log", s.sequence)
	}
	s.passed += n
	s.at = s.j.first + (s.at-s.j.first+n)%size
	return nil
}

// block takes one block that belongs to the expected transaction; end says that the log ends before that transaction.
func (s *scanner) block(b []byte) (end bool, err error) {
	switch kind := be.Uint32(b[jhKind:]); kind {
	case kindDescriptor:
		return false, s.descriptor(b)
	case kindRevoke:
		return false, s.revoke(b)
	case kindCommit:
		return s.commit(b)
	default:
		return true, nil
	}
}

// room is the length of a descriptor or revoke block without its checksum. A wrong checksum is no error yet: what is left
// of an older round of the log looks the same. Without a commit block the transaction does not count anyhow.
func (s *scanner) room(b []byte) int {
	if !s.j.sums() {
		return len(b)
	}
	if sumWithout(s.j.seed, b, len(b)-4) != be.Uint32(b[len(b)-4:]) {
		s.suspect = true
	}
	return len(b) - 4
}

// descriptor takes the list of blocks that follow, and passes them.
func (s *scanner) descriptor(b []byte) error {
	b = b[:s.room(b)]
	size := s.j.tagSize()
	for at := jhSize; at+size <= len(b); {
		t, flags := s.j.tag(b[at:])
		at += size
		if flags&tagSameUUID == 0 {
			at += 16
		}
		target := t.target
		s.open[target] = logged{s.at, s.sequence, t.sum, flags&tagEscaped != 0}
		if err := s.advance(1); err != nil {
			return err
		}
		if flags&tagLast != 0 {
			break
		}
	}
	return nil
}

type tag struct {
	target uint64
	sum    uint32
}

// tagSize is the length of a tag without UUID.
func (j *journal) tagSize() int {
	size := 8
	if j.incompat&journalSumsV3 != 0 {
		return 16
	}
	if j.incompat&journal64Bit != 0 {
		size += 4
	}
	if j.incompat&journalSumsV2 != 0 {
		size += 2 // that nothing uses
	}
	return size
}

// tag decodes one tag: target, flags and checksum are in another order in version 3.
func (j *journal) tag(b []byte) (t tag, flags uint32) {
	t.target = uint64(be.Uint32(b))
	if j.incompat&journalSumsV3 != 0 {
		flags, t.sum = be.Uint32(b[4:]), be.Uint32(b[12:])
	} else {
		t.sum, flags = uint32(be.Uint16(b[4:])), uint32(be.Uint16(b[6:]))
	}
	if j.incompat&journal64Bit != 0 {
		t.target |= uint64(be.Uint32(b[8:])) << 32
	}
	return t, flags
}

// revoke takes the list of blocks that were freed: what this and older transactions have of them must not be written, as
// they may hold data now, which is not in the journal.
func (s *scanner) revoke(b []byte) error {
	room, size := s.room(b), 4
	if s.j.incompat&journal64Bit != 0 {
		size = 8
	}
	used := int(be.Uint32(b[jrUsed:]))
	if used < jrEntriesAt || used > room {
		s.suspect = true
		return nil
	}
	for at := jrEntriesAt; at+size <= used; at += size {
		target := uint64(be.Uint32(b[at:]))
		if size == 8 {
			target = be.Uint64(b[at:])
		}
		s.revoked = append(s.revoked, target)
	}
	return nil
}

// commit makes the open transaction count.
func (s *scanner) commit(b []byte) (end bool, err error) {
	seconds, nanos := be.Uint64(b[jcSeconds:]), be.Uint32(b[jcNanos:])
	if s.j.sums() && sumWithout(s.j.seed, b, jcChecksum) != be.Uint32(b[jcChecksum:]) {
		return true, nil // not written to its end: not committed
	}
	if s.suspect {
		if seconds < s.seconds || seconds == s.seconds && nanos < s.nanos {
			return true, nil // of an older round, whose sequence numbers came again
		}
		return true, corrupt("journal: transaction %d is committed, but a list of its blocks is damaged", s.sequence)
	}
	for target, l := range s.open {
		s.latest[target] = l
	}
	for _, target := range s.revoked {
		delete(s.latest, target)
	}
	clear(s.open)
	s.revoked, s.seconds, s.nanos = s.revoked[:0], seconds, nanos
	s.sequence++
	return false, nil
}

// block reads a logged block as it belongs into the file system.
func (j *journal) block(p []byte, target uint64, l logged) error {
	if target >= j.fs.blocks {
		return corrupt("journal: transaction %d has block %d of a file system of %d", l.sequence, target, j.fs.blocks)
	}
	if err := j.read(p, l.at); err != nil {
		return err
	}
	if j.sums() {
		var sequence [4]byte
		be.PutUint32(sequence[:], l.sequence)
		sum := checksum(checksum(j.seed, sequence[:]), p)
		if j.incompat&journalSumsV3 == 0 {
			sum &= 0xFFFF
		}
		if sum != l.sum {
			return corrupt("journal: transaction %d: block %d has a wrong checksum", l.sequence, target)
		}
	}
	if l.escaped {
		be.PutUint32(p, journalMagic)
	}
	return nil
}

// fastCommits is an error if fast commits follow the last transaction: they describe changes of files and not blocks.
func (j *journal) fastCommits(next uint32) error {
	if j.incompat&journalFastCommit == 0 {
		return nil
	}
	b := make([]byte, j.fs.block)
	if err := j.read(b, j.end+1); err != nil { // the kernel leaves one block free between log and area
		return err
	}
	// The area starts with a tag that names the transaction after which it counts.
	const head, headSize = 0x9, 8
	if le.Uint16(b) == head && le.Uint16(b[2:]) >= headSize && le.Uint32(b[8:]) == next {
		return fmt.Errorf("journal: %w", unsupported("fast commits after transaction %d", next-1))
	}
	return nil
}
