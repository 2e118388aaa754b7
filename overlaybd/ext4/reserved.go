package ext4

import (
	"context"

	"golang.org/x/sys/unix"
)

// writeReserved makes the inodes that every file system has: the journal and the room for more descriptors.
func (w *Writer) writeReserved(ctx context.Context) error {
	if err := w.writeResize(ctx); err != nil {
		return err
	}
	return w.writeJournal(ctx)
}

// writeJournal allocates a journal and makes it clean and empty. Past its superblock it is all zeroes, which no reader
// takes for a transaction, so that 64 MiB of journal cost one block.
func (w *Writer) writeJournal(ctx context.Context) error {
	runs, err := w.alloc.takeAll(uint64(w.layout.journal))
	if err != nil {
		return err
	}
	n := w.tree.inodes.at(journalInode)
	*n = w.newInode(unix.S_IFREG | 0o600)
	n.links = 1
	n.size = int64(w.layout.journal) * blockSize
	n.sectors = uint64(n.size / 512)
	var list extents
	for _, r := range runs {
		list.add(list.blocks(), r)
	}
	if err := w.writeTree(ctx, journalInode, list); err != nil {
		return err
	}
	return w.out.write(ctx, runs[0].start, newJournalSuper(w.layout.journal, w.options.UUID))
}

// blocks is the number of blocks mapped by a list without holes.
func (e extents) blocks() uint32 {
	if len(e) == 0 {
		return 0
	}
	last := e[len(e)-1]
	return last.logical + last.n
}

// writeResize makes the inode that owns the room behind the descriptors, through which the kernel grows a mounted file
// system. It is an old file without extents: one doubly indirect block points to each block of that room after the first
// superblock, and that block, as an indirect block, to the same place behind each copy.
func (w *Writer) writeResize(ctx context.Context) error {
	l := &w.layout
	if l.reserved == 0 {
		return nil
	}
	double, err := w.alloc.take(1)
	if err != nil {
		return err
	}
	backups := l.backups()
	n := w.tree.inodes.at(resizeInode)
	*n = w.newInode(unix.S_IFREG | 0o600)
	n.links = 1
	n.size = (12 + pointers + pointers*pointers) * blockSize // as far as a doubly indirect block reaches
	n.sectors = uint64(1+int(l.reserved)*(1+len(backups))) * (blockSize / 512)
	le.PutUint32(n.block[13*4:], uint32(double.start))

	top, all := make([]byte, blockSize), make([]byte, 0, int(l.reserved)*blockSize)
	for i := range l.reserved {
		block := 1 + l.descBlocks + i
		// The slot is the number of the descriptor block that this one would become.
		le.PutUint32(top[(l.descBlocks+i)%pointers*4:], block)
		below := make([]byte, blockSize)
		for j, g := range backups {
			le.PutUint32(below[j*4:], uint32(l.firstBlock(g))+block)
		}
		all = append(all, below...)
	}
	if len(backups) > 0 {
		if err := w.out.write(ctx, uint64(1+l.descBlocks), all); err != nil {
			return err
		}
	}
	return w.out.write(ctx, double.start, top)
}

// newInode is an inode of the file system's own, made at its time.
func (w *Writer) newInode(mode uint32) inode {
	return inode{mode: uint16(mode), accessed: w.time, modified: w.time, changed: w.time}
}
