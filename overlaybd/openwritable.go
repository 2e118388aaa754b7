package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// OpenWritable opens a stack with the upper that dir holds, or a fresh one. dir belongs to the device until Close; else
// the error is ErrInUse.
//
// Layers that were sealed in dir go on top of s, unless s has them already: then they, and those below them in dir,
// are in s. Where s ends and what comes next in dir must fit by uuid and parent; a stack that dir was not made for is
// ErrInvalid. Whatever state a kill or a power cut left dir in, every flush that was acknowledged is there afterwards,
// and after a kill every write.
func (e *Engine) OpenWritable(ctx context.Context, dir string, s Stack) (w *Writable, err error) {
	if err := checkStack(s); err != nil {
		return nil, err
	}
	ids, err := layerUUIDs(s)
	if err != nil {
		return nil, err
	}
	boot := e.boot
	if boot == "" {
		if boot, err = readBootID(); err != nil {
			return nil, fmt.Errorf("overlaybd: %w", err)
		}
	}
	d, err := openStateDir(dir)
	if err != nil {
		return nil, fmt.Errorf("overlaybd: open %s: %w", dir, err)
	}
	w = &Writable{engine: e, boot: boot, dir: d, base: &sealedStack{}, stack: s, done: make(chan struct{})}
	if err := w.open(ctx, s, ids); err != nil {
		return nil, fmt.Errorf("overlaybd: open %s: %w", dir, errors.Join(err, w.abandon()))
	}
	return w, nil
}

// readBootID returns what tells this boot of the machine from others.
func readBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, which tells a killed process from a power cut: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (w *Writable) open(ctx context.Context, s Stack, ids []uuid.UUID) error {
	old, err := w.dir.load()
	if err != nil {
		return err
	}
	plan := planStack(old.Sealed, ids)
	w.size.Store(s.VirtualSize)
	if err := w.openLayers(ctx, s, ids, plan); err != nil {
		return err
	}
	w.saved = old
	w.state = localState{Uppers: old.Uppers, Sealed: append(plan.reused, plan.above...)}
	w.published = len(plan.reused)
	if err := w.openUppers(); err != nil {
		return err
	}
	if err := w.matchSize(); err != nil {
		return err
	}
	// Nothing is removed before the whole directory was opened and its new state is durable.
	if err := w.saveChanged(); err != nil {
		return err
	}
	if err := w.dir.tidy(w.state); err != nil {
		return err
	}
	if err := w.sealBelow(); err != nil {
		return err
	}
	w.base.watch(w.done)
	return nil
}

// stackPlan says where each layer of a device comes from.
type stackPlan struct {
	local  map[int]localLayer // position in the published stack -> sealed layer of the directory with that content
	reused []localLayer       // the values of local, bottom first
	above  []localLayer       // sealed layers that the published stack does not have, bottom first
}

// planStack compares the layers sealed in a directory with the uuids of the published stack. The local file of a
// published layer is read in place of the repository's: its content is the same.
func planStack(sealed []localLayer, ids []uuid.UUID) stackPlan {
	at := map[uuid.UUID]int{}
	for i, id := range ids {
		if id != uuid.Nil {
			at[id] = i
		}
	}
	p := stackPlan{local: map[int]localLayer{}}
	for _, l := range sealed {
		i, found := at[l.UUID]
		if !found {
			if !l.Published { // else it was merged into another layer since
				p.above = append(p.above, l)
			}
			continue
		}
		// This layer is published, and so are those below it, merged into others if their uuids are gone.
		p.above = nil
		if sameContent(l, i, ids) {
			l.Published = true
			p.local[i] = l
			p.reused = append(p.reused, l)
		}
	}
	return p
}

// sameContent reports whether layer i of a published stack, which has l's uuid, holds just what l holds. A run of
// layers that was merged has the uuid of its topmost one, but then that one's parent is no longer below it.
func sameContent(l localLayer, i int, ids []uuid.UUID) bool {
	if l.Parent == uuid.Nil {
		// Without a parent's uuid only the bottom layer is sure to be what it was.
		return i == 0 && l.Lowers == 0
	}
	return i > 0 && ids[i-1] == l.Parent
}

// openLayers opens the sealed part: the published stack, then the directory's own layers.
func (w *Writable) openLayers(ctx context.Context, s Stack, ids []uuid.UUID, plan stackPlan) error {
	var open []opener
	want := append([]uuid.UUID(nil), ids...)
	for i, l := range s.Layers {
		if own, ok := plan.local[i]; ok {
			open = append(open, w.openOwn(own))
		} else {
			open = append(open, w.engine.openPublished(l))
		}
	}
	for _, l := range plan.above {
		open = append(open, w.openOwn(l))
		want = append(want, l.UUID)
	}
	if len(open) > lsmt.MaxLowers {
		return tooManyLayers(len(open))
	}
	base, err := w.engine.openSealed(ctx, open, want)
	if err != nil {
		return err
	}
	w.base = base
	if err := w.engine.checkParents(base.layers); err != nil {
		return err
	}
	for i, l := range base.layers {
		w.order = append(w.order, placedLayer{uint8(i), l.uuid})
	}
	w.spans = slices.Repeat([]int{1}, len(s.Layers))
	w.top = base.uuidBelow(len(base.layers))
	w.view.Store(&lsmt.View{Base: base.index, Files: base.files()})
	return w.describeSealed(plan, len(s.Layers))
}

func (w *Writable) openOwn(l localLayer) opener {
	return func(context.Context) (Source, error) { return OpenFile(w.dir.logPaths(l.UUID).Data) }
}

// describeSealed fills the list of sealed layers and checks that those above the published stack continue it.
func (w *Writable) describeSealed(plan stackPlan, published int) error {
	for i, l := range w.base.layers {
		_, reused := plan.local[i]
		if !reused && i < published {
			continue
		}
		if i >= published {
			if below := w.base.uuidBelow(i); l.parent != below {
				return mismatch(fmt.Sprintf("layer %s", l.uuid), l.parent, below)
			}
			// The device was grown before this layer was sealed, and the published stack does not know yet.
			w.size.Store(max(w.size.Load(), l.virtualSize))
		}
		w.sealed = append(w.sealed, SealedLayer{
			UUID: l.uuid.String(), ParentUUID: l.parent.String(), Path: w.dir.logPaths(l.uuid).Data,
			VirtualSize: l.virtualSize, FileSize: w.base.sources[i].src.Size(),
			LiveBytes: l.liveBytes, Segments: l.segments,
		})
	}
	return nil
}

func mismatch(what string, parent, top uuid.UUID) error {
	return lsmt.Invalid("stack", fmt.Sprintf("whose top is %s below %s of this directory", top, what),
		fmt.Sprintf("one whose top is %s", parent))
}

// openUppers opens the logs that the state names, the older one first, or makes a fresh one.
func (w *Writable) openUppers() error {
	uppers := w.state.Uppers
	for i := len(uppers) - 1; i >= 0; i-- {
		if err := w.openUpper(uppers[i]); err != nil {
			return err
		}
	}
	if err := w.checkUppers(); err != nil {
		return err
	}
	if len(w.view.Load().Logs) == 0 {
		return w.pushUpper()
	}
	w.upper = w.view.Load().Logs[0]
	return nil
}

// checkUppers checks that the logs continue the layers. If they do not, the directory was made for another stack:
// without a write in it nothing is lost by starting anew.
func (w *Writable) checkUppers() error {
	v := w.view.Load()
	if len(v.Logs) == 0 {
		return nil
	}
	lowest := v.Logs[len(v.Logs)-1]
	if lowest.Parent() == w.top {
		return nil
	}
	written := len(w.sealed) > w.published
	for _, l := range v.Logs {
		written = written || l.Segments() > 0
	}
	if written {
		return mismatch(fmt.Sprintf("the upper %s", lowest.UUID()), lowest.Parent(), w.top)
	}
	for _, l := range v.Logs {
		if err := l.Close(); err != nil {
			return err
		}
	}
	w.state.Uppers = nil
	w.view.Store(&lsmt.View{Base: v.Base, Files: v.Files[:len(v.Files)-len(v.Logs)]})
	return nil
}

func (w *Writable) openUpper(u localLayer) error {
	v := w.view.Load()
	if len(v.Files) > lsmt.MaxLowers {
		return tooManyLayers(len(v.Files))
	}
	o := lsmt.LogOptions{Tag: uint8(len(v.Files)), BootID: w.boot}
	if len(v.Logs) > 0 {
		o.Below = v.Logs[0]
	}
	l, r, err := lsmt.OpenLog(w.dir.logPaths(u.UUID), o)
	if err != nil {
		return err
	}
	if r != (lsmt.Recovery{}) {
		w.engine.log.Info("upper recovered", "path", l.Path(),
			"dropped", r.Dropped, "torn_bytes", r.Torn, "replayed", r.Replayed)
	}
	w.view.Store(&lsmt.View{
		Logs: append([]*lsmt.Log{l}, v.Logs...), Base: v.Base, Files: append(v.Files, io.ReaderAt(l.Data())),
	})
	return nil
}

// matchSize gives device and upper the same size: the greater of what the layers say and what the upper was grown to.
func (w *Writable) matchSize() error {
	size := max(w.size.Load(), w.upper.VirtualSize())
	w.size.Store(size)
	if w.upper.VirtualSize() == size {
		return nil
	}
	return w.upper.Grow(size)
}

// abandon closes what a failed open had opened. It flushes nothing: nothing was written.
func (w *Writable) abandon() error {
	var err error
	if v := w.view.Load(); v != nil {
		for _, l := range append(v.Logs[:len(v.Logs):len(v.Logs)], w.retired...) {
			err = errors.Join(err, l.Close())
		}
	}
	return errors.Join(err, w.base.close(), w.dir.close())
}
