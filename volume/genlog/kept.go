package genlog

import (
	"slices"
	"time"
)

// maxKept is how many generations a log keeps by name, and the number of steps that the keep window is divided into.
const maxKept = 64

// thin returns what generation N+1 keeps, when generation N kept `kept` and is itself called n. It is a pure function
// of generation N: whoever writes N+1, and a ghost in its slot, keep the same.
//
// n joins when it is at least a step away from the last entry; entries that are a window older than n leave, and then
// the oldest beyond maxKept. A kept generation therefore leaves once and never comes back, which is what makes an old
// list safe to prune by: it keeps more of the old generations than a newer one, not less. A window of 0 keeps none.
func thin(kept []Kept, n Kept, window time.Duration) []Kept {
	next := make([]Kept, 0, len(kept)+1)
	if window <= 0 {
		return next
	}
	for _, k := range kept {
		if n.At.Sub(k.At) <= window {
			next = append(next, k)
		}
	}
	// Clocks of different writers may disagree. The distance counts, not its sign: an entry from a clock that ran years
	// ahead must not keep everything after it from joining.
	if len(next) == 0 || n.At.Sub(next[len(next)-1].At).Abs() >= window/maxKept {
		next = append(next, n)
	}
	return slices.Clip(next[max(0, len(next)-maxKept):])
}
