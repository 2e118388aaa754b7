package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// RemoteSource is a Source whose bytes are elsewhere and come by range, when they are first read. Package blockcache has one.
//
// Of a layer in a ZFile with checksums the engine reads the end, where the indexes are, and then what is read from the
// device; each block is compared with its checksum when it is read, and asked for once more if it does not fit. Any other
// layer is verified before its first use.
type RemoteSource interface {
	Source
	// ReadWithin is ReadAt that waits for remote bytes no longer than timeout (os.ErrDeadlineExceeded), and not after done was
	// closed (context.Canceled). Close ends it too.
	ReadWithin(p []byte, off int64, timeout time.Duration, done <-chan struct{}) (int, error)
	// Prefetch fetches [off, off+n), so that reading it will not have to.
	Prefetch(ctx context.Context, off, n int64) error
	// Refetch says that [off, off+n) as it was read is damaged: the next read of it asks for it anew.
	Refetch(off, n int64)
	// Verify compares the whole with the layer's digest. What was read before is of no use if it fails.
	Verify(ctx context.Context) error
}

// tailGuess is how much is read of the end of a layer whose record does not say how much is needed: enough for 10,000
// segments. What is missing comes with the next reads.
const tailGuess = 256 << 10

// prepare fetches what opening a layer will read.
func prepare(ctx context.Context, l Layer, src RemoteSource) error {
	if l.Codec != CodecZFile && l.Codec != CodecTarZFile {
		// Nothing in the layer says that a sector is not what it was.
		return src.Verify(ctx)
	}
	from := tailFrom(l, src.Size())
	return src.Prefetch(ctx, from, src.Size()-from)
}

// tailFrom returns where the end begins that opening a layer reads.
func tailFrom(l Layer, size int64) int64 {
	tail := l.Tail
	if tail <= 0 {
		tail = tailGuess
	}
	return max(0, size-tail)
}

// remoteZFile is the content of a ZFile that comes by range.
type remoteZFile struct {
	*zfile.Reader
	src  RemoteSource
	base int64 // where the ZFile begins in it

	mu    sync.Mutex
	again map[int64]bool // blocks that were asked for once more
}

// openRemote opens the ZFile in the stored bytes of a layer, read through stored.
func openRemote(ctx context.Context, l Layer, stored *layerSource, src RemoteSource) (*remoteZFile, error) {
	z := &remoteZFile{src: src, again: map[int64]bool{}}
	size := src.Size()
	if l.Codec == CodecTarZFile {
		p, err := tarlayer.Open(stored, size)
		if err != nil {
			return nil, err
		}
		z.base, size = p.Offset, p.Size
	}
	inner := io.NewSectionReader(stored, z.base, size)
	var err error
	if z.Reader, err = zfile.OpenTail(inner, size); errors.Is(err, zfile.ErrCorrupt) {
		from := tailFrom(l, src.Size())
		var c *zfile.CorruptError
		if errors.As(err, &c) {
			from = min(from, z.base+c.Offset)
		}
		src.Refetch(from, src.Size()-from)
		if z.Reader, err = zfile.OpenTail(inner, size); errors.Is(err, zfile.ErrCorrupt) {
			z.Reader, err = zfile.Open(inner, size) // a file with a final header can be read without its trailer
		}
	}
	if err != nil {
		return nil, zfileError(err)
	}
	if !z.Info().Checksums {
		return z, src.Verify(ctx)
	}
	return z, nil
}

// ReadAt reads the LSMT stream. A block that is damaged was damaged on its way or where it is stored: asking once more tells.
func (z *remoteZFile) ReadAt(p []byte, off int64) (n int, err error) {
	for {
		var m int
		m, err = z.Reader.ReadAt(p[n:], off+int64(n))
		n += m
		if err == nil || errors.Is(err, io.EOF) {
			return n, err
		}
		if !z.askAgain(err) {
			return n, zfileError(err)
		}
	}
}

// askAgain has a damaged block fetched anew, the first time that it is damaged.
func (z *remoteZFile) askAgain(err error) bool {
	var c *zfile.CorruptError
	if !errors.As(err, &c) || c.Part != zfile.PartBlock {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.again[c.Block] {
		return false
	}
	z.again[c.Block] = true
	z.src.Refetch(z.base+c.Offset, c.Length)
	return true
}

// isRemote reports whether the content of a layer comes by range.
func isRemote(src Source) bool {
	w, ok := src.(*wrappedSource)
	if !ok {
		return false
	}
	_, ok = w.stream.(*remoteZFile)
	return ok
}

// TailSize returns how many bytes at the end of a stored layer opening it reads: what Layer.Tail is to say. For a layer that
// is read whole before its first use it is 0.
func TailSize(r io.ReaderAt, size int64, codec string) (int64, error) {
	if codec != CodecZFile {
		return 0, nil
	}
	low := &lowest{r: r, off: size}
	z, err := zfile.OpenTail(low, size)
	if err != nil {
		return 0, fmt.Errorf("overlaybd: open layer: %w", zfileError(err))
	}
	if _, err := lsmt.OpenTail(zfileContent{z}, z.Size()); err != nil {
		return 0, fmt.Errorf("overlaybd: open layer: %w", err)
	}
	return size - low.off, nil
}

// lowest notes the lowest offset that was read.
type lowest struct {
	r   io.ReaderAt
	off int64
}

func (l *lowest) ReadAt(p []byte, off int64) (int, error) {
	l.off = min(l.off, off)
	return l.r.ReadAt(p, off)
}
