package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Hidden volumes of the reserved tenant hold what many volumes start from: here an empty file system of one size. A new
// empty volume is a fork of one, so only the first of a size formats anything.

// baseCache remembers what was read of the hidden volumes. A child checks its references again before it counts, so a stale
// entry costs a round, never data.
type baseCache struct {
	flight singleflight.Group

	mu    sync.Mutex
	known map[string]copied
}

func (c *baseCache) get(name string) (copied, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.known[name]
	return b, ok
}

func (c *baseCache) put(name string, b copied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[name] = b
}

func (c *baseCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.known)
}

// baseName is what the hidden volume is found by: everything that its bytes depend on.
func baseName(size int64, writer string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "empty ext4\nsize %d\nwriter %s\n", size, writer))
	return "empty-" + hex.EncodeToString(sum[:16])
}

// base returns the hidden volume with an empty file system of the size, making it if there is none.
func (r *Repository) base(ctx context.Context, size int64) (copied, error) {
	if r.formatter == nil {
		return copied{}, fmt.Errorf("%w: empty volume: the repository was opened without a Formatter", ErrUnsupported)
	}
	name := baseName(size, r.formatter.Version())
	if b, ok := r.bases.get(name); ok {
		return b, nil
	}
	// Several creates of one size at once wait for one of them. The work is not cancelled with whoever began it.
	res := r.bases.flight.DoChan(name, func() (b any, err error) {
		err = r.owned(func(ctx context.Context) (err error) {
			b, err = r.findBase(ctx, name, size)
			return err
		})
		return b, err
	})
	select {
	case <-ctx.Done():
		return copied{}, context.Cause(ctx)
	case got := <-res:
		if got.Err != nil {
			return copied{}, fmt.Errorf("empty file system of %d bytes: %w", size, got.Err)
		}
		return got.Val.(copied), nil
	}
}

func (r *Repository) findBase(ctx context.Context, name string, size int64) (copied, error) {
	h := r.hidden()
	holder, err := h.lookupName(ctx, name)
	if err != nil {
		return copied{}, err
	}
	var gen genlog.Generation[record.Volume]
	if holder.taken && holder.volume.State.Status == record.StatusReady {
		gen = holder.volume
	} else if gen, err = r.makeBase(ctx, name, size, holder); err != nil {
		return copied{}, err
	}
	b, err := h.copyVolume(gen)
	if err == nil {
		r.bases.put(name, b)
	}
	return b, err
}

// makeBase formats, uploads, and claims the name last: two nodes that do it at once make two, and the one whose claim is
// refused removes its own and uses the other's.
func (r *Repository) makeBase(ctx context.Context, name string, size int64, holder nameHolder) (
	genlog.Generation[record.Volume], error) {
	none := genlog.Generation[record.Volume]{}
	if err := r.formatter.Check(ctx); err != nil {
		return none, err // before anything is written anywhere
	}
	dir, err := os.MkdirTemp(r.tmp, "format-*")
	if err != nil {
		return none, err
	}
	defer os.RemoveAll(dir)
	sealed, err := r.format(ctx, dir, size)
	if err != nil {
		return none, err
	}
	h := r.hidden()
	gen, err := h.uploadNew(ctx, name, size, sealed)
	if err != nil {
		return none, err
	}
	err = h.claimFrom(ctx, name, record.Name{Volume: gen.State.ID, Mode: ReadOnly, CreatedAt: gen.State.CreatedAt}, holder)
	if taken := (*nameTakenError)(nil); errors.As(err, &taken) {
		if _, err := h.deleteReadOnly(ctx, gen); err != nil {
			r.log.Warn("duplicate hidden volume left to the collector", "id", gen.State.ID, "error", err)
		}
		return h.read(ctx, taken.holder.State.ID)
	}
	return gen, err
}

// format makes the layers of an empty file system in dir.
func (r *Repository) format(ctx context.Context, dir string, size int64) (sealed []overlaybd.SealedLayer, err error) {
	dev, err := r.engine.OpenWritable(ctx, filepath.Join(dir, "drive"), overlaybd.Stack{VirtualSize: size})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if err := r.formatter.Format(ctx, dev); err != nil {
		return nil, err
	}
	return dev.Seal(ctx, overlaybd.SealOptions{Final: true})
}

// uploadNew makes a hidden ro volume of sealed layers, ready but not yet found by its name.
func (m *Manager) uploadNew(ctx context.Context, name string, size int64, sealed []overlaybd.SealedLayer) (
	genlog.Generation[record.Volume], error) {
	state, err := m.newVolume(CreateOptions{Name: name, Mode: ReadOnly}, copied{stack: record.Stack{VirtualSize: size}})
	if err != nil {
		return genlog.Generation[record.Volume]{}, err
	}
	for range sealed {
		state.Keys = append(state.Keys, record.LayerKey(state.ID, 0, newNonce()))
	}
	log := m.volumeLog(state.ID)
	gen, err := log.Create(ctx, state)
	if err != nil {
		return gen, err
	}
	layers := make([]record.Layer, len(sealed))
	for i, s := range sealed {
		if layers[i], err = m.r.uploadOnce(ctx, s, state.Keys[i]); err != nil {
			abandon(ctx, m.r, log, gen)
			return gen, err
		}
	}
	content := record.Content{Cut: newNonce(), Consistency: Clean, PublishedAt: m.r.now()}
	first, err := log.AppendTo(ctx, gen, record.FirstContent(0, layers, content))
	if err == nil {
		gen, err = log.AppendTo(ctx, first, record.Ready[record.Volume](first.State.Stack))
	}
	if err != nil {
		abandon(ctx, m.r, log, gen)
	}
	return gen, err
}
