package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Merge writes a run of layers, bottom first, as one canonical layer to w: what is visible of them from above, zeroes
// included, because they hide what is below the run. The result has the uuid of the run's topmost layer, which it returns,
// and the parent of its lowest, so that it takes the run's place in a stack. The same layers give the same bytes.
//
// A run whose result would have more segments than a layer may is ErrInvalid, before anything is written.
func (e *Engine) Merge(ctx context.Context, run []Layer, w io.Writer) (uuid string, err error) {
	uuid, err = e.merge(ctx, run, w)
	if err != nil {
		return "", fmt.Errorf("overlaybd: merge %d layers: %w", len(run), err)
	}
	return uuid, nil
}

func (e *Engine) merge(ctx context.Context, run []Layer, w io.Writer) (_ string, err error) {
	if len(run) < 2 || len(run) > lsmt.MaxLowers {
		return "", lsmt.Invalid("run", fmt.Sprintf("of %d layers", len(run)), fmt.Sprintf("2 to %d", lsmt.MaxLowers))
	}
	ids, err := layerUUIDs(Stack{Layers: run})
	if err != nil {
		return "", err
	}
	open := make([]opener, len(run))
	for i, l := range run {
		open[i] = e.openPublished(l)
	}
	s, err := e.openSealed(ctx, open, ids)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.watch(ctx.Done())
	bottom, top := s.layers[0], s.layers[len(run)-1]
	o := lsmt.CompactOptions{VirtualSize: top.virtualSize, UUID: top.uuid, Parent: bottom.parent}
	if err := lsmt.Compact(ctx, w, s.index.Segments(), s.files(), o); err != nil {
		return "", err
	}
	return top.uuid.String(), nil
}
