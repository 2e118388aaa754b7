package zfile

import "sync"

const (
	// cacheBytes bounds the decoded blocks that one Reader keeps.
	cacheBytes = 1 << 20
	cacheWays  = 4
)

// buffer is memory for one decoded block, or for a run of stored ones. Pools hold pointers to it, since a slice that is
// put into a pool is an allocation each time.
type buffer struct{ b []byte }

// cache keeps blocks that were decoded for a read of a part of them: the neighbours of that part are likely next. A
// block has one set, in which the least recently used of its places is given up. No lock is held while a block is read
// or decoded; two readers that miss the same block at once both decode it.
type cache struct {
	sets []cacheSet
}

type cacheSet struct {
	mu    sync.Mutex
	clock uint64
	ways  [cacheWays]cacheWay
}

type cacheWay struct {
	used  uint64 // clock of the last use; 0: empty
	block int64
	buf   *buffer
}

// newCache returns a cache that holds no more blocks than there are.
func newCache(blockSize int, blocks int64) cache {
	places := min(int64(cacheBytes/max(blockSize, minCached)), blocks)
	return cache{sets: make([]cacheSet, (places+cacheWays-1)/cacheWays)}
}

// minCached keeps the sets themselves small when blocks are tiny.
const minCached = 4096

// read copies to p from byte at of the block, if it is there.
func (c *cache) read(p []byte, block int64, at int) (n int, ok bool) {
	s := &c.sets[block%int64(len(c.sets))]
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.find(block)
	if w == nil {
		return 0, false
	}
	s.touch(w)
	return copy(p, w.buf.b[at:]), true
}

// put makes the cache the owner of buf, and returns the buffer that it no longer needs, or nil.
func (c *cache) put(block int64, buf *buffer) *buffer {
	s := &c.sets[block%int64(len(c.sets))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(block) != nil {
		return buf // another reader was faster; it holds the same bytes
	}
	// An empty place was never used, so it counts as the oldest.
	oldest := &s.ways[0]
	for i := range s.ways {
		if s.ways[i].used < oldest.used {
			oldest = &s.ways[i]
		}
	}
	old := oldest.buf
	oldest.block, oldest.buf = block, buf
	s.touch(oldest)
	return old
}

func (s *cacheSet) find(block int64) *cacheWay {
	for i := range s.ways {
		if w := &s.ways[i]; w.used != 0 && w.block == block {
			return w
		}
	}
	return nil
}

func (s *cacheSet) touch(w *cacheWay) {
	s.clock++
	w.used = s.clock
}
