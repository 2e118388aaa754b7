package overlaybd

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// A stack whose layers name other parents than those below them is refused if the engine is told to look.
func TestChainCheckFindsAForeignLayer(t *testing.T) {
	r := newRepo()
	w, _ := layeredDevice(t, newEngine(t, r), r, t.TempDir(), 4, 300)
	s := w.Stack()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.Layers = slices.Delete(s.Layers, 1, 2)
	checked := newEngine(t, r, WithChainCheck())
	_, err := checked.OpenReadOnly(t.Context(), s)
	wantIs(t, err, ErrCorrupt)
	_, err = checked.OpenWritable(t.Context(), t.TempDir(), s)
	wantIs(t, err, ErrCorrupt)
	ro, err := newEngine(t, r).OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := ro.Close(); err != nil {
		t.Fatal(err)
	}
}

// emptyLayer stores a layer that maps nothing.
func (r *repo) emptyLayer(t testing.TB, size int64) Layer {
	t.Helper()
	var out bytes.Buffer
	o := lsmt.CompactOptions{VirtualSize: size, UUID: uuid.New()}
	if err := lsmt.Compact(t.Context(), &out, nil, nil, o); err != nil {
		t.Fatal(err)
	}
	return r.put(out.Bytes())
}

// A size of 0 in a layer stands for that of the layer below, and a merge must not pass it on for the whole run.
func TestMergeTakesTheTopmostSizeThatThereIs(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	run := []Layer{r.emptyLayer(t, 8*mib), r.emptyLayer(t, 2*mib), r.emptyLayer(t, 0), r.emptyLayer(t, 0)}
	for from, want := range []int64{2 * mib, 2 * mib, 0} {
		var out bytes.Buffer
		if _, err := e.Merge(t.Context(), run[from:], &out); err != nil {
			t.Fatal(err)
		}
		l, err := lsmt.OpenLayer(bytes.NewReader(out.Bytes()), int64(out.Len()))
		if err != nil || l.VirtualSize != want {
			t.Errorf("merge of the %d topmost has size %d, want %d (%v)", len(run)-from, l.VirtualSize, want, err)
		}
	}
}

// 255 layers are what a stack may have, below an upper and without one.
func TestStackOf255LayersAndNoMore(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	s := emptyStack(mib)
	for range lsmt.MaxLowers {
		s.Layers = append(s.Layers, r.emptyLayer(t, mib))
	}
	w := openDevice(t, e, t.TempDir(), s)
	writeSectors(t, w, 5, 1, 7)
	if got := content(t, w); got[5*SectorSize] != 7 {
		t.Error("a write is lost")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.Layers = append(s.Layers, r.emptyLayer(t, mib))
	_, err := e.OpenReadOnly(t.Context(), s)
	wantIs(t, err, ErrInvalid)
	_, err = e.OpenWritable(t.Context(), t.TempDir(), s)
	wantIs(t, err, ErrInvalid)
	_, err = e.MergeParts(t.Context(), s.Layers, func(int) (io.Writer, error) { return io.Discard, nil })
	wantIs(t, err, ErrInvalid)
	_, err = e.MergeParts(t.Context(), s.Layers[:lsmt.MaxLowers], func(int) (io.Writer, error) { return io.Discard, nil })
	if err != nil {
		t.Error(err)
	}
}
