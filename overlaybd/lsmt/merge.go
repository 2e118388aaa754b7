package lsmt

import (
	"fmt"
	"slices"
)

// maxMerged bounds the merged index of a stack, as the reference does.
const maxMerged = 128_000_000

// Merge resolves layers, bottom first, to one sorted list in which each sector belongs to the topmost layer that has a
// segment for it. Segments are cut where a higher layer hides a part of them and never joined. Zeroed segments stay:
// they hide what is below the layers at hand. The inputs are not changed; the result may be one of them.
func Merge(layers [][]Segment) ([]Segment, error) {
	merged := mergeLayers(layers)
	if len(merged) > maxMerged {
		return nil, fmt.Errorf("merge %d layers: %w",
			len(layers), Invalid("merged index", len(merged), fmt.Sprintf("at most %d segments", maxMerged)))
	}
	if cap(merged)-len(merged) > len(merged)/8 {
		// Overlaying reserves room for the worst case. The result lives as long as the stack is open.
		merged = slices.Clone(merged)
	}
	return merged, nil
}

// mergeLayers overlays pairs of neighbours, then pairs of results: each segment is copied once per level of that tree,
// so 255 layers cost eight passes. Overlaying is associative, cuts included, so the grouping does not show.
func mergeLayers(layers [][]Segment) []Segment {
	switch len(layers) {
	case 0:
		return nil
	case 1:
		return layers[0]
	}
	half := len(layers) / 2
	return Overlay(mergeLayers(layers[half:]), mergeLayers(layers[:half]))
}

// Overlay puts top over below; both are sorted and disjoint.
func Overlay(top, below []Segment) []Segment {
	if len(top) == 0 {
		return below
	}
	if len(below) == 0 {
		return top
	}
	// A segment of below is cut at most once per segment of top that falls inside it, which adds one piece.
	out := make([]Segment, 0, len(below)+2*len(top))
	pos := uint64(0) // sectors before pos are resolved
	for _, t := range top {
		below, out = emitGap(out, below, pos, t.LBA())
		out = append(out, t)
		pos = t.End()
	}
	_, out = emitGap(out, below, pos, invalidLBA)
	return out
}

// emitGap appends what below has in [from, to) and returns the segments that reach beyond.
func emitGap(out, below []Segment, from, to uint64) (rest, grown []Segment) {
	for len(below) > 0 && below[0].End() <= from {
		below = below[1:]
	}
	for len(below) > 0 && below[0].LBA() < to {
		if s := below[0]; from < to {
			out = append(out, s.Clip(from, to))
		}
		if below[0].End() > to {
			break
		}
		below = below[1:]
	}
	return below, out
}
