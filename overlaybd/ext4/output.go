package ext4

import (
	"bytes"
	"context"
	"io"
)

// outputBuffer is how many bytes of neighbouring blocks are gathered into one write. Small files follow each other on
// the disk, so that without it each would be a write of its own.
const outputBuffer = 1 << 20

var zeroes [blockSize]byte

// output writes whole blocks, neighbours together. Zeroes need not be written: the device reads as zeroes.
type output struct {
	dst io.WriterAt
	buf []byte
	off int64 // of buf in dst
}

// write takes a copy of whole blocks for a block address.
func (o *output) write(ctx context.Context, block uint64, p []byte) error {
	off := int64(block) * blockSize
	for len(p) > 0 {
		if off != o.off+int64(len(o.buf)) || len(o.buf) == outputBuffer {
			if err := o.flush(ctx); err != nil {
				return err
			}
			o.off = off
		}
		n := min(len(p), outputBuffer-len(o.buf))
		o.buf = append(o.buf, p[:n]...)
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// flush passes on what was gathered.
func (o *output) flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil || len(o.buf) == 0 {
		return err
	}
	_, err := o.dst.WriteAt(o.buf, o.off)
	o.buf = o.buf[:0]
	return err
}

func isZero(p []byte) bool {
	for len(p) > blockSize {
		if !bytes.Equal(p[:blockSize], zeroes[:]) {
			return false
		}
		p = p[blockSize:]
	}
	return bytes.Equal(p, zeroes[:len(p)])
}

// sameKind is the length of the blocks at the start of p that are all zero, or all not. p is whole blocks, at least one.
func sameKind(p []byte) (n int, zero bool) {
	zero = isZero(p[:blockSize])
	for n = blockSize; n < len(p) && isZero(p[n:n+blockSize]) == zero; n += blockSize {
	}
	return n, zero
}
