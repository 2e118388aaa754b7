package turbo

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Blob is random access to the stored bytes of a file. A Source of overlaybd is one.
type Blob interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// maxCursors is how many decoders a Reader keeps. Each costs about 110 KiB.
const maxCursors = 4

// Reader is random access to the content of a gzip file. A read decompresses from the last entry of the index in front
// of it, half a MiB on average; one that begins shortly behind the end of an earlier one goes on from there. Its
// methods may be called concurrently.
type Reader struct {
	gz    Blob
	index *Index

	mu   sync.Mutex
	idle []*cursor // least recently used first
}

// cursor is a decoder at one place of the content.
type cursor struct {
	r  io.Reader
	at int64
}

// Open returns the content of the gzip file that the index was made for. Its size is checked; the Reader closes gz.
func (x *Index) Open(gz Blob) (*Reader, error) {
	if gz.Size() != x.gzip {
		return nil, badIndex(offGzipSize, "made for a gzip file of %d bytes, not of %d", x.gzip, gz.Size())
	}
	return &Reader{gz: gz, index: x}, nil
}

// Size returns the number of bytes of content.
func (r *Reader) Size() int64 { return r.index.size }

// Close closes the gzip file.
func (r *Reader) Close() error { return r.gz.Close() }

// ReadAt reads content at off. It returns io.EOF with what there is when p reaches beyond Size.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, lsmt.Invalid("offset", off, "at least 0")
	}
	if off >= r.index.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), r.index.size-off)]
	n, err := r.read(want, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (r *Reader) read(p []byte, off int64) (int, error) {
	e := r.index.before(off)
	c, err := r.cursor(e, off)
	if err != nil {
		return 0, err
	}
	if _, err := io.CopyN(io.Discard, c.r, off-c.at); err != nil {
		return 0, contentError(err, e)
	}
	n, err := io.ReadFull(c.r, p)
	if err != nil {
		return n, contentError(err, e)
	}
	c.at = off + int64(n)
	r.keep(c)
	return n, nil
}

// cursor returns a decoder between e and off, one that was kept or a new one.
func (r *Reader) cursor(e entry, off int64) (*cursor, error) {
	if c := r.take(e, off); c != nil {
		return c, nil
	}
	window, err := r.index.windowOf(e)
	if err != nil {
		return nil, err
	}
	inflate, err := startInflate(r.gz, r.gz.Size(), e, window)
	if err != nil {
		return nil, err
	}
	return &cursor{inflate, e.content}, nil
}

func (r *Reader) take(e entry, off int64) *cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	best := -1
	for i, c := range r.idle {
		if c.at >= e.content && c.at <= off && (best < 0 || c.at > r.idle[best].at) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	c := r.idle[best]
	r.idle = append(r.idle[:best], r.idle[best+1:]...)
	return c
}

func (r *Reader) keep(c *cursor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle = append(r.idle, c); len(r.idle) > maxCursors {
		r.idle = r.idle[1:]
	}
}

// contentError is the error of decompression that began at e. The decoder does not say where in the file it was.
func contentError(err error, e entry) error {
	if isDamage(err) {
		return corrupt("gzip", e.stored, "behind this byte: %v", noEOF(err))
	}
	return err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Verify decompresses the whole file and compares the content with the checksum at its end, and with the size that the
// index says. Windows of the index are checked against the content they stand for.
func (r *Reader) Verify(ctx context.Context) error {
	z, err := gzip.NewReader(bufferedSection(r.gz, 0, r.gz.Size()))
	if err != nil {
		return contentError(err, entry{})
	}
	z.Multistream(false)
	v := windowCheck{index: r.index}
	buf := make([]byte, windowSize)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := z.Read(buf)
		if err := v.add(buf[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return contentError(err, entry{})
		}
	}
	if v.at != r.index.size {
		return badIndex(offSize, "%d bytes of content, the gzip file has %d", r.index.size, v.at)
	}
	return nil
}

// windowCheck compares the windows of an index with the content as it goes by.
type windowCheck struct {
	index *Index
	next  int    // entry
	at    int64  // bytes of content seen
	last  []byte // the newest of them, a window's length at least once there were as many
}

func (v *windowCheck) add(p []byte) error {
	v.last = append(v.last, p...)
	v.at += int64(len(p))
	for ; v.next < len(v.index.entries) && v.index.entries[v.next].content <= v.at; v.next++ {
		if err := v.check(v.index.entries[v.next]); err != nil {
			return err
		}
	}
	if extra := len(v.last) - 2*windowSize; extra > 0 {
		v.last = append(v.last[:0], v.last[extra:]...)
	}
	return nil
}

func (v *windowCheck) check(e entry) error {
	window, err := v.index.windowOf(e)
	if err != nil {
		return err
	}
	// Nothing can refer to what was before the content.
	n := min(int64(len(window)), e.content)
	end := int64(len(v.last)) - (v.at - e.content)
	if n > 0 && string(window[int64(len(window))-n:]) != string(v.last[end-n:end]) {
		return badIndex(e.window, "the window is not the content in front of byte %d", e.content)
	}
	return nil
}
