package memstore

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/sandvol/sandvol/volume/store"
)

// OpenBlob implements store.Store.
func (s *Store) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	if err := begin(ctx, key); err != nil {
		return nil, opError("open blob", key, err)
	}
	return &blob{s: s, key: key}, nil
}

type blob struct {
	s      *Store
	key    string
	closed atomic.Bool
}

func (b *blob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	body, err := b.body(ctx)
	if err != nil {
		return 0, opError("read", b.key, err)
	}
	if off < 0 {
		return 0, opError("read", b.key, fmt.Errorf("offset %d is negative: %w", off, os.ErrInvalid))
	}
	n := copy(p, body[min(off, int64(len(body))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (b *blob) Size(ctx context.Context) (int64, error) {
	body, err := b.body(ctx)
	return int64(len(body)), opError("size of", b.key, err)
}

func (b *blob) body(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.closed.Load() {
		return nil, os.ErrClosed
	}
	o, err := b.s.get(b.key)
	return o.body, err
}

func (b *blob) Close() error {
	b.closed.Store(true)
	return nil
}
