package lsmt

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// scattered returns n random writes of eight sectors.
func scattered(n int) []Segment {
	rnd := rand.New(rand.NewPCG(1, 2))
	segs := make([]Segment, n)
	for i := range segs {
		segs[i] = DataSegment(rnd.Uint64N(uint64(n)*16), 8, uint64(8+i*8), 0)
	}
	return segs
}

func BenchmarkLiveInsert(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			segs := scattered(n)
			b.ReportAllocs()
			for b.Loop() {
				var x liveIndex
				for _, s := range segs {
					x.insert(s)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/insert")
		})
	}
}

func BenchmarkIndexNext(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("segments=%d", n), func(b *testing.B) {
			var live liveIndex
			for _, s := range scattered(n * 3 / 2) {
				live.insert(s)
			}
			x := NewIndex(live.appendTo(nil))
			space := uint64(n) * 24
			lba := uint64(1)
			for b.Loop() {
				// Each look-up needs the result of the one before it.
				s, _ := x.Next(lba)
				lba = (lba*6364136223846793005 + s.MOffset() + 1) % space
			}
		})
	}
}
