package blockcache

import (
	"errors"
	"os"

	"github.com/sandvol/sandvol/overlaybd/internal/disk"
)

// makeRoom evicts until n more bytes fit into the budget. It is false if they cannot. Called with mu.
func (c *Cache) makeRoom(n int64) bool {
	if c.budget <= 0 {
		return true
	}
	for c.used+n > c.budget {
		if !c.evictIdle() && !c.evictChunk() {
			return false
		}
	}
	return true
}

// evictIdle removes the layer that was closed longest ago.
func (c *Cache) evictIdle() bool {
	el := c.idle.Front()
	if el == nil {
		return false
	}
	l := c.idle.Remove(el).(*idleLayer)
	c.remove(l.id)
	c.used -= l.used
	c.evicted.Add(l.used)
	return true
}

// remove removes the files of a layer that nobody has open.
func (c *Cache) remove(id string) {
	// The map first: without it the data is nothing.
	for _, path := range []string{c.mapPath(id), c.dataPath(id), c.barePath(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.opts.log.Warn("local copy of a layer cannot be removed", "path", path, "error", err)
		}
	}
}

// evictChunk drops one chunk of an open layer. The hand goes round the ring and takes the first chunk that was not read
// since it last came by; after two rounds there is none that may go.
func (c *Cache) evictChunk() bool {
	if !c.punches {
		return false
	}
	for range 2 * len(c.ring) {
		if c.hand >= len(c.ring) {
			c.hand = 0
		}
		ch := c.ring[c.hand]
		if ch.e.whole || ch.used.Swap(false) {
			c.hand++
			continue
		}
		c.discard(ch)
		c.hand++ // the slot holds the newest chunk now
		c.evicted.Add(ch.length())
		return true
	}
	return false
}

// discard drops a chunk of an open layer. Called with mu.
func (c *Cache) discard(ch *chunk) {
	e := ch.e
	c.leaveRing(ch)
	e.chunks[ch.index].Store(nil)
	e.kept -= ch.length()
	c.used -= ch.length()
	var err error
	if _, same := e.want[ch.index]; e.verified && !same {
		// What is fetched into the gap later need not be what was compared with the digest.
		e.verified = false
		err = e.writeHeader(false)
	}
	// Readers that still look at the chunk find that its checksums do not fit. After a crash between the two steps, the
	// other way round, the next process would find the same.
	err = errors.Join(err, clearEntry(e.maps, ch.index))
	if perr := disk.Punch(e.data, ch.start(), ch.length()); !errors.Is(perr, errors.ErrUnsupported) {
		err = errors.Join(err, perr) // unsupported was found at Open; then nothing is evicted in part
	}
	if err != nil {
		c.opts.log.Warn("local copy of a range cannot be given back", "layer", e.id, "offset", ch.start(), "error", err)
	}
}

// leaveRing takes a chunk out of the ring; the last one takes its slot.
func (c *Cache) leaveRing(ch *chunk) {
	last := len(c.ring) - 1
	c.ring[ch.slot] = c.ring[last]
	c.ring[ch.slot].slot = ch.slot
	c.ring[last] = nil
	c.ring = c.ring[:last]
	ch.slot = -1
}
