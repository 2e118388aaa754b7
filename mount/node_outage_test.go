package mount_test

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"

	"github.com/sandvol/sandvol/volume/store"
)

// outage is a store that takes no blobs while blobs is set.
type outage struct {
	store.Store

	blobs atomic.Bool
}

var errDown = errors.New("the store is down")

func (o *outage) PutBlob(ctx context.Context, key string, src store.Source) error {
	if o.blobs.Load() {
		return errDown
	}
	return o.Store.PutBlob(ctx, key, src)
}

// forward is a store that passes everything on to the one in a swap.
type forward struct{ s *swap }

func (f *forward) inner() store.Store { return *f.s.Load() }

func (f *forward) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	return f.inner().PutIfAbsent(ctx, key, body)
}

func (f *forward) Get(ctx context.Context, key string) ([]byte, error) {
	return f.inner().Get(ctx, key)
}

func (f *forward) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return f.inner().List(ctx, prefix, after, limit)
}

func (f *forward) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return f.inner().Dirs(ctx, prefix, after, limit)
}

func (f *forward) Delete(ctx context.Context, key string) error { return f.inner().Delete(ctx, key) }

func (f *forward) PutBlob(ctx context.Context, key string, src store.Source) error {
	return f.inner().PutBlob(ctx, key, src)
}

func (f *forward) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	return f.inner().OpenBlob(ctx, key)
}
