package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// openParallel bounds how many layers are opened at once: each holds up to 1 MiB while its index is read.
const openParallel = 16

// sealedStack is the sealed part of an open device.
type sealedStack struct {
	sources []*layerSource // bottom first; the position is the tag
	layers  []layerFacts   // as sources
	index   *lsmt.Index
}

// layerFacts is what is kept of an open layer beside the merged index.
type layerFacts struct {
	uuid, parent uuid.UUID
	virtualSize  int64
	liveBytes    int64
	segments     int
}

// opener opens one layer's stored bytes.
type opener func(ctx context.Context) (Source, error)

// openSealed opens layers, bottom first, and resolves them to one index. want holds the uuid that each must have;
// uuid.Nil: any.
func (e *Engine) openSealed(ctx context.Context, open []opener, want []uuid.UUID) (*sealedStack, error) {
	s := &sealedStack{sources: make([]*layerSource, len(open)), layers: make([]layerFacts, len(open))}
	if err := e.openInto(ctx, s, open, want); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (e *Engine) openInto(ctx context.Context, s *sealedStack, open []opener, want []uuid.UUID) error {
	lists := make([][]lsmt.Segment, len(open))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(openParallel)
	for i := range open {
		g.Go(func() error {
			l, err := e.openLayer(gctx, s, i, open[i], want[i])
			if err != nil {
				return fmt.Errorf("overlaybd: open layer %d of %d (uuid %s): %w", i+1, len(open), want[i], err)
			}
			lsmt.SetTags(l.Segments, uint8(i))
			lists[i] = l.Segments
			s.layers[i] = layerFacts{l.UUID, l.Parent, l.VirtualSize, l.MappedBytes(), len(l.Segments)}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	merged, err := lsmt.Merge(lists)
	if err != nil {
		return fmt.Errorf("overlaybd: %w", err)
	}
	s.index = lsmt.NewIndex(merged)
	return nil
}

// openLayer opens layer i. The source is s's to close from the moment it is open.
func (e *Engine) openLayer(
	ctx context.Context, s *sealedStack, i int, open opener, want uuid.UUID,
) (*lsmt.Layer, error) {
	src, err := open(ctx)
	if err != nil {
		return nil, err
	}
	ls := newLayerSource(src, want.String(), e.readTimeout)
	s.sources[i] = ls
	// While it is being opened, the caller's context ends its reads; later the device's Close does.
	ls.watch(ctx.Done(), context.Canceled)
	read := lsmt.OpenLayer
	if isRemote(src) {
		read = lsmt.OpenTail // the beginning would be one request more
	}
	l, err := read(ls, src.Size())
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	if want != uuid.Nil && l.UUID != want {
		return nil, &lsmt.CorruptError{Part: "trailer", Offset: src.Size() - lsmt.HeaderSize,
			Detail: fmt.Sprintf("uuid %s, want %s", l.UUID, want)}
	}
	ls.name = l.UUID.String()
	return l, nil
}

// watch hands the reads of all layers over to a device.
func (s *sealedStack) watch(done <-chan struct{}) {
	for _, ls := range s.sources {
		ls.watch(done, ErrClosed)
	}
}

// files returns the sources by tag, with room for the data files of two logs.
func (s *sealedStack) files() []io.ReaderAt {
	files := make([]io.ReaderAt, 0, len(s.sources)+2)
	for _, ls := range s.sources {
		files = append(files, ls)
	}
	return files
}

// uuidBelow returns the uuid of the layer below position i, or uuid.Nil.
func (s *sealedStack) uuidBelow(i int) uuid.UUID {
	if i == 0 {
		return uuid.Nil
	}
	return s.layers[i-1].uuid
}

func (s *sealedStack) close() error {
	var err error
	for _, ls := range s.sources {
		if ls != nil {
			err = errors.Join(err, ls.Close())
		}
	}
	return err
}

// openPublished returns the opener of a layer of the repository.
func (e *Engine) openPublished(l Layer) opener {
	return func(ctx context.Context) (Source, error) {
		src, err := e.cfg.Open(ctx, l)
		if err != nil {
			return nil, err
		}
		if l.Size != 0 && src.Size() != l.Size {
			err := &lsmt.CorruptError{Part: "layer", Detail: fmt.Sprintf("%d bytes, want %d", src.Size(), l.Size)}
			return nil, errors.Join(err, src.Close())
		}
		if remote, ok := src.(RemoteSource); ok {
			if err := prepare(ctx, l, remote); err != nil {
				return nil, errors.Join(err, src.Close())
			}
		}
		return e.unwrap(ctx, l, src)
	}
}

// layerUUID parses a layer's uuid. A layer without one has uuid.Nil, as many foreign layers do.
func layerUUID(l Layer) (uuid.UUID, error) {
	if l.UUID == "" {
		return uuid.Nil, nil
	}
	u, err := uuid.Parse(l.UUID)
	if err != nil {
		return uuid.Nil, lsmt.Invalid("layer uuid", fmt.Sprintf("%q", l.UUID), "a uuid in canonical form")
	}
	return u, nil
}

func layerUUIDs(s Stack) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, len(s.Layers))
	for i, l := range s.Layers {
		id, err := layerUUID(l)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}
