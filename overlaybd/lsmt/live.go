package lsmt

import "slices"

// liveIndex is the changing set of disjoint segments of an upper. Segments are never joined when one is inserted, so
// that a seal writes the very entries that the reference would.
//
// It is a sorted list of sorted chunks. An upper seals at 900,000 segments, some 5,000 chunks: the list of first
// addresses then is 40 KB, which a processor's nearest caches hold, and an insert moves 2 KiB on average. A deeper
// tree would only pay beyond that. Two neighbours that hold less than joinBelow are joined, so that a segment costs at
// most 37 bytes, whatever was inserted and covered before. The owner's lock guards it.
type liveIndex struct {
	chunks [][]Segment // none is empty
	first  []uint64    // address of the first segment of each chunk
	n      int         // segments
	data   uint64      // sectors mapped to data
}

const (
	chunkCap = 256
	// joinBelow leaves a joined chunk room, or the next insert would split it again.
	joinBelow = chunkCap * 7 / 8
)

// len returns the number of segments.
func (x *liveIndex) len() int { return x.n }

// next returns the segment that holds sector lba or, if none does, the first one behind it; false if there is neither.
func (x *liveIndex) next(lba uint64) (Segment, bool) {
	if len(x.chunks) == 0 {
		return Segment{}, false
	}
	ci, i := x.locate(lba)
	if c := x.chunks[ci]; i < len(c) {
		return c[i], true
	}
	if ci+1 < len(x.chunks) {
		return x.chunks[ci+1][0], true
	}
	return Segment{}, false
}

// locate returns the chunk in which a segment that starts at lba belongs and the position in it of the first segment
// that ends behind lba, which may be its end.
func (x *liveIndex) locate(lba uint64) (chunk, i int) {
	lo, hi := 1, len(x.first)
	for lo < hi {
		if m := int(uint(lo+hi) / 2); x.first[m] <= lba {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1, searchSegments(x.chunks[lo-1], lba)
}

// insert maps m and cuts or removes what it covers. A segment that strictly contains m is split.
func (x *liveIndex) insert(m Segment) {
	if len(x.chunks) == 0 {
		x.chunks = append(x.chunks, make([]Segment, 0, chunkCap))
		x.first = append(x.first, m.LBA())
	}
	ci, from := x.locate(m.LBA())
	c := x.chunks[ci]

	var pieces [3]Segment // left rest, m, right rest
	k := 0
	if from < len(c) && c[from].LBA() < m.LBA() {
		pieces[k] = c[from].Clip(0, m.LBA())
		k++
	}
	pieces[k] = m
	k++
	to := from + x.forget(c[from:], m.End())
	var last Segment
	if to > from {
		last = c[to-1]
	}
	if to == len(c) {
		if beyond := x.cutFollowing(ci+1, m.End()); beyond.Len() > 0 {
			last = beyond
		}
	}
	if last.End() > m.End() {
		pieces[k] = last.Clip(m.End(), last.End())
		k++
	}
	x.replace(ci, from, to, pieces[:k])
	x.join(ci)
}

// forget takes the segments of a sorted run that start before end out of the counts and returns how many they are.
func (x *liveIndex) forget(run []Segment, end uint64) int {
	i := 0
	for ; i < len(run) && run[i].LBA() < end; i++ {
		x.n--
		if !run[i].Zeroed() {
			x.data -= run[i].Len()
		}
	}
	return i
}

// cutFollowing removes the segments that start before end from chunk number at and those behind it, and returns the
// last one it removed.
func (x *liveIndex) cutFollowing(at int, end uint64) (last Segment) {
	whole := at
	for whole < len(x.chunks) && x.first[whole] < end {
		c := x.chunks[whole]
		cut := x.forget(c, end)
		last = c[cut-1]
		if cut < len(c) {
			x.chunks[whole] = slices.Delete(c, 0, cut)
			x.first[whole] = c[0].LBA()
			break
		}
		whole++
	}
	x.chunks = slices.Delete(x.chunks, at, whole)
	x.first = slices.Delete(x.first, at, whole)
	return last
}

// replace puts pieces in the place of segments [from, to) of a chunk.
func (x *liveIndex) replace(ci, from, to int, pieces []Segment) {
	x.n += len(pieces)
	for _, s := range pieces {
		if !s.Zeroed() {
			x.data += s.Len()
		}
	}
	c := x.chunks[ci]
	if len(c)+len(pieces)-(to-from) <= chunkCap {
		x.chunks[ci] = slices.Replace(c, from, to, pieces...)
		x.first[ci] = x.chunks[ci][0].LBA()
		return
	}
	// No room. A log that is written in address order fills chunk after chunk to the end; elsewhere both halves get room.
	at := len(c) / 2
	if from == len(c) && ci == len(x.chunks)-1 {
		at = len(c)
	}
	right := append(make([]Segment, 0, chunkCap), c[at:]...)
	x.chunks[ci] = c[:at]
	x.chunks = slices.Insert(x.chunks, ci+1, right)
	x.first = slices.Insert(x.first, ci+1, 0)
	x.spread(ci, from, to, at, pieces)
}

// spread finishes a replace across chunk ci, which holds the first at segments of a chunk that was split, and ci+1,
// which holds the others.
func (x *liveIndex) spread(ci, from, to, at int, pieces []Segment) {
	left, right := x.chunks[ci], x.chunks[ci+1]
	switch {
	case from >= at:
		right = slices.Replace(right, from-at, to-at, pieces...)
	case to <= at:
		left = slices.Replace(left, from, to, pieces...)
	default:
		right = slices.Delete(right, 0, to-at)
		left = slices.Replace(left, from, at, pieces...)
	}
	x.chunks[ci], x.chunks[ci+1] = left, right
	x.first[ci] = left[0].LBA()
	x.first[ci+1] = right[0].LBA()
}

// join joins neighbours that have become small. After an insert into chunk ci these can be ci and the one before it, and
// behind it the half that was split off and the chunk that the new segment reached into.
func (x *liveIndex) join(ci int) {
	for i := min(ci+2, len(x.chunks)-2); i >= max(ci-1, 0); i-- {
		if len(x.chunks[i])+len(x.chunks[i+1]) < joinBelow {
			x.chunks[i] = append(x.chunks[i], x.chunks[i+1]...)
			x.chunks = slices.Delete(x.chunks, i+1, i+2)
			x.first = slices.Delete(x.first, i+1, i+2)
		}
	}
}

// appendTo appends all segments, in order, to dst.
func (x *liveIndex) appendTo(dst []Segment) []Segment {
	dst = slices.Grow(dst, x.n)
	for _, c := range x.chunks {
		dst = append(dst, c...)
	}
	return dst
}
