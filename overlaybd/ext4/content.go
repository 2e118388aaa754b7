package ext4

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// contentBuffer is how much of a file is read at a time.
const contentBuffer = 256 << 10

// writeContent copies size bytes to the device and maps them: in the inode, or by the returned list if it is too long for
// that. Blocks of zeroes are not written and not mapped.
func (w *Writer) writeContent(ctx context.Context, n *inode, content io.Reader, size int64) (long extents, err error) {
	n.size, n.flags = size, flagExtents
	if w.buf == nil {
		w.buf = make([]byte, contentBuffer)
	}
	var list extents
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p := w.buf[:min(contentBuffer, size-off)]
		if got, err := io.ReadFull(content, p); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("content ends after %d of %d bytes: %w", off+int64(got), size, err)
		}
		whole := (len(p) + blockSize - 1) / blockSize * blockSize
		clear(w.buf[len(p):whole])
		if err := w.writeRuns(ctx, &list, uint32(off/blockSize), w.buf[:whole]); err != nil {
			return nil, err
		}
		off += int64(len(p))
	}
	for _, e := range list {
		n.sectors += uint64(e.n) * (blockSize / 512)
	}
	if len(list) > rootExtents {
		return list, nil
	}
	putExtents(n.block[:], 0, rootExtents, list)
	return nil, nil
}

// writeRuns writes and maps the blocks of p that are not zero.
func (w *Writer) writeRuns(ctx context.Context, list *extents, logical uint32, p []byte) error {
	for len(p) > 0 {
		n, zero := sameKind(p)
		part := p[:n]
		p = p[n:]
		if zero {
			logical += uint32(n / blockSize)
			continue
		}
		for len(part) > 0 {
			r, err := w.alloc.take(uint64(len(part) / blockSize))
			if err != nil {
				return err
			}
			if err := w.out.write(ctx, r.start, part[:r.n*blockSize]); err != nil {
				return err
			}
			list.add(logical, r)
			part, logical = part[r.n*blockSize:], logical+uint32(r.n)
		}
	}
	return nil
}

// writeTarget stores what a symbolic link says: in the inode in place of the map if it is short, else in a block.
func (w *Writer) writeTarget(ctx context.Context, n *inode, target string) error {
	n.size = int64(len(target))
	if len(target) < blockArea {
		copy(n.block[:], target)
		return nil
	}
	r, err := w.alloc.take(1)
	if err != nil {
		return err
	}
	block := make([]byte, blockSize)
	copy(block, target)
	n.flags, n.sectors = flagExtents, blockSize/512
	putExtents(n.block[:], 0, rootExtents, []extent{{0, 1, r.start}})
	return w.out.write(ctx, r.start, block)
}
