package zfile

import (
	"fmt"
	"math/bits"
	"runtime"
)

// Options say how a ZFile is written. The zero value is what layers should be: LZ4, blocks of 4 KiB, checksums.
type Options struct {
	// Codec is LZ4 (the default) or Zstd. Zstd's files are a fifth to a third smaller, and cost about six times as much to
	// read and ten times as much to write.
	Codec Codec
	// BlockSize is a power of two from MinBlockSize, the default, to MaxBlockSize, in bytes. A read of any part of a block
	// costs the whole block.
	BlockSize int
	// NoChecksums leaves out the checksum of each block. Damage is then found only if it breaks the compression.
	NoChecksums bool
	// Oversize admits blocks that are stored in more than 65536 bytes, checksum included. The reference implementation
	// cannot read them; only blocks of 64 KiB that do not compress become so large. Without it, writing one fails.
	Oversize bool
	// Concurrency is how many goroutines compress at once; 0 means one for each core that Go uses. The bytes written do
	// not depend on it. Each costs about 600 KiB with LZ4 and 2 MiB with Zstd.
	Concurrency int
}

// maxConcurrency bounds memory when a limit is typed wrongly.
const maxConcurrency = 1024

// complete returns o with its defaults, or an error that names the field that is outside its limits.
func (o Options) complete() (Options, error) {
	if o.Codec == 0 {
		o.Codec = LZ4
	}
	if o.BlockSize == 0 {
		o.BlockSize = MinBlockSize
	}
	if o.Concurrency == 0 {
		o.Concurrency = min(runtime.GOMAXPROCS(0), maxConcurrency)
	}
	switch {
	case !o.Codec.known():
		return o, invalid("Codec", uint8(o.Codec), "1 (lz4) or 2 (zstd)")
	case o.BlockSize < MinBlockSize || o.BlockSize > MaxBlockSize || bits.OnesCount(uint(o.BlockSize)) != 1:
		return o, invalid("BlockSize", o.BlockSize, fmt.Sprintf("a power of two from %d to %d", MinBlockSize, MaxBlockSize))
	case o.Concurrency < 0 || o.Concurrency > maxConcurrency:
		return o, invalid("Concurrency", o.Concurrency, fmt.Sprintf("from 0 to %d", maxConcurrency))
	}
	return o, nil
}
