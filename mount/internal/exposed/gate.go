package exposed

import (
	"context"
	"sync"

	"github.com/sandvol/sandvol/mount"
)

// Gate counts who uses a drive, and keeps everybody from it once it is closed.
type Gate struct {
	name string

	mu      sync.Mutex
	handles int           // opened and not yet released
	ops     int           // calls into the device
	closing bool          // takes no new opens
	ended   bool          // takes no more I/O: idle while closing, or cut off
	over    chan struct{} // closed when ended; err is final then
	err     error
}

// NewGate returns the open gate of a drive.
func NewGate(name string) *Gate { return &Gate{name: name, over: make(chan struct{})} }

// Close takes no new clients from now on, and returns nil as soon as nobody is in. When ctx ends first, it cuts off whoever is
// left. Each caller waits no longer than its own context; the first to give up does it for all, and all get the same answer.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closing = true
	g.checkIdle()
	g.mu.Unlock()
	select {
	case <-g.over:
	case <-ctx.Done():
		g.cutOff(ctx.Err())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// cutOff keeps every later call from the device. Those inside return by themselves: its owner may close it meanwhile.
func (g *Gate) cutOff(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(&mount.DetachedError{Name: g.name, Handles: g.handles, Ops: g.ops, Cause: cause})
}

// Over is closed when the drive takes no more I/O.
func (g *Gate) Over() <-chan struct{} { return g.over }

// Enter is called before each use of the device, and Leave after it if it returned true. False: the drive is cut off.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return false
	}
	g.ops++
	return true
}

// Leave ends what Enter began.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ops--
	g.checkIdle()
}

// Open lets a client in, who is let out with Release. False: the drive is being closed.
func (g *Gate) Open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return false
	}
	g.handles++
	return true
}

// Release ends what Open began.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.handles--
	g.checkIdle()
}

// checkIdle is called with mu held, after each change that could make the drive idle.
func (g *Gate) checkIdle() {
	if g.closing && g.handles == 0 && g.ops == 0 {
		g.end(nil)
	}
}

// end is called with mu held. The first reason stands.
func (g *Gate) end(err error) {
	if g.ended {
		return
	}
	g.ended, g.err = true, err
	close(g.over)
}
