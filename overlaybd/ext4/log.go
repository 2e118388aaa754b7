package ext4

import (
	"fmt"
	"io"
)

// journal is the log of a file system: blocks of a file that are written round and round.
type journal struct {
	fs       *filesystem
	super    []byte
	where    []run // of the file's blocks on the device
	blocks   uint32
	first    uint32 // block of the log
	end      uint32 // block behind the log
	sequence uint32 // of the first transaction
	start    uint32 // block of the first transaction; 0: there is none
	incompat uint32
	seed     uint32
}

const maxTreeDepth = 5

// openJournal finds and checks the journal of a file system.
func openJournal(f *filesystem) (*journal, error) {
	ino := le.Uint32(f.super[sbJournalInode:])
	if ino == 0 {
		return nil, unsupported("the journal is on another device")
	}
	in, err := f.inode(ino)
	if err != nil {
		return nil, err
	}
	if le.Uint32(in[inFlags:])&flagExtents == 0 {
		return nil, unsupported("the journal's blocks are not mapped by extents")
	}
	j := &journal{fs: f, super: make([]byte, f.block)}
	w := walker{fs: f, seed: f.seedOf(in, ino)}
	if err := w.walk(in[inBlock:inBlock+blockArea], -1); err != nil {
		return nil, fmt.Errorf("journal's map: %w", err)
	}
	j.where = w.runs
	if err := j.read(j.super, 0); err != nil {
		return nil, err
	}
	j.super = j.super[:jsSize]
	return j, j.parse(w.next)
}

// walker collects the blocks of a file.
type walker struct {
	fs    *filesystem
	seed  uint32
	holes bool // the file may have holes and blocks that were never written
	runs  []run
	next  uint64 // block of the file
	tree  []uint64
}

// walk goes through one node of a tree of extents; depth -1 takes that of the root from itself.
func (w *walker) walk(b []byte, depth int) error {
	entries, room := int(le.Uint16(b[2:])), int(le.Uint16(b[4:]))
	own := int(le.Uint16(b[6:]))
	if depth < 0 && own <= maxTreeDepth {
		depth = own
	}
	if le.Uint16(b) != extentMagic || own != depth || entries > room || extentHeader+room*extentSize > len(b) {
		return corrupt("node of depth %d, with %d of %d entries, where %d is expected", own, entries, room, depth)
	}
	for e := b[extentHeader:]; entries > 0; e, entries = e[extentSize:], entries-1 {
		var err error
		if depth == 0 {
			err = w.leaf(e)
		} else {
			err = w.below(uint64(le.Uint32(e[4:]))|uint64(le.Uint16(e[8:]))<<32, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) leaf(e []byte) error {
	r := run{uint64(le.Uint32(e[8:])) | uint64(le.Uint16(e[6:]))<<32, uint64(le.Uint16(e[4:]))}
	logical := uint64(le.Uint32(e))
	if w.holes {
		w.next = max(w.next, logical)
		if r.n > maxExtent {
			r.n -= maxExtent // the form of those that were never written
		}
	}
	if logical != w.next || r.n == 0 || r.n > maxExtent || r.start+r.n > w.fs.blocks {
		return corrupt("block %d is mapped to %d blocks from %d, where block %d is expected", logical, r.n, r.start, w.next)
	}
	w.runs, w.next = append(w.runs, r), logical+r.n
	return nil
}

func (w *walker) below(block uint64, depth int) error {
	// A journal of 40 GiB, the kernel's limit, has an extent of 128 MiB or more for most of it; a tree of more blocks than
	// this leads in circles.
	if w.tree = append(w.tree, block); len(w.tree) > 1<<12 {
		return corrupt("a tree of more than %d blocks", 1<<12)
	}
	b := make([]byte, w.fs.block)
	if err := w.fs.readBlock(b, block); err != nil {
		return err
	}
	room := int(le.Uint16(b[4:]))
	tail := extentHeader + room*extentSize
	if w.fs.checksums && (tail+4 > len(b) || checksum(w.seed, b[:tail]) != le.Uint32(b[tail:])) {
		return corrupt("block %d: wrong checksum", block)
	}
	return w.walk(b, depth)
}

// parse takes over what the journal's superblock says. have is the number of blocks of its file.
func (j *journal) parse(have uint64) error {
	s := j.super
	kind := be.Uint32(s[jhKind:])
	if be.Uint32(s[jhMagic:]) != journalMagic || kind != kindSuperV1 && kind != kindSuperV2 {
		return corrupt("journal: no superblock")
	}
	j.blocks, j.first = be.Uint32(s[jsBlocks:]), be.Uint32(s[jsFirst:])
	j.sequence, j.start = be.Uint32(s[jsSequence:]), be.Uint32(s[jsStart:])
	if kind == kindSuperV2 {
		j.incompat = be.Uint32(s[jsIncompat:])
	}
	if unknown := j.incompat &^ journalKnown; unknown != 0 || kind == kindSuperV2 && be.Uint32(s[jsROCompat:]) != 0 {
		return unsupported("features %#x and %#x of the journal", unknown, be.Uint32(s[jsROCompat:]))
	}
	if kind == kindSuperV2 && be.Uint32(s[jsCompat:])&journalSums != 0 && !j.sums() {
		return unsupported("a journal with checksums of whole transactions")
	}
	if err := j.checkSum(); err != nil {
		return err
	}
	j.end = j.blocks
	if j.incompat&journalFastCommit != 0 {
		fast := be.Uint32(s[jsFastBlocks:])
		if fast == 0 {
			fast = defaultFastBlocks
		}
		if fast < 2 || fast >= j.blocks {
			return corrupt("journal: %d of its %d blocks are for fast commits", fast, j.blocks)
		}
		j.end -= fast
	}
	if int64(be.Uint32(s[jsBlockSize:])) != j.fs.block || uint64(j.blocks) > have || j.first == 0 || j.first >= j.end ||
		j.start != 0 && (j.start < j.first || j.start >= j.end) {
		return corrupt("journal: %d blocks of %d bytes, log from %d to %d, starts at %d",
			j.blocks, be.Uint32(s[jsBlockSize:]), j.first, j.end, j.start)
	}
	return nil
}

const defaultFastBlocks = 256

// sums says whether blocks of the log have checksums.
func (j *journal) sums() bool { return j.incompat&(journalSumsV2|journalSumsV3) != 0 }

func (j *journal) checkSum() error {
	if !j.sums() {
		return nil
	}
	if j.incompat&journalSumsV2 != 0 && j.incompat&journalSumsV3 != 0 || j.super[jsChecksumType] != journalCRC32C {
		return unsupported("checksum type %d, features %#x of the journal", j.super[jsChecksumType], j.incompat)
	}
	if journalSuperSum(j.super) != be.Uint32(j.super[jsChecksum:]) {
		return corrupt("journal: superblock has a wrong checksum")
	}
	j.seed = checksum(checksumStart, j.super[jsUUID:jsUUID+16])
	return nil
}

const journalCRC32C = 4

func journalSuperSum(s []byte) uint32 { return sumWithout(checksumStart, s, jsChecksum) }

// sumWithout is the checksum of b with the four bytes at at taken as zero.
func sumWithout(register uint32, b []byte, at int) uint32 {
	register = checksum(register, b[:at])
	register = checksum(register, zeroes[:4])
	return checksum(register, b[at+4:])
}

// place is the block of the device that holds a block of the journal.
func (j *journal) place(block uint32) (uint64, error) {
	at := uint64(block)
	for _, r := range j.where {
		if at < r.n {
			return r.start + at, nil
		}
		at -= r.n
	}
	return 0, corrupt("journal: block %d: %w", block, io.ErrUnexpectedEOF)
}

// read reads a block of the journal.
func (j *journal) read(p []byte, block uint32) error {
	at, err := j.place(block)
	if err != nil {
		return err
	}
	return j.fs.readBlock(p, at)
}
