package nbd

import (
	"math/bits"
	"sync"
)

// buffers are reused by size: powers of two, from 4 KiB to the largest request.
var buffers pool

const (
	smallest = 12 // 4 KiB
	largest  = 25 // 32 MiB
)

type pool struct {
	sizes [largest - smallest + 1]sync.Pool
}

// class is the index of the smallest size that holds n bytes.
func class(n int64) int { return max(bits.Len64(uint64(max(n, 1)-1)), smallest) - smallest }

func (p *pool) get(n int64) []byte {
	i := class(n)
	if b, ok := p.sizes[i].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, 1<<(i+smallest))
}

func (p *pool) put(b []byte) {
	b = b[:cap(b)]
	p.sizes[class(int64(len(b)))].Put(&b)
}

// memory is a number of bytes that requests take and give back.
type memory struct {
	mu   *sync.Mutex
	more *sync.Cond
	left int64
}

func newMemory(n int64) memory {
	mu := &sync.Mutex{}
	return memory{mu: mu, more: sync.NewCond(mu), left: n}
}

// take waits until n bytes are there. Only the reader of a connection takes, and the requests under way give back.
func (m *memory) take(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.left < n {
		m.more.Wait()
	}
	m.left -= n
}

func (m *memory) give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left += n
	m.more.Signal()
}
