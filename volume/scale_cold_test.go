package volume_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/blockcache"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// segmentBytes is what a segment takes in an index that is not compressed.
const segmentBytes = 16

// coldScene is a bucket with a volume of many segments in five published layers.
type coldScene struct {
	srv      *s3test.Server
	volume   volume.Volume
	layers   int
	segments int
	tails    int64 // bytes of indexes, as the records say
}

func newColdScene(tb testing.TB, layers, perLayer int) *coldScene {
	tb.Helper()
	c := &coldScene{srv: s3test.New(tb), layers: layers, segments: layers * perLayer}
	m := c.node(tb, "writer", c.srv.Open(tb, "repo/"))
	v, err := m.Create(tb.Context(), volume.CreateOptions{Size: 8 * volume.GiB})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := m.Attach(tb.Context(), v.ID, "sb")
	if err != nil {
		tb.Fatal(err)
	}
	for layer := range layers {
		if err := scatter(s.Device(), layer, perLayer); err != nil {
			tb.Fatal(err)
		}
		final := layer == layers-1
		cut, err := s.Seal(tb.Context(), volume.NewCut(volume.Clean, final))
		if err == nil && final {
			err = s.Release(tb.Context(), cut)
		} else if err == nil {
			err = s.Publish(tb.Context(), cut)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if c.volume, err = m.Get(tb.Context(), v.ID); err != nil {
		tb.Fatal(err)
	}
	for _, l := range c.volume.Stack.Layers {
		c.tails += l.Tail
	}
	if err := m.Repository().Close(); err != nil {
		tb.Fatal(err)
	}
	return c
}

// scatter writes n single sectors with gaps between them, each layer into a part of the disk of its own. What it writes
// compresses to a good part of a sector: the data of a layer outweighs its index.
func scatter(dev overlaybd.Device, layer, n int) error {
	r := rand.New(rand.NewPCG(uint64(layer), 0))
	p := make([]byte, overlaybd.SectorSize)
	for i := range n {
		for at := 0; at < len(p)/4; at += 8 {
			binary.LittleEndian.PutUint64(p[at:], r.Uint64())
		}
		off := int64(layer)*volume.GiB + int64(i)*2*overlaybd.SectorSize
		if _, err := dev.WriteAt(p, off); err != nil {
			return err
		}
	}
	return nil
}

func (c *coldScene) node(tb testing.TB, name string, st store.Store) *volume.Manager {
	tb.Helper()
	r, err := volume.Open(tb.Context(), volume.Config{Store: st, Dir: filepath.Join(tb.TempDir(), name), Node: name},
		volume.Quiet, volume.WithFormatter(marker{}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = r.Close() }) // the scene closes the writer itself
	m, err := r.Tenant("team")
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// coldCost is what a mount took on a node that has nothing.
type coldCost struct {
	bytes            int64
	requests, rounds int
	took             time.Duration
}

// mount attaches the volume on a node that has nothing of it, and gives it back.
func (c *coldScene) mount(tb testing.TB, name string, sent *requests) (cost coldCost) {
	tb.Helper()
	trace := storetest.Trace(c.srv.Open(tb, "repo/", s3store.WithTransport(sent)))
	m := c.node(tb, name, trace)
	trace.Reset()
	before, begun := sent.n.Load(), time.Now()
	s, err := m.Attach(tb.Context(), c.volume.ID, name)
	if err != nil {
		tb.Fatal(err)
	}
	cost = coldCost{m.Repository().LocalCache().Fetched, int(sent.n.Load() - before), trace.Rounds(), time.Since(begun)}
	cut, err := s.Seal(tb.Context(), volume.NewCut(volume.Clean, true))
	if err == nil {
		err = s.Release(context.WithoutCancel(tb.Context()), cut)
	}
	if err == nil {
		err = m.Repository().Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return cost
}

// check compares a mount with what is promised: little more is read than the indexes, which are no longer than their
// segments; four requests are of records, and one is of each layer; and layers do not wait for each other.
func (c *coldScene) check(tb testing.TB, cost coldCost) {
	tb.Helper()
	layers := len(c.volume.Stack.Layers) // and the empty file system
	if layers != c.layers+1 {
		tb.Errorf("the volume has %d layers", layers)
	}
	if raw := int64(c.segments)*segmentBytes + int64(layers)*64<<10; c.tails > raw {
		tb.Errorf("the indexes of %d segments have %d bytes, want at most %d", c.segments, c.tails, raw)
	}
	most := c.tails * 12 / 10
	if c.segments < 4_000_000 {
		most += int64(layers) * blockcache.ChunkSize // reads are of whole chunks, which weigh more the shorter an index is
	}
	if cost.bytes > most {
		tb.Errorf("%d bytes were read, want at most %d: the indexes have %d", cost.bytes, most, c.tails)
	}
	if cost.requests != 4+layers || cost.rounds > 5 {
		tb.Errorf("%d HTTP requests in %d rounds for %d layers", cost.requests, cost.rounds, layers)
	}
}

// slowly is a bucket whose every answer takes 20 ms longer.
func (c *coldScene) slowly() *requests { return &requests{next: c.srv.Latency(20 * time.Millisecond)} }

// a node that has nothing mounts a volume of many segments over S3 in five round trips, whatever the number of
// layers, and reads at most 1.2 times their indexes. SANDVOL_SCALE=full makes it 4,000,000 segments.
func TestColdMountOverS3ReadsLittleMoreThanIndexes(t *testing.T) {
	c := newColdScene(t, 5, many(800_000, 30_000))
	cost := c.mount(t, "cold", c.slowly())
	t.Logf("%d segments, indexes %d bytes: %+v", c.segments, c.tails, cost)
	c.check(t, cost)
}

// BenchmarkColdMountOverS3 mounts a volume of 4,000,000 segments in five layers, with 20 ms latency, on a node that has
// nothing of it.
func BenchmarkColdMountOverS3(b *testing.B) {
	c := newColdScene(b, 5, 800_000)
	sent := c.slowly()
	var cost coldCost
	var total time.Duration
	for b.Loop() {
		cost = c.mount(b, "cold", sent)
		c.check(b, cost)
		total += cost.took
	}
	b.ReportMetric(total.Seconds()/float64(b.N), "s/mount")
	b.ReportMetric(float64(cost.bytes)/float64(c.tails), "read/index")
	b.ReportMetric(float64(cost.requests), "requests/mount")
	b.ReportMetric(float64(cost.rounds), "rounds/mount")
}
