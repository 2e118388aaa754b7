package overlaybd

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// reclaimLimits say when space is given back.
type reclaimLimits struct {
	ratio float64
	floor int64 // bytes
}

// due reports whether a log has garbage enough. What Reclaim could not give back the last time it cannot the next time
// either, so only later garbage counts: else a disk of scattered sectors would be gone through for ever.
func (r reclaimLimits) due(l *lsmt.Log) bool {
	garbage, total := l.Garbage()
	garbage -= l.Unreclaimed()
	return garbage >= r.floor && float64(garbage) >= r.ratio*float64(total)
}

// Reclaim gives the space of overwritten and discarded data of the upper back to the file system, durable writes first:
// it is a Flush too. It returns how many bytes it freed. The device does this by itself (see WithReclaim); a host may
// want it before it runs out of space. Reads and writes go on.
//
// If the file system frees no parts of a file the error is errors.ErrUnsupported, and all of the space comes back when
// the layer is sealed and published.
func (w *Writable) Reclaim(ctx context.Context) (freed int64, err error) {
	ctx, done, err := w.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("overlaybd: %w", err)
	}
	defer done()
	w.writing.Lock()
	upper := w.upper
	w.writing.Unlock()
	if upper == nil { // sealed for good
		return 0, nil
	}
	freed, err = w.reclaim(ctx, upper)
	if err != nil {
		return freed, fmt.Errorf("overlaybd: %w", err)
	}
	return freed, nil
}

func (w *Writable) reclaim(ctx context.Context, l *lsmt.Log) (int64, error) {
	freed, err := l.Reclaim(ctx, func() { w.moves.Add(1) })
	return freed, w.note(err)
}

// begin registers long work: Close ends the context that it returns, and waits until done was called.
func (w *Writable) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	w.writing.Lock()
	defer w.writing.Unlock()
	if w.closed.Load() {
		return nil, nil, ErrClosed
	}
	if err := w.failure(); err != nil {
		return nil, nil, err
	}
	w.working.Add(1)
	ctx, cancel := w.untilClose(ctx)
	return ctx, func() { cancel(); w.working.Done() }, nil
}

// untilClose returns a context that Close ends.
func (w *Writable) untilClose(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-w.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// countWritten looks at the garbage now and then, and has it reclaimed beside the writers. The caller holds writing, so
// Close cannot be waiting for background work yet.
func (w *Writable) countWritten(n int64) {
	const record = 16 // bytes in the index file, or two of them
	if w.written += n + record; w.written < w.engine.reclaimAt.floor/16 {
		return
	}
	w.written = 0
	if w.noHoles.Load() || !w.engine.reclaimAt.due(w.upper) || !w.reclaiming.CompareAndSwap(false, true) {
		return
	}
	upper := w.upper
	w.background.Go(func() {
		defer w.reclaiming.Store(false)
		w.reclaimed(upper)
	})
}

// reclaimed is one Reclaim that nobody waits for.
func (w *Writable) reclaimed(l *lsmt.Log) {
	ctx, cancel := w.untilClose(context.Background())
	defer cancel()
	freed, err := w.reclaim(ctx, l)
	switch {
	case err == nil:
		w.engine.log.Debug("space given back", "path", l.Path(), "bytes", freed)
	case errors.Is(err, errors.ErrUnsupported):
		w.noHoles.Store(true)
		w.engine.log.Warn("overwritten data keeps its space until the next seal", "path", l.Path(), "error", err)
	case !errors.Is(err, context.Canceled):
		w.engine.log.Warn("reclaim failed", "path", l.Path(), "error", err) // tried again with more garbage
	}
}
