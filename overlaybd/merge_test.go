package overlaybd

import (
	"bytes"
	"strings"
	"testing"
)

func TestMergeTakesThePlaceOfItsRun(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	s := emptyStack(1 << 20)
	for fill := byte('a'); fill <= 'd'; fill++ {
		w := openDevice(t, e, t.TempDir(), s)
		writeSectors(t, w, int(fill-'a'), 4, fill)
		if err := w.Discard(int64(fill-'a')*SectorSize+8192, SectorSize); err != nil {
			t.Fatal(err)
		}
		for _, l := range seal(t, w, SealOptions{Final: true}) {
			s.Layers = append(s.Layers, r.publish(t, l))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want := content(t, dev)
	merged := r.merge(t, s, 1, 4)
	if n := len(merged.Layers); n != 2 {
		t.Fatalf("%d layers after the merge, want 2", n)
	}
	// A device on the merged stack takes writes, and its directory fits the stack.
	w := openDevice(t, e, t.TempDir(), merged)
	defer w.Close()
	wantContent(t, w, want)
}

func TestMergeRefusesWhatCannotBeOneLayer(t *testing.T) {
	r := newRepo()
	e := newEngine(t, r)
	var out bytes.Buffer
	_, err := e.Merge(t.Context(), nil, &out)
	wantIs(t, err, ErrInvalid)
	_, err = e.Merge(t.Context(), make([]Layer, 256), &out)
	wantIs(t, err, ErrInvalid)
	if !strings.Contains(err.Error(), "256") || !strings.Contains(err.Error(), "255") {
		t.Errorf("error names neither value nor limit: %v", err)
	}
	if out.Len() != 0 {
		t.Errorf("%d bytes were written", out.Len())
	}
}
