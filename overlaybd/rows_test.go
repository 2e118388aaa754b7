package overlaybd

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// goldenExt4 is an ext4 image of two layers, as the reference's tools made them of an OCI image.
func goldenExt4(t *testing.T) (*repo, *Engine, Stack) {
	t.Helper()
	r := newRepo()
	s := goldenStack(t, r, 64<<20, "ext4/ext4-layer1.tar", "ext4/ext4-layer2.tar")
	return r, newEngine(t, r), s
}

// forks and snapshots are the parent's layers, unchanged and not copied, under an upper of their own.
func TestGoldenForksShareTheirParentsLayers(t *testing.T) {
	r, e, parent := goldenExt4(t)
	before := digestOf(bytes.Join([][]byte{r.blobs["ext4/ext4-layer1.tar"], r.blobs["ext4/ext4-layer2.tar"]}, nil))
	one, two := openDevice(t, e, t.TempDir(), parent), openDevice(t, e, t.TempDir(), parent)
	defer one.Close()
	defer two.Close()
	writeSectors(t, one, 4096, 8, 'x')
	mustFlush(t, one)
	base, err := e.OpenReadOnly(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if !bytes.Equal(beginning(t, two), beginning(t, base)) || bytes.Equal(beginning(t, one), beginning(t, base)) {
		t.Error("a write to one fork shows in the other, or in neither")
	}
	layers := seal(t, one, SealOptions{Final: true})
	child := Stack{parent.VirtualSize, append(parent.Layers[:2:2], r.publish(t, layers[0]))}
	got := collect(t, e, parent, child)
	if diff := cmp.Diff([]Range{{4096 * SectorSize, 8 * SectorSize}}, got); diff != "" {
		t.Errorf("the child differs from its parent in\n%s", diff)
	}
	after := digestOf(bytes.Join([][]byte{r.blobs["ext4/ext4-layer1.tar"], r.blobs["ext4/ext4-layer2.tar"]}, nil))
	if before != after {
		t.Error("layers of the parent changed")
	}
}

// each layer carries its own uuid and its parent's in a versioned format, and a stack in a record says of each
// layer how to find, check and read it.
func TestGoldenLineageIsInLayersAndRecords(t *testing.T) {
	r := newRepo()
	s := goldenStack(t, r, 1<<20, "lsmt/L0.lsmt", "lsmt/L1.lsmt", "lsmt/L2.lsmt")
	below := uuid.Nil
	for i, l := range s.Layers {
		b := r.blobs[l.Key]
		layer, err := lsmt.OpenLayer(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && layer.Parent != below {
			t.Errorf("layer %d is above %s, its parent is %s", i, below, layer.Parent)
		}
		below = layer.UUID
		s.Layers[i].UUID = layer.UUID.String()
	}
	record, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back Stack
	if err := json.Unmarshal(record, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, back); diff != "" {
		t.Error(diff)
	}
	for _, l := range back.Layers {
		if _, err := newEngine(t, r).Verify(t.Context(), l, nil); err != nil {
			t.Error(err)
		}
	}
}

// an image of the reference holds an ext4 file system at its beginning; a volume of our own, published and read
// again, is a layer of the same format, which the golden tests compare byte by byte.
func TestGoldenImageIsAnExt4FileSystem(t *testing.T) {
	r, e, s := goldenExt4(t)
	dev, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	wantExt4(t, dev)

	w := openDevice(t, e, t.TempDir(), emptyStack(dev.Size()))
	defer w.Close()
	if _, err := w.WriteAt(beginning(t, dev), 0); err != nil {
		t.Fatal(err)
	}
	l := r.publish(t, seal(t, w, SealOptions{Final: true})[0])
	if codec, err := Detect(bytes.NewReader(r.blobs[l.Key]), l.Size); err != nil || codec != l.Codec {
		t.Errorf("our layer is taken for %q, %v", codec, err)
	}
	ours, err := e.OpenReadOnly(t.Context(), Stack{dev.Size(), []Layer{l}})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if !bytes.Equal(beginning(t, ours), beginning(t, dev)) {
		t.Error("our layer has other content")
	}
}

// beginning reads the first 4 MiB of a disk.
func beginning(t *testing.T, d Device) []byte {
	t.Helper()
	p := make([]byte, 4<<20)
	if _, err := d.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// a read-only device refuses every change at the block boundary, and goes on to read what it is.
func TestGoldenReadOnlyImageRefusesChanges(t *testing.T) {
	_, e, s := goldenExt4(t)
	dev, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	before := digestOf(beginning(t, dev))
	_, err = dev.WriteAt(make([]byte, 4096), 0)
	wantIs(t, err, ErrReadOnly)
	wantIs(t, dev.Discard(0, 4096), ErrReadOnly)
	if err := dev.Flush(); err != nil {
		t.Error(err)
	}
	if before != digestOf(beginning(t, dev)) {
		t.Error("the content changed")
	}
}
