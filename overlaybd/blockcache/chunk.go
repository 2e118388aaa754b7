package blockcache

import (
	"errors"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"
)

// errDamaged: what is on the disk is not what was put there.
var errDamaged = errors.New("damaged")

// chunk is a chunk that is kept on disk. It is immutable but for used; an entry that drops it makes another one later.
type chunk struct {
	e     *entry
	index int64
	sums  sums
	used  atomic.Bool // since the hand last passed
	slot  int         // in the ring of the cache, -1: not there; under Cache.mu
}

func (ch *chunk) start() int64 { return ch.index * ChunkSize }

// length returns the number of bytes of the chunk: the last one of a layer may be shorter.
func (ch *chunk) length() int64 { return ch.e.chunkLength(ch.index) }

// scratch is room for the blocks of which a read wants a part.
type scratch [2 * blockSize]byte

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// read fills p, a part of the chunk, from byte off of the layer on. Whole blocks go to p directly. An evicted chunk's bytes
// are gone while somebody may still read here: then the checksums do not fit, and nothing else needs to prevent it.
func (ch *chunk) read(p []byte, off int64) error {
	for len(p) > 0 {
		n, inside := len(p)-len(p)%blockSize, int(off%blockSize)
		if inside != 0 || n == 0 {
			n = min(len(p), len(scratch{})-inside)
			if err := ch.readPart(p[:n], off, inside); err != nil {
				return err
			}
		} else if err := ch.readBlocks(p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readPart reads by way of memory that has room for the blocks around p.
func (ch *chunk) readPart(p []byte, off int64, inside int) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	from := off - int64(inside)
	n := (inside + len(p) + blockSize - 1) / blockSize * blockSize
	b := s[:min(int64(n), ch.start()+ch.length()-from)]
	if err := ch.readBlocks(b, from); err != nil {
		return err
	}
	copy(p, b[inside:])
	return nil
}

// readBlocks reads whole blocks, of which the last may be that of the layer, and checks them.
func (ch *chunk) readBlocks(p []byte, off int64) error {
	// A failed read is damage too: the same bytes are to be had from the store.
	if n, err := ch.e.data.ReadAt(p, off); n < len(p) {
		if errors.Is(err, os.ErrClosed) {
			return err
		}
		return errDamaged
	}
	for i := (off - ch.start()) / blockSize; len(p) > 0; i++ {
		n := min(len(p), blockSize)
		if crc32.Checksum(p[:n], castagnoli) != ch.sums[i] {
			return errDamaged
		}
		p = p[n:]
	}
	return nil
}
