package genlog

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// keptAt appends one generation for each of the given times, in steps of the default window, and returns what is kept.
func keptAt(steps ...float64) (numbers []uint64) {
	var kept []Kept
	for i, s := range steps {
		at := start.Add(time.Duration(s * float64(keepWindow/maxKept)))
		kept = thin(kept, Kept{Number: uint64(i + 1), At: at}, keepWindow)
	}
	for _, k := range kept {
		numbers = append(numbers, k.Number)
	}
	return numbers
}

func TestKeptIsThinnedByTime(t *testing.T) {
	for name, c := range map[string]struct {
		at   []float64
		want []uint64
	}{
		"the first joins":                                 {[]float64{0}, []uint64{1}},
		"closer than a step is left out":                  {[]float64{0, 0.4, 0.9}, []uint64{1}},
		"a step away joins":                               {[]float64{0, 0.5, 1, 1.5, 2.1}, []uint64{1, 3, 5}},
		"a window later all others leave":                 {[]float64{0, 1, 2, 67}, []uint64{4}},
		"exactly a window later they stay":                {[]float64{0, 64}, []uint64{1, 2}},
		"a clock that ran ahead does not keep others out": {[]float64{0, 1000, 1, 1.5, 2}, []uint64{2, 3, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, keptAt(c.at...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKeptWithWindowZeroIsEmpty(t *testing.T) {
	if kept := thin([]Kept{{Number: 1}}, Kept{Number: 2}, 0); len(kept) != 0 {
		t.Errorf("kept %v", kept)
	}
}

// Whatever the clocks do: bounded, in order, and what has left never comes back, so that an old list is safe to prune
// by.
func TestKeptNeverTakesBackWhatLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.Float64Range(-3, 5), 1, 300).Draw(t, "steps")
		var kept []Kept
		at, left := 0.0, map[uint64]bool{}
		for i, s := range steps {
			at += s
			n := Kept{Number: uint64(i + 1), At: start.Add(time.Duration(at * float64(keepWindow/maxKept)))}
			next := thin(kept, n, keepWindow)
			for _, k := range append(kept, n) {
				if !slices.ContainsFunc(next, func(o Kept) bool { return o.Number == k.Number }) {
					left[k.Number] = true
				}
			}
			for _, k := range next {
				if left[k.Number] {
					t.Fatalf("generation %d came back", k.Number)
				}
			}
			if len(next) > maxKept || !slices.IsSortedFunc(next, func(a, b Kept) int { return int(a.Number) - int(b.Number) }) {
				t.Fatalf("kept %d entries, or out of order: %v", len(next), next)
			}
			kept = next
		}
	})
}
