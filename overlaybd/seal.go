package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/internal/disk"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// SealOptions say what a Seal leaves behind.
type SealOptions struct {
	// Final makes no fresh upper: the device refuses writes and discards (ErrFinal) from the Seal on, also if that fails.
	// Reads go on. Thaw ends it.
	Final bool
}

// SealedLayer is a layer on local disk that the published stack does not have yet.
type SealedLayer struct {
	UUID, ParentUUID string // canonical lower-case text; the null uuid if there is no layer below
	Path             string // of the sealed file; it is there until the device's directory is opened with a newer stack
	VirtualSize      int64  // bytes
	FileSize         int64  // bytes, overwritten data included
	LiveBytes        int64  // bytes of the disk that the layer stores
	Segments         int
}

// Compact writes the layer as one canonical layer to w: live data only, uuid and parent kept. The same layer gives the
// same bytes each time.
func (s SealedLayer) Compact(ctx context.Context, w io.Writer) error {
	err := s.open(func(f *os.File, l *lsmt.Layer) error {
		return lsmt.Compact(ctx, w, l.Segments, []io.ReaderAt{f},
			lsmt.CompactOptions{VirtualSize: l.VirtualSize, UUID: l.UUID, Parent: l.Parent})
	})
	if err != nil {
		return fmt.Errorf("overlaybd: compact layer %s: %w", s.UUID, err)
	}
	return nil
}

// CompactSize returns the number of bytes that Compact writes. It reads the layer's index only.
func (s SealedLayer) CompactSize() (n int64, err error) {
	err = s.open(func(_ *os.File, l *lsmt.Layer) error {
		n = lsmt.CompactSize(l.Segments)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("overlaybd: size of layer %s: %w", s.UUID, err)
	}
	return n, nil
}

// open calls use with the layer's file and index.
func (s SealedLayer) open(use func(*os.File, *lsmt.Layer) error) error {
	f, err := os.Open(s.Path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	l, err := lsmt.OpenLayer(f, s.FileSize)
	if err != nil {
		return err
	}
	if l.UUID.String() != s.UUID {
		return &lsmt.CorruptError{Part: "trailer", Offset: s.FileSize - lsmt.HeaderSize,
			Detail: fmt.Sprintf("uuid %s, want %s", l.UUID, s.UUID)}
	}
	return use(f, l)
}

// Seal makes a layer of everything written before it, on local disk, fsynced, directory included. It returns all sealed
// layers of the directory that are not in the published stack yet, bottom first: those of earlier seals and rolls too.
// When nothing was written since the last one it seals nothing.
//
// A Seal that fails can be repeated, unless the error is ErrFailed.
func (w *Writable) Seal(ctx context.Context, o SealOptions) ([]SealedLayer, error) {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := w.note(w.seal(o)); err != nil {
		return nil, fmt.Errorf("overlaybd: seal: %w", err)
	}
	return slices.Clone(w.sealed[w.published:]), nil
}

func (w *Writable) seal(o SealOptions) error {
	w.writing.Lock()
	err := w.failure()
	if w.closed.Load() {
		err = ErrClosed
	}
	if o.Final && err == nil {
		w.final = true
	}
	final := w.final
	w.writing.Unlock()
	if err != nil {
		return err
	}
	// What a crash or a failed seal left unsealed below the upper comes first.
	if err := w.sealBelow(); err != nil {
		return err
	}
	logs := w.view.Load().Logs
	if len(logs) == 0 || logs[0].Segments() == 0 {
		return nil
	}
	if final {
		return w.sealLog(logs[0])
	}
	if err := w.pushUpper(); err != nil {
		return err
	}
	return w.sealBelow()
}

// roll replaces an upper that has as many segments as a layer may.
func (w *Writable) roll(full *lsmt.Log) error {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	w.writing.Lock()
	settled := w.upper != full || w.refusal() != nil // another writer was first, or the caller's next try finds why not
	w.writing.Unlock()
	if settled {
		return nil
	}
	return w.note(w.seal(SealOptions{}))
}

// pushUpper puts a fresh upper on top. Files first, then the state that names them, then the first write into it: a
// crash finds either a state that does not know the new upper, or an upper that exists and is empty.
func (w *Writable) pushUpper() error {
	v := w.view.Load()
	fresh, err := w.createUpper(v)
	if err != nil {
		return err
	}
	state := w.state
	state.Uppers = append([]localLayer{localLayerOf(fresh, layersUsed(v.Files))}, state.Uppers...)
	if err := w.save(state); err != nil {
		// The files stay: the state on disk may already name them. Otherwise the next open removes them.
		return errors.Join(err, fresh.Close())
	}
	next := &lsmt.View{
		Logs:  append([]*lsmt.Log{fresh}, v.Logs...),
		Base:  v.Base,
		Files: withFile(v.Files, int(fresh.Tag()), fresh.Data()),
	}
	w.writing.Lock()
	w.upper = fresh
	w.view.Store(next)
	w.writing.Unlock()
	return nil
}

// createUpper makes the files of an upper above everything in v, fsynced, directory included.
func (w *Writable) createUpper(v *lsmt.View) (*lsmt.Log, error) {
	if n := layersUsed(v.Files); n > lsmt.MaxLowers {
		return nil, tooManyLayers(n)
	}
	o := lsmt.LogOptions{
		Parent: w.topUUID(v), VirtualSize: w.size.Load(), Tag: uint8(freeSlot(v.Files)), BootID: w.boot,
	}
	if len(v.Logs) > 0 {
		o.Below = v.Logs[0]
	}
	var err error
	if o.UUID, err = uuid.NewRandom(); err != nil {
		return nil, err
	}
	fresh, err := lsmt.CreateLog(w.dir.logPaths(o.UUID), o)
	if err != nil {
		return nil, err
	}
	if err := disk.SyncDir(w.dir.path); err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	return fresh, nil
}

func tooManyLayers(n int) error {
	return lsmt.Invalid("stack", fmt.Sprintf("of %d layers", n), fmt.Sprintf("at most %d", lsmt.MaxLowers))
}

// topUUID is the uuid of whatever is on top.
func (w *Writable) topUUID(v *lsmt.View) uuid.UUID {
	if len(v.Logs) > 0 {
		return v.Logs[0].UUID()
	}
	return w.top
}

// sealBelow seals the log below the upper, if there is one.
func (w *Writable) sealBelow() error {
	if logs := w.view.Load().Logs; len(logs) == 2 {
		return w.sealLog(logs[1])
	}
	return nil
}

// sealLog seals the lowest log and moves it among the layers. The file first, then the state that calls it sealed,
// then the index that the file no longer needs goes: a crash in between opens the log again.
func (w *Writable) sealLog(l *lsmt.Log) error {
	v := w.view.Load()
	if n := layersUsed(v.Files) - len(v.Logs) + 1; n > lsmt.MaxLowers {
		return tooManyLayers(n)
	}
	segs, err := l.Seal()
	if err != nil {
		return err
	}
	merged, err := lsmt.Merge([][]lsmt.Segment{v.Base.Segments(), segs})
	if err != nil {
		return err
	}
	info, err := l.Data().Stat()
	if err != nil {
		return err
	}
	n := len(w.state.Uppers) - 1
	state := w.state
	state.Sealed = append(slices.Clone(state.Sealed), state.Uppers[n])
	state.Uppers = state.Uppers[:n]
	if err := w.save(state); err != nil {
		return err
	}
	w.sealed = append(w.sealed, SealedLayer{
		UUID: l.UUID().String(), ParentUUID: l.Parent().String(), Path: l.Path(),
		VirtualSize: l.VirtualSize(), FileSize: info.Size(), LiveBytes: l.LiveBytes(), Segments: len(segs),
	})
	w.order = append(w.order, placedLayer{l.Tag(), l.UUID()})
	w.top = l.UUID()
	next := &lsmt.View{Logs: v.Logs[:len(v.Logs)-1], Base: lsmt.NewIndex(merged), Files: v.Files}
	w.writing.Lock()
	if w.upper == l {
		w.upper = nil
	}
	w.view.Store(next)
	w.writing.Unlock()
	for _, above := range next.Logs {
		above.Detach()
	}
	w.retired = append(w.retired, l)
	if err := l.Retire(); err != nil {
		w.engine.log.Warn("remove index of a sealed log", "path", l.Path(), "error", err) // the next open does
	}
	return nil
}

func (w *Writable) save(s localState) error {
	s.Format = stateFormat
	if err := w.dir.save(s); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	w.state, w.saved = s, s
	return nil
}

// saveChanged saves the state unless it is what the disk holds.
func (w *Writable) saveChanged() error {
	if slices.Equal(w.state.Uppers, w.saved.Uppers) && slices.Equal(w.state.Sealed, w.saved.Sealed) {
		return nil
	}
	return w.save(w.state)
}

func localLayerOf(l *lsmt.Log, lowers int) localLayer {
	return localLayer{UUID: l.UUID(), Parent: l.Parent(), Lowers: lowers}
}

// Thaw ends a final seal: the device takes writes again, on a fresh upper. Without a final seal it does nothing.
func (w *Writable) Thaw(ctx context.Context) error {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.closed.Load() {
		return ErrClosed
	}
	if err := w.failure(); err != nil {
		return fmt.Errorf("overlaybd: thaw: %w", err)
	}
	// The upper is still there if nothing was in it, or if the seal failed: then it takes the writes again.
	if len(w.view.Load().Logs) == 0 {
		if err := w.note(w.pushUpper()); err != nil {
			return fmt.Errorf("overlaybd: thaw: %w", err)
		}
	}
	w.writing.Lock()
	w.final = false
	w.writing.Unlock()
	return nil
}

// Published tells the device that a sealed layer, and those below it, are in the repository now: Seal stops returning
// them. It is kept in memory only; the caller reopens the directory with the published Stack. The device goes on
// reading its local file.
func (w *Writable) Published(uuid string, l Layer) {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	for i := w.published; i < len(w.sealed); i++ {
		if w.sealed[i].UUID == uuid {
			w.spans = append(w.spans, i+1-w.published)
			w.published = i + 1
			w.stack.Layers = append(slices.Clip(w.stack.Layers), l)
			return
		}
	}
}

// Stack returns the published stack as far as the device was told, with the device's size.
func (w *Writable) Stack() Stack {
	w.sealing.Lock()
	defer w.sealing.Unlock()
	return Stack{VirtualSize: w.size.Load(), Layers: slices.Clone(w.stack.Layers)}
}
