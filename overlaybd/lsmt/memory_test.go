package lsmt

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// heapOf returns by how many bytes the heap has grown with what make returns.
func heapOf(build func() any) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	built := build()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(built)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// maxPerSegment is what a segment may cost in memory, with all that is kept for it.
const maxPerSegment = 40

func TestMemoryOfAStackIsBoundedBySegments(t *testing.T) {
	const n, layers = 300_000, 6
	var segments int
	bytes := heapOf(func() any {
		lists := make([][]Segment, layers)
		for i := range lists {
			var x liveIndex
			rnd := rand.New(rand.NewPCG(7, uint64(i)))
			for j := range n / layers {
				x.insert(DataSegment(rnd.Uint64N(n*8), 8, uint64(8+8*j), uint8(i)))
			}
			lists[i] = x.appendTo(nil)
		}
		merged, err := Merge(lists)
		if err != nil {
			t.Fatal(err)
		}
		segments = len(merged)
		return NewIndex(merged)
	})
	if per := float64(bytes) / float64(segments); per > maxPerSegment {
		t.Errorf("%d segments take %d bytes, %.1f each", segments, bytes, per)
	}
}

// An upper whose segments were covered again must not go on paying for them.
func TestMemoryOfAnUpperIsBoundedBySegments(t *testing.T) {
	for name, shape := range map[string]struct{ survivors uint64 }{
		"random":  {1},
		"covered": {400}, // of 400 neighbours one survives
	} {
		var segments int
		bytes := heapOf(func() any {
			var x liveIndex
			const n = 400_000
			rnd := rand.New(rand.NewPCG(1, 1))
			for range n {
				x.insert(DataSegment(rnd.Uint64N(n*4)*2, 1, 8, 0))
			}
			for lba := uint64(0); shape.survivors > 1 && lba < n*8; lba += 2 * shape.survivors {
				x.insert(DataSegment(lba, 2*shape.survivors-2, 8, 0))
			}
			segments = x.len()
			return &x
		})
		if per := float64(bytes) / float64(segments); per > maxPerSegment {
			t.Errorf("%s: %d segments take %d bytes, %.1f each", name, segments, bytes, per)
		}
	}
}
