package ext4_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// benchmarkTree is 20,000 files in 60 directories and one of 8,000, of 13 KB on average.
func benchmarkTree() (paths []string, sizes []int) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		dir := fmt.Sprintf("dirs/%d", i%60)
		if i >= 12_000 {
			dir = "flat"
		}
		paths = append(paths, fmt.Sprintf("%s/file-%d", dir, i))
		sizes = append(sizes, r.IntN(26_000))
	}
	return paths, sizes
}

var benchmarkContent = bytes.Repeat([]byte("0123456789abcdef"), 2000)

// BenchmarkTree compares this package with mke2fs -d, which reads the tree from a directory, into a file on the same
// disk.
func BenchmarkTree(b *testing.B) {
	paths, sizes := benchmarkTree()
	var total int64
	for _, n := range sizes {
		total += int64(n)
	}
	const size = 1 << 30
	image := filepath.Join(b.TempDir(), "image")
	b.Run("writer=own", func(b *testing.B) {
		b.SetBytes(total)
		b.ReportAllocs()
		for b.Loop() {
			f, err := os.Create(image)
			if err != nil {
				b.Fatal(err)
			}
			if err := f.Truncate(size); err != nil {
				b.Fatal(err)
			}
			addTree(b, f, size, paths, sizes)
			f.Close()
		}
	})
	b.Run("writer=mke2fs", func(b *testing.B) {
		tool := requireTool(b, "mke2fs")
		dir := b.TempDir()
		for i, p := range paths {
			p = filepath.Join(dir, p)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(p, benchmarkContent[:sizes[i]], 0o644); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(total)
		for b.Loop() {
			os.Remove(image)
			run(b, tool, "-q", "-t", "ext4", "-b", "4096", "-d", dir, image, fmt.Sprint(size>>10, "k"))
		}
	})
}

func addTree(b *testing.B, dst io.WriterAt, size int64, paths []string, sizes []int) {
	b.Helper()
	w, err := ext4.NewWriter(b.Context(), dst, ext4.Options{Size: size, Inodes: int64(len(paths))})
	if err != nil {
		b.Fatal(err)
	}
	for i, p := range paths {
		e := ext4.Entry{Path: p, Mode: unix.S_IFREG | 0o644, Size: int64(sizes[i])}
		if err := w.Add(b.Context(), e, bytes.NewReader(benchmarkContent[:sizes[i]])); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Finish(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFormat makes empty file systems in memory.
func BenchmarkFormat(b *testing.B) {
	for _, size := range []int64{16 << 20, 64 << 30, 1 << 40} {
		b.Run(fmt.Sprintf("size=%dMiB", size>>20), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := (ext4.Formatter{}).Format(b.Context(), mounttest.NewMemDevice(size)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
