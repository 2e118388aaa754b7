package lsmt

// SplitForCompact cuts sorted segments into runs by address, each of which Compact can write as one layer of at most
// limit index entries: the whole if it can, else runs as long as is sure to fit. The runs share the memory of segs.
func SplitForCompact(segs []Segment, limit int) [][]Segment {
	if entries, _ := layOut(segs); len(entries) <= limit {
		return [][]Segment{segs}
	}
	var runs [][]Segment
	from, entries := 0, 0
	for i, s := range segs {
		// Neighbours are joined, and cut again where an entry is full. One that is full has nearly MaxSegment
		// sectors, so two for each segment of half of that, and one for each shorter one, are never too few.
		n := 1
		if !s.Zeroed() && s.Len() >= MaxSegment/2 {
			n = 2
		}
		if entries+n > limit {
			runs = append(runs, segs[from:i])
			from, entries = i, 0
		}
		entries += n
	}
	return append(runs, segs[from:])
}

// Rebase returns base with all segments whose tags are in from replaced by those of to that map the same sectors, which
// must be there, and data or zeroes as they are in base.
func Rebase(base []Segment, from [256]bool, to *Index) ([]Segment, error) {
	out := make([]Segment, 0, len(base))
	for _, s := range base {
		if !from[s.Tag()] {
			out = append(out, s)
			continue
		}
		for at := s.LBA(); at < s.End(); {
			t, ok := to.Next(at)
			if !ok || t.LBA() > at || t.Zeroed() != s.Zeroed() {
				return nil, corrupt("index", 0, "sector %d is mapped in another way than in the layers replaced", at)
			}
			t = t.Clip(at, s.End())
			out = append(out, t)
			at = t.End()
		}
	}
	return out, nil
}

// Runs calls visit with each longest run of adjacent sectors that segs, sorted and disjoint, map to data or to zeroes:
// the same for two lists that map the same, however they are cut and wherever they are stored. It stops at the first
// error.
func Runs(segs []Segment, visit func(lba, n uint64, zeroed bool) error) error {
	for i := 0; i < len(segs); {
		first, end := segs[i], segs[i].End()
		for i++; i < len(segs) && segs[i].LBA() == end && segs[i].Zeroed() == first.Zeroed(); i++ {
			end = segs[i].End()
		}
		if err := visit(first.LBA(), end-first.LBA(), first.Zeroed()); err != nil {
			return err
		}
	}
	return nil
}
