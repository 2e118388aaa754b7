package posixstore

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sandvol/sandvol/volume/store"
)

// readChunk is how much is read between two looks at the context.
const readChunk = 1 << 20

// OpenBlob implements store.Store. The handle opens the file at its first use and keeps it: a blob that is deleted
// after that can be read to its end.
func (s *Store) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	if err := begin(ctx, key); err != nil {
		return nil, opError("open blob", key, err)
	}
	return &blob{s: s, key: key}, nil
}

type blob struct {
	s   *Store
	key string

	mu     sync.Mutex
	f      *os.File // nil until the first use
	size   int64
	closed bool
}

func (b *blob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	f, _, err := b.file(ctx)
	if err == nil && off < 0 {
		err = fmt.Errorf("offset %d is negative: %w", off, os.ErrInvalid)
	}
	if err != nil {
		return 0, opError("read", b.key, err)
	}
	for done := 0; ; {
		n, err := f.ReadAt(p[done:min(len(p), done+readChunk)], off+int64(done))
		done += n
		switch {
		case err == io.EOF:
			return done, io.EOF
		case err == nil && done == len(p):
			return done, nil
		case err == nil:
			err = ctx.Err()
		}
		if err != nil {
			return done, opError("read", b.key, err)
		}
	}
}

func (b *blob) Size(ctx context.Context) (int64, error) {
	_, size, err := b.file(ctx)
	return size, opError("size of", b.key, err)
}

func (b *blob) file(ctx context.Context) (*os.File, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, 0, os.ErrClosed
	}
	if b.f == nil {
		f, fi, err := b.s.open(b.key)
		if err != nil {
			return nil, 0, err
		}
		b.f, b.size = f, fi.Size()
	}
	return b.f, b.size, nil
}

func (b *blob) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.f == nil {
		return nil
	}
	f := b.f
	b.f = nil
	return f.Close()
}
