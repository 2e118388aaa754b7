package volume_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// What is written into the volumes that the benchmarks copy, in MiB. Both have the same number of layers.
var benchSizes = []int{1, 2048}

// benchmark runs a copying operation on volumes of both sizes, over a directory, and reports how many of its requests moved
// data. The operation removes nothing: a repository grows.
func benchmark(b *testing.B, op func(*testing.B, *volume.Manager, string) error) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("written=%dMiB", n), func(b *testing.B) {
			dir := b.TempDir()
			st, err := posixstore.New(filepath.Join(dir, "shared"))
			if err != nil {
				b.Fatal(err)
			}
			trace := storetest.Trace(st)
			r, err := volume.Open(b.Context(), volume.Config{Store: trace, Dir: filepath.Join(dir, "node"), Node: "a"},
				volume.WithFormatter(marker{}))
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			m, err := r.Tenant("team")
			if err != nil {
				b.Fatal(err)
			}
			src := filled(b, m, n)
			trace.Reset()
			b.ReportAllocs()
			for b.Loop() {
				if err := op(b, m, src.ID); err != nil {
					b.Fatal(err)
				}
			}
			blobs := trace.Count(storetest.OpPutBlob, storetest.OpReadRange)
			b.ReportMetric(float64(trace.Count())/float64(b.N), "requests/op")
			b.ReportMetric(float64(blobs)/float64(b.N), "blobs-moved/op")
		})
	}
}

func BenchmarkFork(b *testing.B) {
	benchmark(b, func(b *testing.B, m *volume.Manager, src string) error {
		return second(m.Fork(b.Context(), src, volume.ForkOptions{}))
	})
}

func BenchmarkSnapshot(b *testing.B) {
	benchmark(b, func(b *testing.B, m *volume.Manager, src string) error {
		return second(m.Snapshot(b.Context(), src, volume.SnapshotOptions{}))
	})
}

func BenchmarkRestore(b *testing.B) {
	var from, shot string
	benchmark(b, func(b *testing.B, m *volume.Manager, src string) error {
		if from != src {
			c, err := m.Snapshot(b.Context(), src, volume.SnapshotOptions{})
			if err != nil {
				return err
			}
			from, shot = src, c.ID
		}
		return second(m.Restore(b.Context(), shot, volume.ForkOptions{}))
	})
}

// BenchmarkCreateEmpty is the second and every later empty volume of a size.
func BenchmarkCreateEmpty(b *testing.B) {
	benchmark(b, func(b *testing.B, m *volume.Manager, _ string) error {
		return second(m.Create(b.Context(), volume.CreateOptions{Size: 8 * volume.GiB}))
	})
}
