package ext4

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
)

const (
	blockSize = 4096      // of the file system, and the unit in which zeroes are skipped
	chunkSize = 256 << 10 // read from the image at a time
)

// copyData writes the blocks of image that are not zero to dev. It asks the file system for holes, so that its cost
// follows what was written and not the size.
func copyData(ctx context.Context, dev overlaybd.Device, image *os.File, size int64) error {
	buf := make([]byte, chunkSize)
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := image.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole up to the end
		}
		if err != nil {
			return err
		}
		// Holes have the granularity of the file system that holds the image, which may be finer than a block.
		off = data &^ (blockSize - 1)
		n, err := image.ReadAt(buf[:min(chunkSize, size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := writeBlocks(dev, buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// writeBlocks writes each run of blocks of p that are not zero with one call.
func writeBlocks(dev overlaybd.Device, p []byte, off int64) error {
	for len(p) > 0 {
		n := run(p)
		if !isZero(p[:blockSize]) {
			if _, err := dev.WriteAt(p[:n], off); err != nil {
				return err
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// run is the length of the blocks at the start of p that are all zero, or all not.
func run(p []byte) int {
	zero, n := isZero(p[:blockSize]), blockSize
	for n < len(p) && isZero(p[n:n+blockSize]) == zero {
		n += blockSize
	}
	return n
}

var zeroes [blockSize]byte

func isZero(block []byte) bool { return bytes.Equal(block, zeroes[:]) }
