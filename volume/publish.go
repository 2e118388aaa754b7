package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// writerVersion names the code that turns a sealed layer into the bytes of an upload. It changes with them.
const writerVersion = "lsmt/1 zfile-lz4-4k/1"

// upload sends those sealed layers that the record's stack does not have, bottom first, each under its own declared key.
func (s *Session) upload(ctx context.Context, sealed []overlaybd.SealedLayer) ([]record.Layer, error) {
	var layers []record.Layer
	for _, l := range sealed {
		have := func(r record.Layer) bool { return r.UUID == l.UUID }
		if slices.ContainsFunc(s.gen.State.Stack.Layers, have) {
			continue
		}
		up, err := s.uploadLayer(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("upload layer %s: %w", l.UUID, err)
		}
		layers = append(layers, up)
	}
	return layers, nil
}

// uploadLayer packs one layer, binds it to a declared key in the journal before its first byte is sent, and sends it. A key
// whose binding is to other bytes is never used again: another one is declared first.
func (s *Session) uploadLayer(ctx context.Context, l overlaybd.SealedLayer) (record.Layer, error) {
	packed, err := s.m.r.packSealed(ctx, l)
	if err != nil {
		return record.Layer{}, err
	}
	up, bound := s.entry.Uploads[l.UUID]
	if !bound || up.Digest != packed.digest {
		if up, err = s.bind(ctx, l.UUID, packed); err != nil {
			return record.Layer{}, errors.Join(err, os.Remove(packed.path))
		}
	}
	return s.m.r.send(ctx, l, packed, up.Key)
}

func (s *Session) bind(ctx context.Context, uuid string, p packed) (journal.Upload, error) {
	key, err := s.freeKey(ctx)
	if err != nil {
		return journal.Upload{}, err
	}
	up := journal.Upload{Key: key, Writer: writerVersion, Digest: p.digest, Size: p.size}
	uploads := maps.Clone(s.entry.Uploads)
	if uploads == nil {
		uploads = map[string]journal.Upload{}
	}
	entry := s.entry
	if old, rebound := uploads[uuid]; rebound {
		entry.Spent = append(slices.Clone(entry.Spent), old.Key)
	}
	uploads[uuid] = up
	entry.Uploads = uploads
	if err := s.m.r.journal.Put(entry); err != nil {
		return up, err
	}
	s.entry = entry
	return up, nil
}

// freeKey returns a declared key that no upload of this session is or was bound to, declaring one if there is none.
func (s *Session) freeKey(ctx context.Context) (string, error) {
	for {
		for _, key := range s.gen.State.Keys {
			if !s.bound(key) {
				return key, nil
			}
		}
		if err := s.append(ctx, record.Declare(s.grant.Epoch, s.grant.Sandbox, newNonces(1))); err != nil {
			return "", err
		}
	}
}

func (s *Session) bound(key string) bool {
	for _, up := range s.entry.Uploads {
		if up.Key == key {
			return true
		}
	}
	return slices.Contains(s.entry.Spent, key)
}

// packed is a layer's live data as one file, on the way into the store.
type packed struct {
	path   string
	digest string
	size   int64
}

// pack compresses a layer into a temporary file and takes its digest on the way.
func (r *Repository) pack(write func(io.Writer) error) (p packed, err error) {
	f, err := os.CreateTemp(r.tmp, "upload-*")
	if err != nil {
		return p, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	sum := sha256.New()
	var n counter
	z, err := overlaybd.NewZFileWriter(io.MultiWriter(f, sum, &n))
	if err != nil {
		return p, err
	}
	if err := write(z); err != nil {
		return p, err // without Close: that would complete it
	}
	if err := z.Close(); err != nil {
		return p, err
	}
	// It becomes a copy in the layer cache, where its name is its digest and its bytes are not checked again.
	if err := f.Sync(); err != nil {
		return p, err
	}
	return packed{path: f.Name(), digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), size: int64(n)}, nil
}

// packSealed packs a sealed layer's live data. The same layer gives the same bytes each time.
func (r *Repository) packSealed(ctx context.Context, l overlaybd.SealedLayer) (packed, error) {
	return r.pack(func(w io.Writer) error { return l.Compact(ctx, w) })
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// uploadOnce packs and sends a layer under a key that is used for nothing else.
func (r *Repository) uploadOnce(ctx context.Context, l overlaybd.SealedLayer, key string) (record.Layer, error) {
	p, err := r.packSealed(ctx, l)
	if err != nil {
		return record.Layer{}, err
	}
	return r.send(ctx, l, p, key)
}

// send uploads a packed layer and keeps the file as this node's copy. A key that is taken holds these very bytes: it was
// bound to them before the first was sent.
func (r *Repository) send(ctx context.Context, l overlaybd.SealedLayer, p packed, key string) (record.Layer, error) {
	src, err := store.FileSource(p.path)
	if err != nil {
		return record.Layer{}, err
	}
	tail, err := tailSize(p)
	if err != nil {
		return record.Layer{}, errors.Join(err, os.Remove(p.path))
	}
	err = r.store.PutBlob(ctx, key, src)
	if err != nil && !errors.Is(err, store.ErrExists) {
		return record.Layer{}, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), os.Remove(p.path))
	}
	if err := r.layers.keep(p.path, p.digest); err != nil {
		return record.Layer{}, err
	}
	return record.Layer{Layer: overlaybd.Layer{Key: key, Digest: p.digest, Size: p.size, UUID: l.UUID,
		Codec: overlaybd.CodecZFile, Tail: tail}}, nil
}
