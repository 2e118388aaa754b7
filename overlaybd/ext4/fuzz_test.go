package ext4

import (
	"errors"
	"testing"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
)

func isClass(err error) bool {
	return errors.Is(err, overlaybd.ErrCorrupt) || errors.Is(err, ErrUnsupported)
}

// FuzzJournal replays any bytes as the first blocks of a journal. Two switches make its superblock's checksum and the
// file system's need of a replay right, so that what is behind them is reached.
func FuzzJournal(f *testing.F) {
	for _, form := range []uint32{0, journal64Bit, journalSumsV3 | journal64Bit, journalSumsV2} {
		l := newLogWriter(f, journalRevokes|form)
		l.begin(1, 7)
		l.add(transaction{writes: []write{{3000, 1, false}, {3001, 2, true}}})
		l.add(transaction{writes: []write{{3001, 3, false}}, revokes: []uint64{3000}})
		seed := make([]byte, 10*blockSize)
		if _, err := l.dev.ReadAt(seed, l.base); err != nil {
			f.Fatal(err)
		}
		f.Add(seed, true)
		f.Add(seed[:300], false)
	}
	l := newLogWriter(f, 0)
	l.begin(1, 7)
	f.Fuzz(func(t *testing.T, data []byte, fix bool) {
		if len(data) > 64*blockSize {
			return
		}
		o := &overlay{base: l.dev.(*mounttest.MemDevice), own: map[int64][]byte{}}
		if fix && len(data) >= jsSize {
			data = append([]byte(nil), data...)
			be.PutUint32(data[jsChecksum:], journalSuperSum(data[:jsSize]))
		}
		o.set(data, l.base)
		fuzzReplay(t, o)
	})
}

// FuzzSuperblock replays a file system with any superblock, descriptors, journal inode and deleted inode in place of its
// own.
func FuzzSuperblock(f *testing.F) {
	l := newLogWriter(f, journalRevokes|journal64Bit)
	l.begin(1, 7)
	l.add(transaction{writes: []write{{3000, 1, false}}})
	base := l.dev.(*mounttest.MemDevice)
	fs, err := open(base, base.Size())
	if err != nil {
		f.Fatal(err)
	}
	log, err := fs.inode(journalInode)
	if err != nil {
		f.Fatal(err)
	}
	desc, err := fs.desc(0)
	if err != nil {
		f.Fatal(err)
	}
	const orphan = firstInode + 1
	dead := inode{mode: 0o100644, flags: flagExtents, size: blockSize, sectors: 8}
	putExtents(dead.block[:], 0, rootExtents, []extent{{0, 1, 2900}})
	in := make([]byte, inodeSize)
	dead.encode(in, orphan, fs.seed, nil, 0)
	listed := append([]byte(nil), fs.super...)
	le.PutUint32(listed[sbLastOrphan:], orphan)
	f.Add(listed, desc, log, in)
	f.Add(fs.super, desc, log, []byte{})
	f.Add(fs.super[:100], []byte{}, []byte{}, []byte{})
	table := split(desc, gdInodeTable)
	f.Fuzz(func(t *testing.T, super, desc, log, dead []byte) {
		if len(super) > superSize || len(desc) > blockSize || len(log) > inodeSize || len(dead) > inodeSize {
			return
		}
		o := &overlay{base: base, own: map[int64][]byte{}}
		super = append(append([]byte(nil), super...), make([]byte, superSize-len(super))...)
		setSuperChecksum(super)
		o.set(super, superOffset)
		if len(desc) > 0 {
			o.set(desc, blockSize)
		}
		seed := checksum(checksumStart, super[sbUUID:sbUUID+16])
		block := make([]byte, blockSize)
		if _, err := base.ReadAt(block, int64(table)*blockSize); err != nil {
			t.Fatal(err)
		}
		for ino, in := range map[uint32][]byte{journalInode: log, orphan: dead} {
			if len(in) > 0 {
				b := block[(ino-1)*inodeSize:][:inodeSize]
				clear(b)
				copy(b, in)
				setInodeChecksum(b, inodeSeed(seed, ino))
			}
		}
		o.set(block, int64(table)*blockSize)
		fuzzReplay(t, o)
	})
}
