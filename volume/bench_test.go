package volume_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// What is written into the two volumes that the benchmarks copy, in MiB. Both have the same number of layers.
const (
	littleMiB = 1
	muchMiB   = 8192 - 1
)

// pair is a repository with a volume that holds little and one that holds much.
type pair struct {
	m            *volume.Manager
	trace        *storetest.TracedStore
	little, much string
}

func newPair(b *testing.B) *pair {
	b.Helper()
	dir := b.TempDir()
	st, err := posixstore.New(filepath.Join(dir, "shared"))
	if err != nil {
		b.Fatal(err)
	}
	p := &pair{trace: storetest.Trace(st)}
	r, err := volume.Open(b.Context(), volume.Config{Store: p.trace, Dir: filepath.Join(dir, "node"), Node: "a"},
		volume.WithFormatter(marker{}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	if p.m, err = r.Tenant("team"); err != nil {
		b.Fatal(err)
	}
	p.little, p.much = filled(b, p.m, littleMiB).ID, filled(b, p.m, muchMiB).ID
	// What was written is on its way to the disk, and would make every fsync that follows wait for it.
	unix.Sync()
	p.trace.Reset()
	return p
}

// run does the operation on both volumes in turn, so that both meet the same state of the disk, and reports the median time
// of each, their ratio, and how many of the requests moved data. An operation is a pair of calls.
func (p *pair) run(b *testing.B, op func(src string) error) {
	var little, much []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		little = append(little, timed(b, p.little, op))
		much = append(much, timed(b, p.much, op))
	}
	slices.Sort(little)
	slices.Sort(much)
	l, m := little[len(little)/2], much[len(much)/2]
	b.ReportMetric(float64(l), "ns/1MiB")
	b.ReportMetric(float64(m), "ns/8GiB")
	b.ReportMetric(float64(m)/float64(l), "ratio")
	blobs := p.trace.Count(storetest.OpPutBlob, storetest.OpReadRange)
	b.ReportMetric(float64(blobs)/float64(2*b.N), "blobs-moved/call")
	b.ReportMetric(float64(p.trace.Count())/float64(2*b.N), "requests/call")
}

func timed(b *testing.B, src string, op func(string) error) time.Duration {
	b.Helper()
	begun := time.Now()
	if err := op(src); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// BenchmarkCopy compares what does not depend on the data: ratio is the time with 8 GiB in the volume against that with 1 MiB.
func BenchmarkCopy(b *testing.B) {
	p := newPair(b)
	shots := map[string]string{}
	for _, src := range []string{p.little, p.much} {
		c, err := p.m.Snapshot(b.Context(), src, volume.SnapshotOptions{})
		if err != nil {
			b.Fatal(err)
		}
		shots[src] = c.ID
	}
	for name, op := range map[string]func(src string) error{
		"fork":     func(src string) error { return second(p.m.Fork(b.Context(), src, volume.ForkOptions{})) },
		"snapshot": func(src string) error { return second(p.m.Snapshot(b.Context(), src, volume.SnapshotOptions{})) },
		"restore":  func(src string) error { return second(p.m.Restore(b.Context(), shots[src], volume.ForkOptions{})) },
		"create": func(string) error {
			return second(p.m.Create(b.Context(), volume.CreateOptions{Size: 8 * volume.GiB}))
		},
	} {
		b.Run("op="+name, func(b *testing.B) {
			p.trace.Reset()
			p.run(b, op)
		})
	}
}
