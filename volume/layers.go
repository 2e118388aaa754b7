package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/blockcache"
	"github.com/sandvol/sandvol/volume/store"
)

// layerCache is the node's way to stored layers: what is read of them is kept on the node's disk, under their digest. Losing
// the directory loses nothing.
type layerCache struct {
	cache     *blockcache.Cache
	store     store.Store
	unchecked bool // layers without checksums are used without comparing them with their digest first
	log       *slog.Logger
}

func openLayerCache(dir string, st store.Store, s settings) (*layerCache, error) {
	left, err := filepath.Glob(filepath.Join(dir, ".fetch-*"))
	if err != nil {
		return nil, err
	}
	for _, f := range left { // fetches of an older version that died with its process
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	cache, err := blockcache.Open(dir, append(s.local.options(), blockcache.WithLogger(s.log))...)
	if err != nil {
		return nil, err
	}
	return &layerCache{cache: cache, store: st, unchecked: s.local.unchecked, log: s.log}, nil
}

// layerID is a layer's name in the cache: the hex digits of its digest. Equal bytes are kept once, whatever their keys.
func layerID(digest string) (string, error) {
	hexed, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(hexed); !ok || err != nil || len(raw) != sha256.Size {
		return "", fmt.Errorf("%w: layer digest %q: must be sha256: and 64 hex digits", ErrCorrupt, digest)
	}
	return hexed, nil
}

// open is the engine's way to a layer. It sends no request.
func (c *layerCache) open(_ context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
	src, err := c.layer(l)
	if err != nil {
		return nil, err
	}
	return src, nil
}

func (c *layerCache) layer(l overlaybd.Layer) (*storedLayer, error) {
	id, err := layerID(l.Digest)
	if err != nil {
		return nil, err
	}
	at, err := c.cache.Layer(id, l.Size, &blobRanges{c.store, l.Key})
	if err != nil {
		return nil, err
	}
	return &storedLayer{Layer: at, stored: l, unchecked: c.unchecked}, nil
}

// keep moves a file, whose digest the caller has taken, into the cache. The layer is in the store, so a node that cannot keep
// it goes on without.
func (c *layerCache) keep(path, digest string) error {
	id, err := layerID(digest)
	if err != nil {
		return err
	}
	if err := c.cache.Keep(path, id); err != nil {
		c.log.Warn("a published layer is not kept on this node", "digest", digest, "error", errors.Join(err, os.Remove(path)))
	}
	return nil
}

func (c *layerCache) close() error { return c.cache.Close() }

// storedLayer is a layer whose bytes come by range.
type storedLayer struct {
	*blockcache.Layer
	stored    overlaybd.Layer
	unchecked bool
}

var _ overlaybd.RemoteSource = (*storedLayer)(nil)

// Verify fetches the whole layer and compares it with its digest, unless the host has said that its store need not be checked.
func (l *storedLayer) Verify(ctx context.Context) error {
	if l.unchecked {
		return nil
	}
	err := l.Layer.Verify(ctx, func(r io.Reader) error {
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			return err
		}
		return checkDigest(sum, l.stored)
	})
	if errors.Is(err, blockcache.ErrNoRoom) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return l.named(err)
}

// Prefetch implements overlaybd.RemoteSource.
func (l *storedLayer) Prefetch(ctx context.Context, off, n int64) error {
	return l.named(l.Layer.Prefetch(ctx, off, n))
}

func (l *storedLayer) named(err error) error {
	if err != nil {
		err = fmt.Errorf("fetch layer %s: %w", l.stored.Key, err)
	}
	return err
}

// blobRanges reads ranges of one blob. It has nothing to close: a handle on a blob costs no request.
type blobRanges struct {
	store store.Store
	key   string
}

func (b *blobRanges) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	blob, err := b.store.OpenBlob(ctx, b.key)
	if err != nil {
		return 0, missing(err)
	}
	n, err := blob.ReadRange(ctx, p, off)
	if err = errors.Join(err, blob.Close()); n < len(p) {
		return n, missing(err)
	}
	return n, nil
}

// missing gives a read error its class: a layer that a record names and the store has not, or has not whole, is damage, and
// asking again will not help. All else may pass.
func missing(err error) error {
	switch {
	case errors.Is(err, store.ErrNotExist):
		return fmt.Errorf("%w: the store has no such layer (%w)", ErrCorrupt, blockcache.ErrFinal)
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("%w: the stored layer ends before it should (%w)", ErrCorrupt, blockcache.ErrFinal)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func checkDigest(sum hash.Hash, l overlaybd.Layer) error {
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != l.Digest {
		return fmt.Errorf("%w: digest is %s, recorded is %s", ErrCorrupt, got, l.Digest)
	}
	return nil
}

// tailSize returns how much of a packed layer's end a node reads to open it. A layer that cannot be opened is not published.
func tailSize(p packed) (n int64, err error) {
	f, err := os.Open(p.path)
	if err != nil {
		return 0, err
	}
	defer f.Close() // only read
	return overlaybd.TailSize(f, p.size, overlaybd.CodecZFile)
}
