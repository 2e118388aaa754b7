package lsmt

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawSegments draws sorted disjoint segments of tags 0 to 2, often adjacent.
func drawSegments(t *rapid.T) (segs []Segment) {
	lba := uint64(0)
	for range rapid.IntRange(0, 30).Draw(t, "segments") {
		lba += rapid.SampledFrom([]uint64{0, 0, 0, 1, 70}).Draw(t, "gap")
		n := rapid.SampledFrom([]uint64{1, 8, 63, 64, 65, 8191, 8192, 16320, 16382, 16383}).Draw(t, "length")
		tag := uint8(rapid.IntRange(0, 2).Draw(t, "tag"))
		if rapid.Bool().Draw(t, "zeroed") {
			segs = append(segs, ZeroSegment(lba, n, 8, tag))
		} else {
			segs = append(segs, DataSegment(lba, n, 8+lba, tag))
		}
		lba += n
	}
	return segs
}

// Each part fits into a layer, and together they are the whole.
func TestSplitPartsFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segs := drawSegments(t)
		limit := rapid.IntRange(2, 40).Draw(t, "limit")
		parts := SplitForCompact(segs, limit)
		var whole []Segment
		for _, p := range parts {
			if entries, _ := layOut(p); len(entries) > limit {
				t.Fatalf("%d entries, limit %d", len(entries), limit)
			}
			whole = append(whole, p...)
		}
		if !slices.Equal(whole, segs) {
			t.Fatalf("parts are %v, whole is %v", whole, segs)
		}
		if entries, _ := layOut(segs); len(entries) <= limit && len(parts) != 1 {
			t.Fatalf("%d parts of what fits into one", len(parts))
		}
	})
}

// However a list is cut, its runs are the same.
func TestRunsDoNotDependOnCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segs := drawSegments(t)
		var cut []Segment
		for _, s := range segs {
			at := s.LBA() + rapid.Uint64Range(0, s.Len()-1).Draw(t, "cut")
			if at > s.LBA() {
				cut = append(cut, s.Clip(s.LBA(), at))
			}
			cut = append(cut, s.Clip(at, s.End()).WithTag(9))
		}
		if a, b := runsText(segs), runsText(cut); a != b {
			t.Fatalf("runs are %s, cut: %s", a, b)
		}
	})
}

func runsText(segs []Segment) (text string) {
	_ = Runs(segs, func(lba, n uint64, zeroed bool) error {
		text += fmt.Sprint(lba, "+", n, zeroed, " ")
		return nil
	})
	return text
}

func TestRebaseReplacesTheSegmentsOfSomeTags(t *testing.T) {
	base := []Segment{DataSegment(0, 4, 8, 0), DataSegment(4, 4, 20, 1), ZeroSegment(8, 4, 20, 1), DataSegment(20, 2, 8, 2)}
	to := []Segment{DataSegment(2, 4, 100, 5), DataSegment(6, 2, 200, 5), ZeroSegment(8, 9, 300, 5)}
	var from [256]bool
	from[1] = true
	got, err := Rebase(base, from, NewIndex(to))
	must(t, err)
	want := []Segment{
		DataSegment(0, 4, 8, 0), DataSegment(4, 2, 102, 5), DataSegment(6, 2, 200, 5), ZeroSegment(8, 4, 300, 5),
		DataSegment(20, 2, 8, 2),
	}
	if !slices.Equal(got, want) {
		t.Errorf("rebased to %v, want %v", got, want)
	}
	from[2] = true
	if _, err := Rebase(base, from, NewIndex(to)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a sector that is gone: %v", err)
	}
	to[2] = DataSegment(8, 9, 300, 5)
	from[2] = false
	if _, err := Rebase(base, from, NewIndex(to)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("zeroes that are data: %v", err)
	}
}
