package blockcache

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// entry is one layer that is open, whoever has handles on it.
type entry struct {
	c       *Cache
	id      string
	size    int64
	loading sync.Once
	loadErr error
	data    *os.File
	maps    *os.File
	chunks  []atomic.Pointer[chunk] // nil: not kept

	// Under Cache.mu:
	refs     int   // handles, and fetches under way
	kept     int64 // bytes
	verified bool  // the whole was compared with its digest, and nothing was dropped since
	whole    bool  // it is only worth something as a whole: no chunk of it is evicted
	want     map[int64]sums

	mu      sync.Mutex
	flights map[int64]*flight // fetches under way, by each of their chunks
	next    int64             // the chunk that a sequential reader lacks next
	window  int64             // how many chunks it then gets
	health  health
}

func (e *entry) chunkLength(i int64) int64 { return min(ChunkSize, e.size-i*ChunkSize) }

// load opens the files and learns from the map what they hold.
func (e *entry) load() error {
	c := e.c
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // it may have been removed: it is a cache
		return err
	}
	if err := e.adopt(); err != nil {
		return err
	}
	var err error
	if e.data, err = os.OpenFile(c.dataPath(e.id), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if e.maps, err = os.OpenFile(c.mapPath(e.id), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	verified, err := e.checkFiles()
	if err != nil {
		return err
	}
	var found []*chunk
	err = eachEntry(e.maps, int64(len(e.chunks)), func(i int64, s sums) {
		found = append(found, &chunk{e: e, index: i, sums: s, slot: -1})
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range found {
		e.add(ch)
		c.used += ch.length()
	}
	e.verified = verified && len(found) == len(e.chunks)
	c.makeRoom(0)
	return nil
}

// checkFiles makes the files those of an empty entry, unless the map is of this layer and the data was not lost.
func (e *entry) checkFiles() (verified bool, err error) {
	info, err := e.data.Stat()
	if err != nil {
		return false, err
	}
	verified, err = readHeader(e.maps, e.size)
	if err == nil && info.Size() == e.size {
		return verified, nil
	}
	// A file of another length was cut, or is of no layer. What is left of it is not worth the thought.
	err = errors.Join(e.data.Truncate(0), e.maps.Truncate(0), e.data.Truncate(e.size), e.writeHeader(false))
	return false, err
}

func (e *entry) writeHeader(verified bool) error {
	_, err := e.maps.WriteAt(encodeHeader(e.size, verified), 0)
	return err
}

// adopt makes a whole copy that was put into the directory an entry with a map. Whoever put it there has compared it with
// its digest.
func (e *entry) adopt() error {
	bare := e.c.barePath(e.id)
	info, err := os.Stat(bare)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() != e.size {
		return errors.Join(err, os.Remove(bare)) // a full disk or a bad one left this
	}
	m, err := e.c.mapOf(bare, e.size, true)
	if err != nil {
		return err
	}
	// Data before map, so that no map describes the file that was there before.
	return errors.Join(os.Rename(bare, e.c.dataPath(e.id)), os.Rename(m, e.c.mapPath(e.id)))
}

// closeFiles closes what load has opened. The time of the map is that of the last use, for the next process.
func (e *entry) closeFiles() {
	if e.maps != nil {
		now := time.Now()
		_ = os.Chtimes(e.c.mapPath(e.id), now, now) // it only decides who is evicted first
		_ = e.maps.Close()                          // nothing in it is believed, so nothing is lost
	}
	if e.data != nil {
		_ = e.data.Close()
	}
}

// add makes a chunk known that is on disk. Called with Cache.mu; its bytes are counted by the caller.
func (e *entry) add(ch *chunk) {
	e.chunks[ch.index].Store(ch)
	e.kept += ch.length()
	ch.slot = len(e.c.ring)
	e.c.ring = append(e.c.ring, ch)
}

// cached reads what is kept, from the start of p to the first chunk that is not.
func (e *entry) cached(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		ch := e.chunks[at/ChunkSize].Load()
		if ch == nil {
			return n, nil
		}
		m := int(min(int64(len(p)-n), ch.start()+ch.length()-at))
		if err := ch.read(p[n:n+m], at); errors.Is(err, errDamaged) {
			e.dropDamaged(ch)
			return n, nil
		} else if err != nil {
			return n, err
		}
		if !ch.used.Load() { // a store by each reader would move the line between cores each time
			ch.used.Store(true)
		}
		n += m
	}
	return n, nil
}

// dropDamaged drops a chunk that does not fit its checksums, unless it does not fit because it was evicted meanwhile.
func (e *entry) dropDamaged(ch *chunk) {
	c := e.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch.slot < 0 {
		return
	}
	if e.whole {
		// Its digest was checked, chunk by chunk it cannot be: what comes instead must be what was there.
		if e.want == nil {
			e.want = map[int64]sums{}
		}
		e.want[ch.index] = ch.sums
	}
	c.discard(ch)
	c.damaged.Add(1)
	c.opts.log.Warn("local copy of a layer is damaged", "layer", e.id, "offset", ch.start(), "bytes", ch.length())
}

// dropRange drops what is kept of [off, off+n).
func (e *entry) dropRange(off, n int64) {
	first, end := max(off, 0)/ChunkSize, chunksOf(min(off+n, e.size))
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	for i := first; i < end; i++ {
		if ch := e.chunks[i].Load(); ch != nil {
			e.c.discard(ch)
		}
	}
}
