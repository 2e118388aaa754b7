package zfile

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is a compression format, by its number in the header.
type Codec uint8

// Codecs that can be read and written. Number 0 was set aside for one that never existed.
const (
	LZ4  Codec = 1 // one raw LZ4 block for each block
	Zstd Codec = 2 // one zstd frame for each block
)

func (c Codec) String() string {
	switch c {
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

func (c Codec) known() bool { return c == LZ4 || c == Zstd }

// maxStored bounds the stored bytes of a block, with room over what LZ4 (1/255 and 16 bytes) and zstd (1/256 and 64
// bytes) need for incompressible content, and 4 bytes of checksum. An index that says more is not believed.
func maxStored(blockSize int) int { return blockSize + blockSize/128 + 512 }

// decompress fills dst from src, and returns how many bytes src holds if they fit.
func (c Codec) decompress(dst, src []byte) (int, error) {
	if c == LZ4 {
		return lz4.UncompressBlock(src, dst)
	}
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer zstdDecoders.Put(d)
	// With the limit to dst's capacity the result is never moved elsewhere, and a frame that claims more is an error.
	out, err := d.DecodeAll(src, dst[:0:len(dst)])
	return len(out), err
}

// zstdDecoders serves all readers: a decoder is 100 KiB of tables that reads of many layers can share. Without a stream
// to read, a decoder owns no goroutine, so the pool may drop it.
var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // these options are constants that the library takes
	}
	return d
}}

// compressor compresses blocks, one at a time. Its output depends on the block alone, not on those before it.
type compressor struct {
	codec Codec
	// The variant that makes the same bytes as the C library: so do our files, and its small table, which is cleared for
	// every block, suits blocks of 4 KiB.
	lz4  lz4.CompressorCCompat
	zstd *zstd.Encoder
}

func newCompressor(c Codec) (*compressor, error) {
	if c == LZ4 {
		return &compressor{codec: c}, nil
	}
	// Level 3 with the content size and no checksum, as the reference has it. The window is the largest block: a larger
	// one would only make the encoder clear its tables more often.
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(3)),
		zstd.WithWindowSize(MaxBlockSize), zstd.WithSingleSegment(true), zstd.WithEncoderCRC(false))
	return &compressor{codec: c, zstd: e}, err
}

// compress appends the compressed src to dst, which has room for maxStored more bytes.
func (c *compressor) compress(dst, src []byte) ([]byte, error) {
	if c.codec == Zstd {
		return c.zstd.EncodeAll(src, dst), nil
	}
	n, err := c.lz4.CompressBlock(src, dst[len(dst):cap(dst)])
	return dst[:len(dst)+n], err
}
