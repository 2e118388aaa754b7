package lsmt

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// turns times what a benchmark compares, in turns, so that all of it sees the same machine. A figure is that of the
// turn that nine of ten were slower than: what other work on the machine does only ever adds.
type turns struct {
	b     *testing.B
	times map[string][]float64 // seconds an operation
}

func newTurns(b *testing.B) *turns { return &turns{b, map[string][]float64{}} }

// take runs f, which is n operations of that name.
func (t *turns) take(name string, n int, f func()) {
	start := time.Now()
	f()
	t.times[name] = append(t.times[name], time.Since(start).Seconds()/float64(n))
}

// seconds returns what one operation takes.
func (t *turns) seconds(name string) float64 {
	s := slices.Sorted(slices.Values(t.times[name]))
	return s[len(s)/10]
}

// BenchmarkIndexLookup asks for what eight random sectors map to, one question after the other, each of which depends on
// the answer before: as the reference's figures were made.
func BenchmarkIndexLookup(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		for _, shape := range indexShapes {
			b.Run(fmt.Sprintf("segments=%d/shape=%s", n, shape.name), func(b *testing.B) {
				segs := spaced(n, shape.extra)
				v := View{Base: NewIndex(segs)}
				ask := queries(segs)
				var found [maxRun]Segment
				state := uint64(1)
				turns := newTurns(b)
				for b.Loop() {
					turns.take("lookup", lookupsATurn, func() {
						for range lookupsATurn {
							lba := ask(state)
							k, _ := v.lookup(&found, lba, lba+8)
							state = (state + found[0].stored + uint64(k)) * 6364136223846793005
						}
					})
				}
				b.ReportMetric(1e-6/turns.seconds("lookup"), "Mlookups/s")
			})
		}
	}
}

const lookupsATurn = 100_000

// queries returns a function from random numbers to addresses near segments. It has a small table of where runs of a
// thousand segments are, to hit clusters, and computes the rest.
func queries(segs []Segment) func(uint64) uint64 {
	const run = 1000
	var runs [1024]struct{ first, sectors uint64 }
	n := min(len(segs)/run, len(runs))
	for i := range n {
		first, last := segs[i*run], segs[i*run+run-2]
		runs[i].first, runs[i].sectors = first.LBA(), last.End()-first.LBA()
	}
	return func(random uint64) uint64 {
		r, low := bits.Mul64(random, uint64(n))
		inside, _ := bits.Mul64(low, runs[r].sectors)
		return runs[r].first + inside
	}
}

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
			segs, t := scattered(n), newTurns(b)
			b.ReportAllocs()
			for b.Loop() {
				t.take("insert", n, func() {
					var x liveIndex
					for _, s := range segs {
						x.insert(s)
					}
				})
			}
			b.ReportMetric(t.seconds("insert")*1e9, "ns/insert")
		})
	}
}

// BenchmarkReplay opens a log with a million records of one random sector each.
func BenchmarkReplay(b *testing.B) {
	const n = 1_000_000
	p := logPaths(b.TempDir())
	l, err := CreateLog(p, LogOptions{VirtualSize: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	rnd, sector := rand.New(rand.NewPCG(1, 2)), make([]byte, SectorSize)
	for range n {
		if err := l.Append(sector, rnd.Uint64N(2*n)); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(l.Sync(), l.Close()); err != nil {
		b.Fatal(err)
	}
	t := newTurns(b)
	for b.Loop() {
		t.take("open", 1, func() {
			if l, _, err = OpenLog(p, LogOptions{}); err != nil {
				b.Fatal(err)
			}
		})
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(t.seconds("open")*1e3, "ms/open")
}

// writeLayer writes a sealed layer whose data, up to sector end, are not written: the file is sparse.
func writeLayer(b *testing.B, segs []Segment, end uint64) (path string, size int64) {
	b.Helper()
	path = filepath.Join(b.TempDir(), "layer")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	at := int64(end) * SectorSize
	tail := Tail(Header{IndexOffset: at, VirtualSize: 1 << 40}, segs)
	if _, err := f.WriteAt(Header{Flags: flagsData, VirtualSize: 1 << 40}.encode(), 0); err != nil {
		b.Fatal(err)
	}
	if _, err := f.WriteAt(tail, at); err != nil {
		b.Fatal(err)
	}
	return path, at + int64(len(tail))
}

// BenchmarkOpenLayer opens the largest layer that there is: its index is read, checked, and made ready for lookups.
func BenchmarkOpenLayer(b *testing.B) {
	segs := spaced(MaxSegments, indexShapes[0].extra)
	path, size := writeLayer(b, segs, segs[len(segs)-1].MEnd())
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	t := newTurns(b)
	for b.Loop() {
		t.take("open", 1, func() {
			l, err := OpenLayer(f, size)
			if err != nil {
				b.Fatal(err)
			}
			merged, err := Merge([][]Segment{l.Segments})
			if err != nil {
				b.Fatal(err)
			}
			NewIndex(merged)
		})
	}
	b.ReportMetric(t.seconds("open")*1e3, "ms/open")
}

// BenchmarkMerge resolves eight layers of random segments.
func BenchmarkMerge(b *testing.B) {
	const n, layers = 1_000_000, 8
	lists := make([][]Segment, layers)
	for i := range lists {
		var x liveIndex
		for j, s := range scattered(n / layers) {
			x.insert(DataSegment(splitmix64(s.LBA()+uint64(i*n+j))%(n*16), 8, s.MOffset(), uint8(i)))
		}
		lists[i] = x.appendTo(nil)
	}
	t := newTurns(b)
	for b.Loop() {
		t.take("merge", 1, func() {
			merged, err := Merge(lists)
			if err != nil {
				b.Fatal(err)
			}
			NewIndex(merged)
		})
	}
	b.ReportMetric(t.seconds("merge")*1e3, "ms/merge")
}

// BenchmarkSeal seals a log of 900,000 segments. The time must not depend on how much of a disk they map; the data is not
// written, for what a seal does with it is nothing.
func BenchmarkSeal(b *testing.B) {
	const n = 900_000
	for _, gib := range []int64{1, 64} {
		b.Run(fmt.Sprintf("mapped=%dg", gib), func(b *testing.B) {
			sectors := uint64(gib) << 30 / SectorSize
			l, err := CreateLog(logPaths(b.TempDir()), LogOptions{VirtualSize: 1 << 40})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			for i := range uint64(n) {
				from, to := sectors*i/n, sectors*(i+1)/n
				l.live.insert(DataSegment(from+i, to-from, firstMOffset+from, 0))
			}
			l.end.Store(HeaderSize + int64(sectors)*SectorSize)
			t := newTurns(b)
			for b.Loop() {
				t.take("seal", 1, func() {
					if _, err := l.Seal(); err != nil {
						b.Fatal(err)
					}
				})
			}
			b.ReportMetric(t.seconds("seal")*1e3, "ms/seal")
		})
	}
}
