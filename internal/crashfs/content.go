package crashfs

import (
	"io"
	"maps"
	"math/rand/v2"
	"slices"
)

const (
	pageSize   = 4096
	sectorSize = 512
)

// page is one aligned piece of a file. A page that is not in content.dirty is shared by several states and never
// written.
type page [pageSize]byte

// content is the bytes of one file twice: as programs see them, and as they are on the disk. A page that is in no map
// is a hole. Bytes of now behind size are zero.
type content struct {
	size    int64
	now     map[int64]*page
	onDisk  map[int64]*page
	durable int64 // the size on the disk
	// dirty holds the pages of now, holes included, that the next sync brings to the disk.
	dirty map[int64]bool
	// lost holds the pages that a failed sync gave up: programs see them, and no later sync writes them.
	lost map[int64]bool
}

func newContent() *content {
	return &content{
		now: map[int64]*page{}, onDisk: map[int64]*page{},
		dirty: map[int64]bool{}, lost: map[int64]bool{},
	}
}

func (c *content) readAt(p []byte, off int64) (int, error) {
	if off >= c.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), c.size-off)]
	for done := 0; done < len(p); {
		at := off + int64(done)
		in := at % pageSize
		n := min(len(p)-done, int(pageSize-in))
		if pg := c.now[at/pageSize]; pg != nil {
			copy(p[done:done+n], pg[in:])
		} else {
			clear(p[done : done+n])
		}
		done += n
	}
	return len(p), nil
}

func (c *content) writeAt(p []byte, off int64) {
	for done := 0; done < len(p); {
		at := off + int64(done)
		done += copy(c.own(at / pageSize)[at%pageSize:], p[done:])
	}
	c.size = max(c.size, off+int64(len(p)))
}

// own returns a page that may be written.
func (c *content) own(i int64) *page {
	pg := c.now[i]
	if pg != nil && c.dirty[i] {
		return pg
	}
	fresh := new(page)
	if pg != nil {
		*fresh = *pg
	}
	c.now[i] = fresh
	c.dirty[i] = true
	return fresh
}

func (c *content) truncate(size int64) {
	if size < c.size {
		c.zero(size, c.size-size)
	}
	c.size = size
}

// zero makes holes of the whole pages in a range and writes zeroes in the pages at its ends. It allocates nothing in
// holes.
func (c *content) zero(off, n int64) {
	end := off + n
	for _, i := range c.pagesIn(off, end) {
		start := i * pageSize
		switch {
		case start >= off && (start+pageSize <= end || end >= c.size):
			delete(c.now, i)
			c.dirty[i] = true
		default:
			clear(c.own(i)[max(off-start, 0):min(end-start, pageSize)])
		}
	}
}

// pagesIn returns the pages that overlap a range, holes left out.
func (c *content) pagesIn(off, end int64) []int64 {
	var in []int64
	first, last := off/pageSize, (end-1)/pageSize
	if last-first > int64(len(c.now)) {
		for i := range c.now {
			if first <= i && i <= last {
				in = append(in, i)
			}
		}
		return in
	}
	for i := first; i <= last; i++ {
		if c.now[i] != nil {
			in = append(in, i)
		}
	}
	return in
}

// sync brings the dirty pages and the size to the disk.
func (c *content) sync() {
	for i := range c.dirty {
		delete(c.lost, i)
		c.store(i, c.now[i])
	}
	clear(c.dirty)
	c.durable = c.size
}

// dropDirty is what a kernel does when writing fails: the pages are clean from then on, with bytes the disk does not
// have.
func (c *content) dropDirty() {
	maps.Copy(c.lost, c.dirty)
	clear(c.dirty)
}

func (c *content) store(i int64, pg *page) {
	if pg == nil {
		delete(c.onDisk, i)
		return
	}
	c.onDisk[i] = pg
}

// afterCut returns the file as it is found after a power cut. Without rng that is what was synced. With rng, any part
// of what was not synced may have reached the disk as well: each page whole, not at all or up to some sector, and any
// size between the old and the new.
func (c *content) afterCut(rng *rand.Rand) *content {
	f := newContent()
	maps.Copy(f.onDisk, c.onDisk)
	f.durable = c.durable
	if rng != nil {
		c.tear(f, rng)
	}
	maps.Copy(f.now, f.onDisk)
	f.size = f.durable
	// A file that came back shorter has no bytes behind its end, neither in this life nor in the next.
	f.zero(f.size, 1<<62-f.size)
	f.sync()
	return f
}

func (c *content) tear(f *content, rng *rand.Rand) {
	if c.size != c.durable {
		low, high := min(c.size, c.durable), max(c.size, c.durable)
		f.durable = []int64{c.durable, c.size, low + rng.Int64N(high-low+1)}[rng.IntN(3)]
	}
	maps.Copy(c.dirty, c.lost)
	keep := rng.IntN(4) // of three pages
	for _, i := range slices.Sorted(maps.Keys(c.dirty)) {
		switch {
		case rng.IntN(3) >= keep:
		case rng.IntN(4) > 0:
			f.store(i, c.now[i])
		default:
			f.store(i, torn(c.onDisk[i], c.now[i], rng.IntN(pageSize/sectorSize)*sectorSize))
		}
	}
}

// torn returns the old page with the first n bytes of the fresh one.
func torn(old, fresh *page, n int) *page {
	pg := new(page)
	if old != nil {
		*pg = *old
	}
	if fresh != nil {
		copy(pg[:n], fresh[:n])
	} else {
		clear(pg[:n])
	}
	return pg
}

// seekData returns the first offset from off on that may hold data, and false when there is none.
func (c *content) seekData(off int64) (int64, bool) {
	if off >= c.size {
		return 0, false
	}
	best := int64(-1)
	for i := range c.now {
		start := max(i*pageSize, off)
		if start < (i+1)*pageSize && start < c.size && (best < 0 || start < best) {
			best = start
		}
	}
	return best, best >= 0
}

// seekHole returns the first offset from off on that is in a hole. The end of the file is one.
func (c *content) seekHole(off int64) (int64, bool) {
	if off >= c.size {
		return 0, false
	}
	i := off / pageSize
	if c.now[i] == nil {
		return off, true
	}
	for c.now[i] != nil {
		i++
	}
	return min(i*pageSize, c.size), true
}
