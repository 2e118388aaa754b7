package mounttest

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/overlaybd"
)

func testSectors(t *testing.T, e *env) {
	dev, _, c := e.drive(t)
	for _, r := range []span{
		{0, 512}, {512, 1024}, {4096, 4096}, {1<<20 - 512, 1024}, {2 << 20, 1 << 20}, {deviceSize - 512, 512},
	} {
		p := noise(uint64(r.off), int(r.n))
		write(t, c, p, r.off)
		same(t, "device", read(t, dev, int(r.n), r.off), p)
		same(t, "client", read(t, c, int(r.n), r.off), p)
	}
}

func testBytes(t *testing.T, e *env) {
	dev, _, c := e.drive(t)
	model := noise(1, deviceSize)
	write(t, c, model, 0)
	for i, r := range []span{
		{1, 1}, {511, 2}, {513, 510}, {700, 3000}, {4095, 1}, {9999, 300_001}, {deviceSize - 1, 1},
	} {
		if e.SectorsOnly {
			r = r.widened()
		}
		p := noise(uint64(i+2), int(r.n))
		write(t, c, p, r.off)
		copy(model[r.off:], p)
		same(t, "client", read(t, c, int(r.n), r.off), p)
	}
	same(t, "device", read(t, dev, deviceSize, 0), model)
}

func testEnd(t *testing.T, e *env) {
	dev, _, c := e.drive(t)
	before := noise(3, 1024)
	write(t, c, before, deviceSize-1024)
	if _, err := c.WriteAt(make([]byte, 1024), deviceSize-512); err == nil {
		t.Error("a write over the end succeeded")
	}
	if _, err := c.WriteAt(make([]byte, 512), deviceSize); err == nil {
		t.Error("a write at the end succeeded")
	}
	same(t, "device", read(t, dev, 1024, deviceSize-1024), before)
	if n, err := c.ReadAt(make([]byte, 512), deviceSize); n != 0 || err == nil {
		t.Errorf("read at the end: %d bytes, %v; want none and an error", n, err)
	}
	if dev.Size() != deviceSize {
		t.Errorf("size is now %d", dev.Size())
	}
}

func testConcurrent(t *testing.T, e *env) {
	dev, x, _ := e.drive(t)
	const workers, part = 16, deviceSize / 16
	var wg sync.WaitGroup
	for i := range workers {
		c := e.open(t, x, false)
		wg.Go(func() {
			base, p := int64(i*part), noise(uint64(i+10), part)
			for off := 0; off < part; off += 24 << 10 {
				to := min(off+24<<10, part)
				if _, err := c.WriteAt(p[off:to], base+int64(off)); err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, to-off)
				if _, err := c.ReadAt(got, base+int64(off)); err != nil || !bytes.Equal(got, p[off:to]) {
					t.Errorf("worker %d at %d: other bytes, or %v", i, off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range workers {
		same(t, fmt.Sprintf("part %d", i), read(t, dev, part, int64(i*part)), noise(uint64(i+10), part))
	}
}

func testSharedSectors(t *testing.T, e *env) {
	dev, x, _ := e.drive(t)
	// Eight writers own interleaved stripes of 100 bytes, so that nearly every sector belongs to several. Clients that address
	// whole sectors own neighbours at least.
	const workers, rounds = 8, 60
	stripe := 100
	if e.SectorsOnly {
		stripe = overlaybd.SectorSize
	}
	var wg sync.WaitGroup
	for i := range workers {
		c := e.open(t, x, false)
		wg.Go(func() {
			for r := range rounds {
				off := int64((r*workers + i) * stripe)
				if _, err := c.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, stripe), off); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := read(t, dev, (rounds*workers*stripe+511)&^511, 0)
	for at := range rounds * workers * stripe {
		if want := byte(at/stripe%workers + 1); got[at] != want {
			t.Fatalf("byte %d is %d, want %d: a write was lost", at, got[at], want)
		}
	}
}

func testSync(t *testing.T, e *env) {
	dev, _, c := e.drive(t)
	for i := range 10 {
		write(t, c, noise(uint64(i), 4096), int64(i)*8192)
		if err := c.Discard(int64(i)*8192, 4096); err != nil {
			t.Fatal(err)
		}
		if err := c.Sync(); err != nil {
			t.Fatal(err)
		}
		if n := dev.Counts(); n.Unflushed != 0 || n.Flushes == 0 || n.Writes == 0 || n.Discards == 0 {
			t.Fatalf("after sync %d: %+v, want all changes to have arrived before a flush", i, n)
		}
	}
}

func testDiscard(t *testing.T, e *env) {
	dev, _, c := e.drive(t)
	model := noise(4, 1<<20)
	write(t, c, model, 0)
	ranges := []span{{0, 512}, {4096, 8192}, {64 << 10, 128 << 10}}
	if !e.SectorsOnly {
		odd := []span{{513, 1}, {1023, 2}, {20_001, 5000}, {30_720, 100}, {31_132, 100}, {40_000, 800}}
		ranges = append(ranges, odd...)
	}
	for _, r := range ranges {
		if err := c.Discard(r.off, r.n); err != nil {
			t.Fatalf("discard %d+%d: %v", r.off, r.n, err)
		}
		clear(model[r.off : r.off+r.n])
		same(t, fmt.Sprintf("client after %d+%d", r.off, r.n), read(t, c, len(model), 0), model)
	}
	same(t, "device", read(t, dev, len(model), 0), model)
	if n := dev.Counts(); n.Discards < 3 || n.BytesDiscarded < 128<<10 {
		t.Errorf("%d discards of %d bytes reached the device, want whole sectors to", n.Discards, n.BytesDiscarded)
	}
}
