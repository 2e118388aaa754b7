package ext4

import "context"

const (
	extentMagic  = 0xF30A
	extentHeader = 12
	extentSize   = 12
	rootExtents  = (blockArea - extentHeader) / extentSize // 4
	leafExtents  = (blockSize - extentHeader - 4) / extentSize
	maxExtent    = 32768 // blocks of one extent
)

// extent maps blocks of a file in a row to blocks of the disk in a row. In an index it stands for all that is below a
// block of the tree: start is that block, and n is not used.
type extent struct {
	logical uint32
	n       uint32
	start   uint64
}

// extents is the map of one file, in order, neighbours joined.
type extents []extent

// add maps the blocks of a run from logical on.
func (e *extents) add(logical uint32, r run) {
	if last := len(*e) - 1; last >= 0 {
		l := &(*e)[last]
		if l.logical+l.n == logical && l.start+uint64(l.n) == r.start {
			more := min(maxExtent-uint64(l.n), r.n)
			l.n += uint32(more)
			logical, r = logical+uint32(more), run{r.start + more, r.n - more}
		}
	}
	for r.n > 0 {
		n := min(r.n, maxExtent)
		*e = append(*e, extent{logical, uint32(n), r.start})
		logical, r = logical+uint32(n), run{r.start + n, r.n - n}
	}
}

// putExtents encodes one node of a tree: a leaf at depth 0, else an index.
func putExtents(b []byte, depth, room int, list []extent) {
	le.PutUint16(b[0:], extentMagic)
	le.PutUint16(b[2:], uint16(len(list)))
	le.PutUint16(b[4:], uint16(room))
	le.PutUint16(b[6:], uint16(depth))
	for i, e := range list {
		at := b[extentHeader+i*extentSize:]
		le.PutUint32(at, e.logical)
		if depth > 0 {
			le.PutUint32(at[4:], uint32(e.start))
			le.PutUint16(at[8:], uint16(e.start>>32))
			continue
		}
		le.PutUint16(at[4:], uint16(e.n))
		le.PutUint16(at[6:], uint16(e.start>>32))
		le.PutUint32(at[8:], uint32(e.start))
	}
}

// writeTree stores the map of an inode: in the inode while it fits, else in a tree of blocks below it.
func (w *Writer) writeTree(ctx context.Context, ino uint32, list extents) error {
	seed, depth := inodeSeed(w.seed, ino), 0
	n := w.tree.inodes.at(ino)
	for ; len(list) > rootExtents; depth++ {
		var above extents
		for len(list) > 0 {
			part := list[:min(leafExtents, len(list))]
			r, err := w.alloc.take(1)
			if err != nil {
				return err
			}
			block := make([]byte, blockSize)
			putExtents(block, depth, leafExtents, part)
			le.PutUint32(block[blockSize-4:], checksum(seed, block[:blockSize-4]))
			if err := w.out.write(ctx, r.start, block); err != nil {
				return err
			}
			above = append(above, extent{logical: part[0].logical, start: r.start})
			n.sectors += blockSize / 512
			list = list[len(part):]
		}
		list = above
	}
	n.flags |= flagExtents
	putExtents(n.block[:], depth, rootExtents, list)
	return nil
}
