package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/singleflight"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/store"
)

// copyChunk is how much of a layer is read from the store at a time, in bytes.
const copyChunk = 4 << 20

// layerCache keeps whole copies of layers on the node's disk, by digest. A layer gets there checked: uploaded from here, or
// fetched and compared with its digest. Losing the directory loses nothing.
type layerCache struct {
	dir    string
	store  store.Store
	owned  func(func(context.Context) error) error // runs what outlives its caller
	flight singleflight.Group
}

func openLayerCache(dir string, st store.Store, owned func(func(context.Context) error) error) (*layerCache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, ".fetch-*"))
	if err != nil {
		return nil, err
	}
	for _, f := range left { // fetches that died with an earlier process
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	return &layerCache{dir: dir, store: st, owned: owned}, nil
}

func (c *layerCache) path(digest string) (string, error) {
	hexed, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(hexed); !ok || err != nil || len(raw) != sha256.Size {
		return "", fmt.Errorf("%w: layer digest %q: must be sha256: and 64 hex digits", ErrCorrupt, digest)
	}
	return filepath.Join(c.dir, hexed), nil
}

// open is the engine's way to a layer.
func (c *layerCache) open(ctx context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
	path, err := c.path(l.Digest)
	if err != nil {
		return nil, err
	}
	// A copy that was damaged is as good as none: the store has the layer.
	f, err := openLayerFile(path, l.Size)
	if err == nil || !(errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrCorrupt)) {
		return f, err
	}
	// One fetch serves all who wait. It must not fail for everybody because the first one gave up.
	done := c.flight.DoChan(path, func() (any, error) {
		return nil, c.owned(func(ctx context.Context) error { return c.fetch(ctx, l, path) })
	})
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case res := <-done:
		if res.Err != nil {
			return nil, res.Err
		}
	}
	return openLayerFile(path, l.Size)
}

func openLayerFile(path string, size int64) (overlaybd.Source, error) {
	f, err := overlaybd.OpenFile(path)
	if err != nil {
		return nil, err
	}
	if f.Size() != size {
		err := fmt.Errorf("%w: local copy %s has %d bytes, the layer %d", ErrCorrupt, path, f.Size(), size)
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetch copies a layer from the store and keeps it only if size and digest are right.
func (c *layerCache) fetch(ctx context.Context, l overlaybd.Layer, path string) error {
	blob, err := c.store.OpenBlob(ctx, l.Key)
	if err != nil {
		return fmt.Errorf("fetch layer %s: %w", l.Key, err)
	}
	defer blob.Close()
	// The directory may have been removed: it is a cache.
	err = os.MkdirAll(c.dir, 0o700)
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp(c.dir, ".fetch-*")
	}
	if err != nil {
		return fmt.Errorf("fetch layer %s: %w", l.Key, err)
	}
	sum := sha256.New()
	err = copyBlob(ctx, blob, io.MultiWriter(f, sum), l.Size)
	if err == nil {
		err = checkDigest(sum, l)
	}
	if err == nil {
		// The name is the digest and is not checked again, so the bytes must be on disk before the name is.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("fetch layer %s: %w", l.Key, err), os.Remove(f.Name()))
	}
	return nil
}

func copyBlob(ctx context.Context, blob store.Blob, w io.Writer, size int64) error {
	stored, err := blob.Size(ctx)
	if err != nil {
		return missing(err)
	}
	if stored != size {
		return fmt.Errorf("%w: %d bytes stored, %d recorded", ErrCorrupt, stored, size)
	}
	buf := make([]byte, min(copyChunk, size))
	for off := int64(0); off < size; {
		p := buf[:min(int64(len(buf)), size-off)]
		if _, err := blob.ReadRange(ctx, p, off); err != nil {
			return missing(err)
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}

// missing gives a read error its class: a layer that a record names and the store has not is damage, all else may pass.
func missing(err error) error {
	if errors.Is(err, store.ErrNotExist) {
		return fmt.Errorf("%w: the store has no such layer", ErrCorrupt)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func checkDigest(sum hash.Hash, l overlaybd.Layer) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != l.Digest {
		return fmt.Errorf("%w: digest is %s, recorded is %s", ErrCorrupt, got, l.Digest)
	}
	return nil
}

// keep moves a file whose digest is known into the cache. It replaces an equal one.
func (c *layerCache) keep(path, digest string) error {
	to, err := c.path(digest)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	return os.Rename(path, to)
}
