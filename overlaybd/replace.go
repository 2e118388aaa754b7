package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// ReplaceLayers moves the device from a run of layers of its published stack (see Stack) to others that show the
// same: what MergeParts made of that run, stored in the meantime. Content is that of the MergedRun. Reads and writes
// go on; a read of the old layers that is under way is made again in the new ones, and then the old ones are closed.
//
// Before anything changes, the new layers are opened, as after a restart, and read whole: if they do not map the same
// sectors to the same bytes the error is ErrCorrupt, and the device stays as it is. It is ErrInvalid if the stack
// does not have the run (another call was first), if there are more new layers than old ones, or if their topmost has
// another uuid, to which the layer above would not fit.
//
// Nothing of it is stored in the directory. The published stack that it is opened with the next time may be the old
// one or the new one, so the record may change after the device has moved, or not at all.
func (w *Writable) ReplaceLayers(ctx context.Context, run, by []Layer, content string) error {
	if err := w.replaceLayers(ctx, run, by, content); err != nil {
		return fmt.Errorf("overlaybd: replace %d layers by %d: %w", len(run), len(by), err)
	}
	return nil
}

func (w *Writable) replaceLayers(ctx context.Context, run, by []Layer, content string) error {
	if len(by) == 0 || len(by) > len(run) {
		return lsmt.Invalid("replacement", fmt.Sprintf("of %d layers", len(by)), fmt.Sprintf("1 to %d", len(run)))
	}
	ctx, done, err := w.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := w.findRun(run); err != nil { // before the bytes are read for nothing
		return err
	}
	fresh, err := w.engine.openLayers(ctx, by)
	if err != nil {
		return err
	}
	if err := w.engine.verifyContent(ctx, fresh, content); err != nil {
		if ctx.Err() != nil { // whatever it was that noticed
			err = ctx.Err()
		}
		return errors.Join(err, fresh.close())
	}
	fresh.watch(w.done)
	if err := w.moveTo(run, by, fresh); err != nil {
		return errors.Join(err, fresh.close())
	}
	return nil
}

// verifyContent reads all that layers show and compares it with the digest of a MergedRun.
func (e *Engine) verifyContent(ctx context.Context, s *sealedStack, want string) error {
	view := lsmt.View{Base: s.index, Files: s.files()}
	h := newContentDigest(s.index.Segments())
	pace := e.pace(ctx)
	buf := make([]byte, 1<<20)
	err := lsmt.Runs(s.index.Segments(), func(lba, n uint64, zeroed bool) error {
		for off, end := int64(lba)*SectorSize, int64(lba+n)*SectorSize; off < end && !zeroed; {
			p := buf[:min(int64(len(buf)), end-off)]
			if err := view.ReadAt(p, off); err != nil {
				return err
			}
			h.Write(p)
			if err := pace(len(p)); err != nil {
				return err
			}
			off += int64(len(p))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if got := digestText(h); got != want {
		return &lsmt.CorruptError{Part: "merged layers", Detail: fmt.Sprintf("content is %s, want %s", got, want)}
	}
	return nil
}

// span says which layers of the device a layer of the published stack stands for: order[from:to].
type span struct{ at, from, to int }

// findRun returns where a run of layers is in the published stack (at) and in the device (from, to).
func (w *Writable) findRun(run []Layer) (span, error) {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	return w.locateRun(run)
}

func (w *Writable) locateRun(run []Layer) (s span, err error) {
	for s.at = 0; s.at+len(run) <= len(w.stack.Layers); s.at++ {
		if slices.EqualFunc(w.stack.Layers[s.at:s.at+len(run)], run, sameKey) {
			for _, n := range w.spans[s.at : s.at+len(run)] {
				s.to += n
			}
			s.to += s.from
			return s, nil
		}
		s.from += w.spans[s.at]
	}
	return s, lsmt.Invalid("run", fmt.Sprintf("of %d layers", len(run)), "one of the published stack")
}

// sameKey compares what names a layer. That a caller knows its tail, or not, makes it no other.
func sameKey(a, b Layer) bool { return a.Key == b.Key && a.UUID == b.UUID && a.Digest == b.Digest }

// moveTo makes fresh, opened from by, the device's layers in the place of run.
func (w *Writable) moveTo(run, by []Layer, fresh *sealedStack) error {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	s, err := w.locateRun(run)
	if err != nil {
		return err
	}
	if w.closed.Load() {
		return ErrClosed
	}
	if old, top := w.order[s.to-1].uuid, fresh.uuidBelow(len(by)); old != top {
		return lsmt.Invalid("uuid of the topmost layer", top, fmt.Sprintf("that of the run, %s", old))
	}
	old := slices.Clone(w.order[s.from:s.to])
	slots := make([]placedLayer, len(by))
	for i := range by {
		slots[i] = placedLayer{old[i].tag, fresh.layers[i].uuid}
	}
	next, err := w.viewWith(old, slots, fresh)
	if err != nil {
		return err
	}
	w.writing.Lock()
	w.view.Store(next)
	w.writing.Unlock()
	w.moves.Add(1) // before the old layers close: their readers look again

	w.order = slices.Replace(w.order, s.from, s.to, slots...)
	w.spans = slices.Replace(w.spans, s.at, s.at+len(run), slices.Repeat([]int{1}, len(by))...)
	w.stack.Layers = slices.Replace(slices.Clone(w.stack.Layers), s.at, s.at+len(run), by...)
	w.release(old)
	for i, p := range slots {
		w.base.place(int(p.tag), fresh.sources[i])
	}
	return nil
}

// viewWith returns the present view with fresh layers in slots, in the place of old ones.
func (w *Writable) viewWith(old, slots []placedLayer, fresh *sealedStack) (*lsmt.View, error) {
	v := w.view.Load()
	segs := slices.Clone(fresh.index.Segments())
	for i, seg := range segs {
		segs[i] = seg.WithTag(slots[seg.Tag()].tag)
	}
	next := &lsmt.View{Logs: v.Logs, Files: slices.Clone(v.Files)}
	var gone [256]bool
	for _, p := range old {
		gone[p.tag] = true
		next.Files[p.tag] = nil
	}
	for i, p := range slots {
		next.Files[p.tag] = fresh.sources[i]
	}
	base, err := lsmt.Rebase(v.Base.Segments(), gone, lsmt.NewIndex(segs))
	if err != nil {
		return nil, err
	}
	next.Base = lsmt.NewIndex(base)
	return next, nil
}

// placedLayer is a sealed layer of an open device: its slot among the files, and its uuid.
type placedLayer struct {
	tag  uint8
	uuid uuid.UUID
}

// release closes layers that no view has any more. Those who read them through an older one look again.
func (w *Writable) release(old []placedLayer) {
	for _, p := range old {
		err := w.base.closeAt(int(p.tag))
		w.retired = slices.DeleteFunc(w.retired, func(l *lsmt.Log) bool {
			if l.UUID() != p.uuid || l.Tag() != p.tag {
				return false
			}
			err = errors.Join(err, l.Release())
			return true
		})
		if err != nil {
			w.engine.log.Warn("close a replaced layer", "uuid", p.uuid, "error", err) // nothing depends on it
		}
	}
}

// place makes src the source of a slot, which close closes.
func (s *sealedStack) place(slot int, src *layerSource) {
	for len(s.sources) <= slot {
		s.sources = append(s.sources, nil)
	}
	s.sources[slot] = src
}

// closeAt closes the source of a slot, if it has one.
func (s *sealedStack) closeAt(slot int) error {
	if slot >= len(s.sources) || s.sources[slot] == nil {
		return nil
	}
	src := s.sources[slot]
	s.sources[slot] = nil
	return src.Close()
}
