package zfile

import (
	"encoding/binary"
	"errors"
	"io"
)

var (
	errClosed = errors.New("zfile: write after Close")
	errOpen   = errors.New("zfile: final header of a file that was not closed")
)

// Writer compresses a stream into a ZFile. What it writes depends on the content and on the codec, the block size and
// the checksums, not on the sizes of the writes nor on how many goroutines compress.
//
// A Writer is for one goroutine. Other goroutines only run while they compress a batch, and end by themselves, so one
// that is not wanted any more is dropped without Close. That is how to give up: Close would make a file that looks
// whole.
type Writer struct {
	w       io.Writer
	options Options
	batches []*batch         // a ring; each nil until first used
	next    int              // batches[next] is being filled
	oldest  int              // from here to next they compress, or have
	idle    chan *compressor // as many as may compress at once
	err     error            // the first; nothing is written behind it
	closed  bool

	trailer header // grows with each block that was written
	offset  uint64 // bytes written
	index   []byte
}

// NewWriter writes a header to w and returns a Writer for the content. Options outside their limits are an ErrInvalid
// that names the field, and nothing has been written then.
func NewWriter(w io.Writer, o Options) (*Writer, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	h := header{
		flags: flagHeader | flagData | flagDigest, codec: o.Codec, blockSize: uint32(o.BlockSize), checksums: !o.NoChecksums,
	}
	z := &Writer{w: w, options: o, trailer: h, idle: make(chan *compressor, o.Concurrency)}
	z.trailer.flags = flagData | flagSealed | flagDigest
	for range o.Concurrency {
		c, err := newCompressor(o.Codec)
		if err != nil {
			return nil, err
		}
		z.idle <- c
	}
	// More batches than compressors: while the oldest is written, the others have work.
	z.batches = make([]*batch, 2*o.Concurrency+1)
	if o.Concurrency == 1 {
		z.batches = z.batches[:1]
	}
	if err := z.write(h.encode()); err != nil {
		return nil, err
	}
	return z, nil
}

// Write takes content. An error is final, and the file of no use: it is the writer's below, or an ErrInvalid for a
// block that is too large once stored (see Options.Oversize).
func (z *Writer) Write(p []byte) (n int, err error) {
	if z.closed && z.err == nil {
		return 0, errClosed
	}
	for n < len(p) && z.err == nil {
		b := z.filling()
		n += b.fill(p[n:])
		if b.full() {
			z.start(b)
		}
	}
	return n, z.err
}

// Close writes what is left of the content, the index and the trailer. It does not close the writer below. The file is
// whole if and only if Close returns nil. Closing again changes nothing and returns the same.
func (z *Writer) Close() error {
	if z.closed {
		return z.err
	}
	z.closed = true
	// After an error there is nothing to end: without index and trailer, no reader takes the file for whole.
	if b := z.batches[z.next]; b != nil && len(b.content) > 0 && z.err == nil {
		z.start(b)
	}
	for z.oldest != z.next && z.err == nil {
		z.flush()
	}
	if z.err != nil {
		return z.err
	}
	z.trailer.indexOffset = z.offset
	z.trailer.indexCRC = rawCRC(0, z.index)
	if err := z.write(z.index); err != nil {
		return err
	}
	return z.write(z.trailer.encode())
}

// WriteFinalHeader writes the header again, with the values that are known after Close, to the beginning of w, which
// must be the beginning of the same file. Readers then do without the trailer: over a network, one request less.
func (z *Writer) WriteFinalHeader(w io.WriterAt) error {
	if !z.closed || z.err != nil {
		return errors.Join(errOpen, z.err)
	}
	h := z.trailer
	h.flags = flagHeader | flagData | flagFinal | flagDigest
	_, err := w.WriteAt(h.encode(), 0)
	return err
}

// filling returns the batch that takes content next.
func (z *Writer) filling() *batch {
	if z.batches[z.next] == nil {
		z.batches[z.next] = newBatch(z.options)
	}
	return z.batches[z.next]
}

// start has b, which is the one being filled, compressed, and makes room for the next.
func (z *Writer) start(b *batch) {
	work := func() {
		c := <-z.idle
		b.compress(c)
		z.idle <- c
	}
	if z.options.Concurrency == 1 {
		work()
	} else {
		go work()
	}
	z.next = (z.next + 1) % len(z.batches)
	// Memory is bounded here: when all batches are under way, the caller waits for the oldest.
	if z.next == z.oldest {
		z.flush()
	}
}

// flush waits for the oldest batch and writes it: the order of the content is the order of the file.
func (z *Writer) flush() {
	b := z.batches[z.oldest]
	<-b.done
	z.oldest = (z.oldest + 1) % len(z.batches)
	if b.err != nil {
		z.err = b.err
		return
	}
	// Only what was written is counted, so the index cannot name a block that is not there.
	if z.write(b.stored) != nil {
		return
	}
	if z.trailer.blocks += uint64(len(b.sizes)); z.trailer.blocks > MaxBlocks {
		z.err = invalid("number of blocks", z.trailer.blocks, "at most 1000000000")
		return
	}
	z.trailer.size += uint64(len(b.content))
	for _, n := range b.sizes {
		z.index = binary.LittleEndian.AppendUint32(z.index, n)
	}
	b.reset()
}

// write counts what the writer below took. One that takes less without an error would leave a gap; that is an error too.
func (z *Writer) write(p []byte) error {
	n, err := z.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	z.err = err
	z.offset += uint64(n)
	return err
}
