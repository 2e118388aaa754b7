package nbd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
)

const benchSize = 256 << 20

// BenchmarkServers times the same client against this server over an engine's device, and against qemu-nbd over a raw and a
// qcow2 file, all on one file system and filled alike: random 4 KiB and sequential 1 MiB, one and sixteen requests at a time.
func BenchmarkServers(b *testing.B) {
	for name, start := range map[string]func(*testing.B) string{"sandvol": serveEngine, "qemu-raw": qemu("raw"), "qemu-qcow2": qemu("qcow2")} {
		b.Run("server="+name, func(b *testing.B) {
			path := start(b)
			c, err := dialExport(path, "")
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			fill := make([]byte, 1<<20)
			for off := int64(0); off < benchSize; off += int64(len(fill)) {
				fill[0] = byte(off >> 20)
				if _, err := c.WriteAt(fill, off); err != nil {
					b.Fatal(err)
				}
			}
			for _, op := range []string{"read", "write"} {
				for _, size := range []int64{4 << 10, 1 << 20} {
					for _, depth := range []int{1, 16} {
						b.Run(fmt.Sprintf("op=%s/bs=%dk/qd=%d", op, size>>10, depth), func(b *testing.B) {
							load(b, c, op, size, depth)
						})
					}
				}
			}
		})
	}
}

// load keeps depth requests under way.
func load(b *testing.B, c *client, op string, size int64, depth int) {
	call := c.ReadAt
	if op == "write" {
		call = c.WriteAt
	}
	b.SetBytes(size)
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range depth {
		n := b.N / depth
		if i < b.N%depth {
			n++
		}
		wg.Go(func() {
			p, r := make([]byte, size), rand.New(rand.NewPCG(uint64(i), 1))
			for k := range n {
				off := r.Int64N(benchSize/size) * size
				if size > 4<<10 {
					off = int64(i+k*depth) * size % benchSize
				}
				if _, err := call(p, off); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func serveEngine(b *testing.B) string {
	engine, err := overlaybd.New(overlaybd.Config{Open: func(context.Context, overlaybd.Layer) (overlaybd.Source, error) {
		return nil, overlaybd.ErrUnavailable // there are none but the device's own
	}})
	if err != nil {
		b.Fatal(err)
	}
	disk, err := engine.OpenWritable(b.Context(), b.TempDir(), overlaybd.Stack{VirtualSize: benchSize})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = disk.Close() })
	x, err := newServer(b).Expose(b.Context(), "drive", disk, false)
	if err != nil {
		b.Fatal(err)
	}
	return x.Path()
}

func qemu(format string) func(*testing.B) string {
	return func(b *testing.B) string {
		file, socket := filepath.Join(b.TempDir(), "image"), shortDir(b)
		tool(b, "qemu-img")("create", "-q", "-f", format, file, fmt.Sprint(benchSize))
		tool(b, "qemu-nbd")("--version")
		cmd := exec.Command("qemu-nbd", "--persistent", "--format", format, "--cache", "writeback", "--socket", socket, file)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // "killed" is what it should say
		})
		for range 100 {
			if c, err := dialExport(socket, ""); err == nil {
				_ = c.Close()
				return socket
			}
			time.Sleep(20 * time.Millisecond)
		}
		b.Fatal("qemu-nbd does not come up")
		return ""
	}
}
