package zfile

import (
	"encoding/binary"
	"fmt"
)

const (
	// batchSize is how much content one goroutine compresses at a time: enough that handing it over costs nothing, and a
	// multiple of every block size, so that where blocks begin does not depend on it.
	batchSize = 128 << 10
	// portableStored is the largest stored block that the reference reads.
	portableStored = 64 << 10
)

// batch is a run of blocks on its way from content to stored bytes. It is used again for a later run.
type batch struct {
	options Options
	content []byte
	stored  []byte
	sizes   []uint32 // of each stored block
	err     error
	done    chan struct{} // one element when compress has finished
}

func newBatch(o Options) *batch {
	blocks := batchSize / o.BlockSize
	return &batch{
		options: o,
		content: make([]byte, 0, batchSize),
		stored:  make([]byte, 0, blocks*maxStored(o.BlockSize)),
		sizes:   make([]uint32, 0, blocks),
		done:    make(chan struct{}, 1),
	}
}

// fill takes what it has room for, and returns how much that was.
func (b *batch) fill(p []byte) int {
	n := copy(b.content[len(b.content):cap(b.content)], p)
	b.content = b.content[:len(b.content)+n]
	return n
}

func (b *batch) full() bool { return len(b.content) == cap(b.content) }

func (b *batch) reset() {
	b.content, b.stored, b.sizes, b.err = b.content[:0], b.stored[:0], b.sizes[:0], nil
}

// compress turns content into stored blocks and their sizes.
func (b *batch) compress(c *compressor) {
	for rest := b.content; len(rest) > 0 && b.err == nil; {
		n := min(len(rest), b.options.BlockSize)
		b.err = b.block(c, rest[:n])
		rest = rest[n:]
	}
	b.done <- struct{}{}
}

func (b *batch) block(c *compressor, content []byte) (err error) {
	start := len(b.stored)
	if b.stored, err = c.compress(b.stored, content); err != nil {
		return fmt.Errorf("compress with %v: %w", b.options.Codec, err)
	}
	if !b.options.NoChecksums {
		b.stored = binary.LittleEndian.AppendUint32(b.stored, blockCRC(b.stored[start:]))
	}
	size := len(b.stored) - start
	if size > portableStored && !b.options.Oversize {
		return invalid("BlockSize", b.options.BlockSize, fmt.Sprintf(
			"at most 32768 for content that does not compress, unless Oversize is set: a block took %d bytes, over %d",
			size, portableStored))
	}
	b.sizes = append(b.sizes, uint32(size))
	return nil
}
