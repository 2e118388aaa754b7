package lsmt

import (
	"testing"

	"pgregory.net/rapid"
)

// indexShapes make n sorted segments of 1 to 16 sectors with gaps of 0 to 3, and more in front of some.
var indexShapes = []struct {
	name  string
	extra func(i, n int) uint64
}{
	{"even", func(int, int) uint64 { return 0 }},
	// Runs of a thousand segments far apart, as large files lie on a disk that is mostly empty.
	{"clustered", func(i, _ int) uint64 {
		if i%1000 == 0 {
			return uint64(i%7) * 1 << 20
		}
		return 0
	}},
	// One segment far behind all others.
	{"far", func(i, n int) uint64 {
		if i == n-1 {
			return 1 << 40
		}
		return 0
	}},
}

// spaced returns n sorted segments; extra adds to the gap in front of segment i of n.
func spaced(n int, extra func(i, n int) uint64) []Segment {
	segs := make([]Segment, n)
	lba, stored := uint64(0), uint64(firstMOffset)
	for i := range segs {
		random := splitmix64(uint64(i))
		lba += random%4 + extra(i, n)
		length := random>>32%16 + 1
		segs[i] = DataSegment(lba, length, stored, 0)
		lba, stored = lba+length, stored+length
	}
	return segs
}

// The model is a map from each sector to the number of the first segment that ends behind it.
func TestIndexAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Around the sizes at which groups are full and lists begin.
		n := max(rapid.SampledFrom([]int{0, 1, 8, 64, 512}).Draw(t, "size")+rapid.IntRange(-2, 2).Draw(t, "more"), 0)
		gaps := rapid.SliceOfN(rapid.Uint64Range(0, 50), 1, 20).Draw(t, "gaps")
		segs := spaced(n, func(i, _ int) uint64 { return gaps[i%len(gaps)] })
		model := map[uint64]int{}
		end := uint64(0)
		for i, s := range segs {
			for ; end < s.End(); end++ {
				model[end] = i
			}
		}
		x, walk := NewIndex(segs), 0
		for lba := range end + 3 {
			want, ok := model[lba]
			if !ok {
				want = n
			}
			if got := x.search(lba); got != want {
				t.Fatalf("search(%d) among %d is %d, want %d", lba, n, got, want)
			}
			if s, found := x.Next(lba); found != ok || ok && s != segs[want] {
				t.Fatalf("Next(%d) is %v, %v, want %v", lba, s, found, ok)
			}
			if walk = x.advance(walk, lba); walk != want {
				t.Fatalf("advance to %d is %d, want %d", lba, walk, want)
			}
		}
	})
}

// Every shape, at a size with six lists, from far in front of each segment to far behind it.
func TestIndexFindsEverySegmentOfALargeDisk(t *testing.T) {
	for _, shape := range indexShapes {
		segs := spaced(300_001, shape.extra)
		x := NewIndex(segs)
		for i, s := range segs {
			before := uint64(0)
			if i > 0 {
				before = segs[i-1].End()
			}
			for _, lba := range []uint64{before, (before + s.LBA()) / 2, s.LBA(), s.End() - 1} {
				if got := x.search(lba); got != i {
					t.Fatalf("%s: search(%d) is %d, want %d", shape.name, lba, got, i)
				}
			}
		}
		for _, lba := range []uint64{segs[len(segs)-1].End(), invalidLBA, 1<<55 - 1} {
			if got := x.search(lba); got != len(segs) {
				t.Fatalf("%s: search(%d) is %d, behind all", shape.name, lba, got)
			}
		}
	}
}

// A jump over many segments, as a large segment of an upper makes one, finds its place too.
func TestIndexAdvancesOverAnyDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segs := spaced(2000, indexShapes[0].extra)
		x, at, lba := NewIndex(segs), 0, uint64(0)
		for lba < segs[len(segs)-1].End()+10 {
			lba += rapid.Uint64Range(0, 3000).Draw(t, "step")
			at = x.advance(at, lba)
			if want := searchSegments(segs, lba); at != want {
				t.Fatalf("advance to %d is %d, want %d", lba, at, want)
			}
		}
	})
}
