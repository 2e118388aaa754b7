package overlaybd

import (
	"context"
	"fmt"
	"iter"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Range is a run of bytes of a disk.
type Range struct {
	Off, Len int64
}

// Diff returns the ranges in which disks with the stacks a and b may differ, in order and never adjacent. It reads
// indexes alone, and only of layers that the stacks do not share from the bottom up: for a volume and its fork or
// snapshot, a few.
//
// A range is left out if both stacks read it from the same bytes of one layer, or both from none, or as zeroes. So each
// byte that differs is in a range; bytes that were written again with what was there are too. What only the larger disk
// has is a range.
//
// Two layers are one if their digests and sizes are equal; if either has no digest, if key, uuid, size and codec are.
func (e *Engine) Diff(ctx context.Context, a, b Stack) iter.Seq2[Range, error] {
	return func(yield func(Range, error) bool) {
		err := e.diff(ctx, a, b, func(r Range) bool { return yield(r, nil) })
		if err != nil {
			yield(Range{}, fmt.Errorf("overlaybd: diff: %w", err))
		}
	}
}

func (e *Engine) diff(ctx context.Context, a, b Stack, yield func(Range) bool) error {
	for _, s := range []Stack{a, b} {
		if err := checkStack(s); err != nil {
			return err
		}
	}
	shared := 0
	for shared < min(len(a.Layers), len(b.Layers)) && sameLayer(a.Layers[shared], b.Layers[shared]) {
		shared++
	}
	ids := layerNumbers{}
	x, err := e.readMapping(ctx, a.Layers[shared:], &ids)
	if err != nil {
		return err
	}
	y, err := e.readMapping(ctx, b.Layers[shared:], &ids)
	if err != nil {
		return err
	}
	c := comparison{x: x, y: y, bottom: shared == 0, yield: yield}
	if !c.run(sectors(min(a.VirtualSize, b.VirtualSize)), sectors(max(a.VirtualSize, b.VirtualSize))) {
		return nil
	}
	c.flush()
	return nil
}

func sectors(size int64) uint64 { return uint64(size / SectorSize) }

// sameLayer reports whether two layers have the same content. A uuid alone does not say so: a merged layer has that of
// its topmost one.
func sameLayer(a, b Layer) bool {
	if a.Digest != "" && b.Digest != "" {
		return a.Digest == b.Digest && a.Size == b.Size
	}
	return a.Key == b.Key && a.UUID == b.UUID && a.Size == b.Size && a.Codec == b.Codec
}

// layerNumbers gives layers that are the same one number.
type layerNumbers struct{ layers []Layer }

func (n *layerNumbers) of(l Layer) int {
	for i, known := range n.layers {
		if sameLayer(known, l) {
			return i
		}
	}
	n.layers = append(n.layers, l)
	return len(n.layers) - 1
}

// mapping is what some layers map, resolved.
type mapping struct {
	segs []lsmt.Segment
	ids  []int // by tag: number of the layer
}

func (e *Engine) readMapping(ctx context.Context, layers []Layer, ids *layerNumbers) (*mapping, error) {
	want, err := layerUUIDs(Stack{Layers: layers})
	if err != nil {
		return nil, err
	}
	m := &mapping{}
	open := make([]opener, len(layers))
	for i, l := range layers {
		open[i] = e.openPublished(l)
		m.ids = append(m.ids, ids.of(l))
	}
	s, err := e.openSealed(ctx, open, want)
	if err != nil {
		return nil, err
	}
	m.segs = s.index.Segments()
	return m, s.close()
}

// at returns what holds sector lba, and up to where; the segments that end at or in front of lba are gone afterwards.
func (m *mapping) at(lba, limit uint64) (p place, end uint64) {
	for len(m.segs) > 0 && m.segs[0].End() <= lba {
		m.segs = m.segs[1:]
	}
	if len(m.segs) == 0 || m.segs[0].LBA() >= limit {
		return place{}, limit
	}
	s := m.segs[0]
	if s.LBA() > lba {
		return place{}, s.LBA()
	}
	if s.Zeroed() {
		return place{kind: zeroes}, min(s.End(), limit)
	}
	return place{data, m.ids[s.Tag()], s.MOffset() + lba - s.LBA()}, min(s.End(), limit)
}

// place is where the content of a sector comes from.
type place struct {
	kind   placeKind
	layer  int
	sector uint64 // stored
}

type placeKind uint8

const (
	unmapped placeKind = iota
	zeroes
	data
)

// comparison walks two mappings side by side.
type comparison struct {
	x, y   *mapping
	bottom bool // there is nothing below them: unmapped is zeroes
	yield  func(Range) bool
	open   Range // found, and perhaps not at its end
}

// run compares the sectors below both sizes; those between the sizes differ. It returns false if nobody wants more.
func (c *comparison) run(both, all uint64) bool {
	for lba := uint64(0); lba < both; {
		p, pEnd := c.x.at(lba, both)
		q, qEnd := c.y.at(lba, both)
		end := min(pEnd, qEnd)
		if !c.same(p, q) && !c.add(lba, end) {
			return false
		}
		lba = end
	}
	return both == all || c.add(both, all)
}

func (c *comparison) same(p, q place) bool {
	if c.bottom && p.kind != data && q.kind != data {
		return true
	}
	return p == q
}

// add reports sectors [from, to), together with those in front of them.
func (c *comparison) add(from, to uint64) bool {
	off, n := int64(from)*SectorSize, int64(to-from)*SectorSize
	if c.open.Len > 0 && c.open.Off+c.open.Len == off {
		c.open.Len += n
		return true
	}
	ok := c.flush()
	c.open = Range{off, n}
	return ok
}

func (c *comparison) flush() bool { return c.open.Len == 0 || c.yield(c.open) }
