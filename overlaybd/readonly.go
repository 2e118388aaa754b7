package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// ReadOnly is a stack opened as a Device whose WriteAt and Discard are ErrReadOnly. Flush has nothing to do.
type ReadOnly struct {
	size int64
	view lsmt.View
	base *sealedStack
	done chan struct{}

	close    sync.Once
	closeErr error
}

var _ Device = (*ReadOnly)(nil)

// OpenReadOnly opens a stack. It reads the indexes of all layers and none of their data.
func (e *Engine) OpenReadOnly(ctx context.Context, s Stack) (*ReadOnly, error) {
	if err := checkStack(s); err != nil {
		return nil, err
	}
	ids, err := layerUUIDs(s)
	if err != nil {
		return nil, err
	}
	open := make([]opener, len(s.Layers))
	for i, l := range s.Layers {
		open[i] = e.openPublished(l)
	}
	base, err := e.openSealed(ctx, open, ids)
	if err != nil {
		return nil, err
	}
	if err := e.checkParents(base.layers); err != nil {
		return nil, errors.Join(err, base.close())
	}
	r := &ReadOnly{size: s.VirtualSize, base: base, done: make(chan struct{})}
	base.watch(r.done)
	r.view = lsmt.View{Base: base.index, Files: base.files()}
	return r, nil
}

// ReadAt implements Device.
func (r *ReadOnly) ReadAt(p []byte, off int64) (int, error) {
	select {
	case <-r.done:
		return 0, ErrClosed
	default:
		return readView(&r.view, r.size, p, off)
	}
}

// readView reads what lies below size of [off, off+len(p)).
func readView(v *lsmt.View, size int64, p []byte, off int64) (int, error) {
	if err := checkRange(off, int64(len(p))); err != nil {
		return 0, err
	}
	if off >= size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), size-off))
	if err := v.ReadAt(p[:n], off); err != nil {
		if errors.Is(err, os.ErrClosed) {
			err = ErrClosed
		}
		return 0, fmt.Errorf("overlaybd: read %d bytes at %d: %w", n, off, err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements Device: it is ErrReadOnly.
func (r *ReadOnly) WriteAt([]byte, int64) (int, error) { return 0, ErrReadOnly }

// Discard implements Device: it is ErrReadOnly.
func (r *ReadOnly) Discard(int64, int64) error { return ErrReadOnly }

// Flush implements Device.
func (r *ReadOnly) Flush() error { return nil }

// Size implements Device.
func (r *ReadOnly) Size() int64 { return r.size }

// Close ends reads that wait for a store and closes the layers. A second Close returns what the first did.
func (r *ReadOnly) Close() error {
	r.close.Do(func() {
		close(r.done)
		r.closeErr = r.base.close()
	})
	return r.closeErr
}
