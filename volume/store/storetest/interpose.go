package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/sandvol/sandvol/volume/store"
)

// errPartial, wrapped in the error of a read, tells the interposer to hand out half of what was read with that error.
var errPartial = errors.New("partial read")

// interposer passes every request on a store through around, which decides whether, when and how often do runs and what
// the caller is told. A listing is one request: it is collected whole before its first entry is yielded, which a Store
// may do, since a listing is not a snapshot.
type interposer struct {
	inner  store.Store
	around func(ctx context.Context, c Call, do func(context.Context) error) error

	mu     sync.Mutex
	counts map[Op]int
}

var _ store.Store = (*interposer)(nil)

func (i *interposer) call(ctx context.Context, op Op, key string, do func(context.Context) error) error {
	i.mu.Lock()
	if i.counts == nil {
		i.counts = make(map[Op]int)
	}
	i.counts[op]++
	c := Call{Op: op, Key: key, N: i.counts[op]}
	i.mu.Unlock()
	return i.around(ctx, c, do)
}

func (i *interposer) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	// The request may be sent after the caller got its body back, so it has its own copy.
	body = bytes.Clone(body)
	return i.call(ctx, OpPutIfAbsent, key, func(ctx context.Context) error {
		return i.inner.PutIfAbsent(ctx, key, body)
	})
}

func (i *interposer) Get(ctx context.Context, key string) ([]byte, error) {
	var body []byte
	err := i.call(ctx, OpGet, key, func(ctx context.Context) (err error) {
		body, err = i.inner.Get(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return body, nil
}

func (i *interposer) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return listing(i, ctx, OpList, prefix, func(ctx context.Context) iter.Seq2[store.Entry, error] {
		return i.inner.List(ctx, prefix, after, limit)
	})
}

func (i *interposer) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return listing(i, ctx, OpDirs, prefix, func(ctx context.Context) iter.Seq2[string, error] {
		return i.inner.Dirs(ctx, prefix, after, limit)
	})
}

// listing is List and Dirs: the request is sent when the sequence is ranged over, and again each time it is.
func listing[T any](i *interposer, ctx context.Context, op Op, prefix string,
	open func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		err := i.call(ctx, op, prefix, func(ctx context.Context) (err error) {
			all, err = Collect(open(ctx))
			return err
		})
		if errors.Is(err, errPartial) {
			all = all[:len(all)/2]
		} else if err != nil {
			all = nil
		}
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}

func (i *interposer) Delete(ctx context.Context, key string) error {
	return i.call(ctx, OpDelete, key, func(ctx context.Context) error {
		return i.inner.Delete(ctx, key)
	})
}

func (i *interposer) PutBlob(ctx context.Context, key string, src store.Source) error {
	return i.call(ctx, OpPutBlob, key, func(ctx context.Context) error {
		return i.inner.PutBlob(ctx, key, src)
	})
}

func (i *interposer) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	b, err := i.inner.OpenBlob(ctx, key)
	if err != nil {
		return nil, err
	}
	return &interposedBlob{i: i, key: key, inner: b}, nil
}

// interposedBlob sends the requests of one blob handle through its interposer.
type interposedBlob struct {
	i     *interposer
	key   string
	inner store.Blob
}

func (b *interposedBlob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	var n int
	var eof bool
	err := b.i.call(ctx, OpReadRange, b.key, func(ctx context.Context) (err error) {
		n, err = b.inner.ReadRange(ctx, p, off)
		// The end of the blob is an answer, not a failed request.
		if eof = errors.Is(err, io.EOF); eof {
			return nil
		}
		return err
	})
	switch {
	case errors.Is(err, errPartial):
		return n / 2, err
	case err != nil:
		return 0, err
	case eof:
		return n, io.EOF
	}
	return n, nil
}

func (b *interposedBlob) Size(ctx context.Context) (int64, error) {
	var n int64
	err := b.i.call(ctx, OpSize, b.key, func(ctx context.Context) (err error) {
		n, err = b.inner.Size(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (b *interposedBlob) Close() error { return b.inner.Close() }

// Collect drains a listing and returns what it yielded before its end or its first error.
func Collect[T any](seq iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for e, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}
