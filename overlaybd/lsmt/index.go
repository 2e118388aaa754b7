package lsmt

// Index is an immutable set of disjoint segments, sorted by address.
type Index struct {
	segs []Segment
	// first holds the address of every 64th segment. The search over it touches a few cache lines, and what is left to
	// search then lies in sixteen; the plain binary search over segs misses the cache at each of its steps.
	first []uint64
}

const indexStride = 64

// NewIndex makes an Index of segments that are sorted and disjoint. It keeps the slice.
func NewIndex(segs []Segment) *Index {
	x := &Index{segs: segs, first: make([]uint64, 0, (len(segs)+indexStride-1)/indexStride)}
	for i := 0; i < len(segs); i += indexStride {
		x.first = append(x.first, segs[i].LBA())
	}
	return x
}

// Segments returns the segments in order. The caller must not change them.
func (x *Index) Segments() []Segment { return x.segs }

// Next returns the segment that holds sector lba or, if none does, the first one behind it; false if there is neither.
func (x *Index) Next(lba uint64) (Segment, bool) {
	if i := x.search(lba); i < len(x.segs) {
		return x.segs[i], true
	}
	return Segment{}, false
}

// search returns the number of the first segment that ends behind lba.
func (x *Index) search(lba uint64) int {
	// The last block whose first segment starts at or before lba; segments of later blocks end behind lba for sure.
	lo, hi := 0, len(x.first)
	for lo < hi {
		if m := int(uint(lo+hi) / 2); x.first[m] <= lba {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 {
		return 0
	}
	start := (lo - 1) * indexStride
	block := x.segs[start:min(start+indexStride, len(x.segs))]
	return start + searchSegments(block, lba)
}

// searchSegments returns the number of the first of some sorted segments that ends behind lba.
func searchSegments(segs []Segment, lba uint64) int {
	lo, hi := 0, len(segs)
	for lo < hi {
		if m := int(uint(lo+hi) / 2); segs[m].End() <= lba {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}
