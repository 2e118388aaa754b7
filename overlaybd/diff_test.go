package overlaybd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

func collect(t tb, e *Engine, a, b Stack) (all []Range) {
	t.Helper()
	for r, err := range e.Diff(context.Background(), a, b) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// diskSectors is the size of the disks of these tests.
const diskSectors = 64

// drawLayer makes a layer of random segments, whose data is all of one byte.
func drawLayer(t *rapid.T, r *repo, n int) (Layer, []lsmt.Segment) {
	var segs []lsmt.Segment
	data := bytes.Repeat([]byte{byte(n + 1)}, diskSectors*SectorSize)
	for lba := uint64(0); ; {
		lba += rapid.Uint64Range(0, 20).Draw(t, "gap")
		length := rapid.Uint64Range(1, 20).Draw(t, "length")
		if lba+length > diskSectors {
			break
		}
		if rapid.IntRange(0, 3).Draw(t, "zeroed") == 0 {
			segs = append(segs, lsmt.ZeroSegment(lba, length, 8, 0))
		} else {
			segs = append(segs, lsmt.DataSegment(lba, length, lba, 0))
		}
		lba += length
	}
	var b bytes.Buffer
	err := lsmt.Compact(context.Background(), &b, segs, []io.ReaderAt{bytes.NewReader(data)},
		lsmt.CompactOptions{VirtualSize: diskSectors * SectorSize, UUID: uuid.UUID{15: byte(n + 1)}})
	if err != nil {
		t.Fatal(err)
	}
	l := r.put(b.Bytes())
	if n%2 == 0 {
		l.Digest = digestOf(b.Bytes())
	}
	return l, segs
}

// source is what a sector is read from by a search from the top.
func source(s Stack, segs map[string][]lsmt.Segment, lba uint64) string {
	for i := len(s.Layers) - 1; i >= 0; i-- {
		for _, g := range segs[s.Layers[i].Key] {
			if g.LBA() > lba || g.End() <= lba {
				continue
			}
			if g.Zeroed() {
				return "zeroes"
			}
			return s.Layers[i].Key
		}
	}
	return "nothing"
}

// Each byte that differs is in a range, and each sector of a range is read from elsewhere, or may be: zeroes of one disk
// are compared with nothing of the other only where the stacks share no layer.
func TestDiffFindsWhatDiffersAndLittleElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRepo()
		e := newEngine(t, r)
		segs := map[string][]lsmt.Segment{}
		var pool []Layer
		for n := range 4 {
			l, s := drawLayer(t, r, n)
			pool, segs[l.Key] = append(pool, l), s
		}
		draw := func(name string) Stack {
			size := rapid.Int64Range(diskSectors-8, diskSectors).Draw(t, name+" sectors") * SectorSize
			return Stack{size, rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 0, 4, keyOf).Draw(t, name)}
		}
		a, b := draw("a"), draw("b")
		inRange := map[int64]bool{}
		end := int64(-1)
		for _, x := range collect(t, e, a, b) {
			if x.Off <= end || x.Len <= 0 || x.Off%SectorSize != 0 || x.Len%SectorSize != 0 {
				t.Fatalf("range %+v behind one that ends at %d", x, end)
			}
			end = x.Off + x.Len
			for off := x.Off; off < end; off += SectorSize {
				inRange[off] = true
			}
		}
		p, q := readStack(t, e, a), readStack(t, e, b)
		for off := int64(0); off < max(a.VirtualSize, b.VirtualSize); off += SectorSize {
			if off >= min(a.VirtualSize, b.VirtualSize) {
				if !inRange[off] {
					t.Fatalf("byte %d is in one disk only, and in no range", off)
				}
				continue
			}
			same := bytes.Equal(p[off:off+SectorSize], q[off:off+SectorSize])
			from, other := source(a, segs, uint64(off/SectorSize)), source(b, segs, uint64(off/SectorSize))
			if !same && !inRange[off] {
				t.Fatalf("byte %d differs, from %s and %s, and is in no range", off, from, other)
			}
			if inRange[off] && from == other && from != "zeroes" {
				t.Fatalf("byte %d comes from %s in both disks, and is in a range", off, from)
			}
		}
	})
}

func readStack(t tb, e *Engine, s Stack) []byte {
	t.Helper()
	dev, err := e.OpenReadOnly(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	return content(t, dev)
}

func TestDiffOpensOnlyLayersThatAreNotShared(t *testing.T) {
	r := newRepo()
	base := goldenStack(t, r, 1<<20, "lsmt/L0.lsmt", "lsmt/L1.lsmt")
	fork := goldenStack(t, r, 1<<20, "lsmt/L0.lsmt", "lsmt/L1.lsmt", "lsmt/L2.lsmt")
	e := newEngine(t, r)
	if got := collect(t, e, base, base); got != nil {
		t.Errorf("a stack differs from itself: %v", got)
	}
	if r.opens["lsmt/L0.lsmt"] != 0 {
		t.Error("layers that both have were opened")
	}
	got := collect(t, e, base, fork)
	if diff := cmp.Diff(got, collect(t, e, fork, base)); diff != "" || len(got) == 0 {
		t.Errorf("%d ranges; the other way round: %s", len(got), diff)
	}
	if r.opens["lsmt/L1.lsmt"] != 0 || r.opens["lsmt/L2.lsmt"] != 2 {
		t.Errorf("opened: %v", r.opens)
	}
	for range e.Diff(t.Context(), base, fork) {
		break // the rest is not wanted, and nothing goes on
	}
}

// A merged layer has the uuid of its topmost one, and other content.
func TestDiffDoesNotTakeAUUIDForContent(t *testing.T) {
	top := Layer{Key: "a", UUID: "00000000-0000-4000-8000-000000000001", Size: 4096}
	merged := top
	merged.Key = "b"
	if sameLayer(top, merged) || !sameLayer(top, top) {
		t.Error("layers are told apart by uuid")
	}
	top.Digest, merged.Digest = digestOf([]byte("x")), digestOf([]byte("x"))
	if !sameLayer(top, merged) {
		t.Error("layers with one digest are two")
	}
}

func TestDiffSaysWhatItCouldNotRead(t *testing.T) {
	e := newEngine(t, newRepo())
	missing := Stack{VirtualSize: 1 << 20, Layers: []Layer{{Key: "missing"}}}
	for _, c := range []struct {
		stack Stack
		class error
	}{{missing, nil}, {Stack{VirtualSize: 5}, ErrInvalid}} {
		n := 0
		for _, err := range e.Diff(t.Context(), c.stack, emptyStack(1<<20)) {
			if err == nil || c.class != nil && !errors.Is(err, c.class) {
				t.Error(err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d results", n)
		}
	}
}

func keyOf(l Layer) string { return l.Key }
