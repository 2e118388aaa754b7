package lsmt

// Index is an immutable set of disjoint segments, sorted by address, for lookups in any order.
//
// A lookup costs what its cache misses cost. A binary search over a million segments has a dozen. Here the addresses of
// every eighth segment form a list of their own, every eighth of those another, and so on up to a list of at most eight:
// a tree without pointers, whose nodes are eight neighbours in a list, one cache line. The upper lists of a large index
// fit into the nearest caches; what misses is a line of the lowest list and one or two of segments. The shape of the
// data does not matter, as it would to a table by address: disks are mostly empty, with clusters of every size.
//
// A segment costs its 16 bytes, and 1.15 more for the lists. They lie side by side in one piece of memory: small ones, on
// one page. After a system call, such as the read before, each page that a lookup touches costs a walk of page tables.
type Index struct {
	segs  []Segment
	depth int
	lists [maxDepth][]uint64 // depth of them, lowest first; each filled up to a multiple of fanout
}

const (
	fanout   = 8
	maxDepth = 9       // enough for fanout^10 segments, far more than maxMerged
	noLBA    = 1 << 62 // fills up the lists: behind every address, and far from where differences change their sign
)

// NewIndex makes an Index of segments that are sorted and disjoint. It keeps the slice.
func NewIndex(segs []Segment) *Index {
	x := &Index{segs: segs}
	// An eighth, an eighth of that, and so on, each filled up.
	memory := make([]uint64, 0, len(segs)/(fanout-1)+2*fanout*maxDepth)
	list := x.addList(memory, len(segs), func(i int) uint64 { return segs[i].LBA() })
	for len(list) > fanout {
		below := list
		list = x.addList(below[len(below):], len(below), func(i int) uint64 { return below[i] })
	}
	return x
}

// addList adds a list of every eighth of n addresses, in the free capacity of memory.
func (x *Index) addList(memory []uint64, n int, address func(i int) uint64) []uint64 {
	for i := 0; i < n; i += fanout {
		memory = append(memory, address(i))
	}
	for len(memory)%fanout != 0 {
		memory = append(memory, noLBA)
	}
	x.lists[x.depth] = memory
	x.depth++
	return memory
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
	if len(x.segs) == 0 || x.segs[0].LBA() > lba {
		return 0
	}
	// On the way down, i is the number of the last entry of a list that is at lba or in front of it.
	i := 0
	for l := x.depth - 1; l >= 0; l-- {
		node := (*[fanout]uint64)(x.lists[l][i*fanout:])
		i = i*fanout + countBelow(node, lba+1) - 1
	}
	i *= fanout
	// The segments of the next group start behind lba, so its first one ends there for sure.
	if i+fanout > len(x.segs) {
		return i + searchSegments(x.segs[i:], lba)
	}
	group := (*[fanout]Segment)(x.segs[i:])
	return i + countEndsBelow(group, lba+1)
}

// advance is search for an address that is not below that of the call before, which returned i. Where addresses rise by
// little, the place is a few segments on.
func (x *Index) advance(i int, lba uint64) int {
	for range fanout {
		if i == len(x.segs) || x.segs[i].End() > lba {
			return i
		}
		i++
	}
	return x.search(lba)
}

// countBelow counts the addresses below lba. It compares all of them, by the sign of the difference: without a branch
// that the processor could guess wrong, that is faster than to stop in time.
func countBelow(node *[fanout]uint64, lba uint64) int {
	return int((node[0]-lba)>>63 + (node[1]-lba)>>63 + (node[2]-lba)>>63 + (node[3]-lba)>>63 +
		(node[4]-lba)>>63 + (node[5]-lba)>>63 + (node[6]-lba)>>63 + (node[7]-lba)>>63)
}

// countEndsBelow counts the segments that end below lba.
func countEndsBelow(s *[fanout]Segment, lba uint64) int {
	return int((s[0].End()-lba)>>63 + (s[1].End()-lba)>>63 + (s[2].End()-lba)>>63 + (s[3].End()-lba)>>63 +
		(s[4].End()-lba)>>63 + (s[5].End()-lba)>>63 + (s[6].End()-lba)>>63 + (s[7].End()-lba)>>63)
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
