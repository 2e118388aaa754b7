package exposed

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
)

// Names are the drives of an exposer by name, those being closed too: their name is not free yet.
type Names[D mount.Exposure] struct {
	mu     sync.Mutex
	drives map[string]D
	closed bool
}

// Add checks what is to be exposed and, if the name is free, takes what create returns under it. Adds take turns.
func (n *Names[D]) Add(name string, dev overlaybd.Device, create func() (D, error)) (d D, err error) {
	if err := mount.CheckName(name); err != nil {
		return d, err
	}
	if err := mount.CheckDevice(dev); err != nil {
		return d, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return d, mount.ErrClosed
	}
	if _, taken := n.drives[name]; taken {
		return d, fmt.Errorf("%w: drive %s", mount.ErrExists, name)
	}
	if d, err = create(); err != nil {
		return d, fmt.Errorf("drive %s: %w", name, err)
	}
	if n.drives == nil {
		n.drives = map[string]D{}
	}
	n.drives[name] = d
	return d, nil
}

// Remove frees the name of a drive that was closed.
func (n *Names[D]) Remove(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.drives, name)
}

// Close takes no more drives and closes those that there are, all at once.
func (n *Names[D]) Close(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	open := make([]D, 0, len(n.drives))
	for _, d := range n.drives {
		open = append(open, d)
	}
	n.mu.Unlock()
	errs := make([]error, len(open))
	var wg sync.WaitGroup
	for i, d := range open {
		wg.Go(func() { errs[i] = d.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
