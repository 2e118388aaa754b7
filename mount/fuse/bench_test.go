package fuse_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/mounttest"
)

// BenchmarkFile is what the way through the kernel costs: the device is memory.
func BenchmarkFile(b *testing.B) {
	if os.Geteuid() != 0 || unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) != nil {
		b.Skip("needs root and /dev/fuse")
	}
	s, err := fuse.New(filepath.Join(b.TempDir(), "drives"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(context.Background())
	const size = 64 << 20
	x, err := s.Expose(b.Context(), "drive", mounttest.NewMemDevice(size), false)
	if err != nil {
		b.Fatal(err)
	}
	fd, err := unix.Open(x.Path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	for name, call := range map[string]func(p []byte, off int64) (int, error){
		"read":  func(p []byte, off int64) (int, error) { return unix.Pread(fd, p, off) },
		"write": func(p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) },
	} {
		for _, bs := range []int64{4 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("op=%s/bs=%dk", name, bs>>10), func(b *testing.B) {
				b.SetBytes(bs)
				b.ReportAllocs()
				var next atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					p := make([]byte, bs)
					for pb.Next() {
						if _, err := call(p, next.Add(bs)%size); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
