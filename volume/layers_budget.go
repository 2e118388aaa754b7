package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// measureEvery is how often what drives take is measured when they do not write.
const measureEvery = 30 * time.Second

// localDisk shares the budget of a node's directory between drives and copies of layers. What drives take is measured; between
// two measurements it is what they have written, which is never too little: a write to a drive always takes space.
type localDisk struct {
	budget  int64 // bytes; 0: none
	left    atomic.Int64
	written atomic.Int64 // since the last measurement
	again   chan struct{}
}

func newLocalDisk(budget int64) *localDisk {
	return &localDisk{budget: budget, again: make(chan struct{}, 1)}
}

// take takes n bytes for a write of a drive. The error is an ENOSPC, as the guest's file system expects it.
func (d *localDisk) take(n int) error {
	if d.budget == 0 {
		return nil
	}
	left := d.left.Add(-int64(n))
	// A hundredth of the budget later what copies of layers may take is something else.
	if left < 0 || d.written.Add(int64(n)) > d.budget/100 {
		select {
		case d.again <- struct{}{}:
		default: // it is about to be measured
		}
	}
	if left < 0 {
		d.left.Add(int64(n))
		return fmt.Errorf("local budget of %d bytes is used up by drives: %w", d.budget, syscall.ENOSPC)
	}
	return nil
}

// measure finds out what drives take, and gives both sides their shares.
func (r *Repository) measure() {
	d := r.disk
	d.written.Store(0)
	used, err := diskUse(filepath.Join(r.dir, "drives"))
	if err != nil {
		r.log.Warn("what drives take of the local budget is not known", "error", err)
		return
	}
	d.left.Store(d.budget/100*95 - used)
	r.layers.cache.SetBudget(max(1, d.budget/10*9-used)) // 0 would be no bound
}

// watchDisk measures until the repository closes.
func (r *Repository) watchDisk(ctx context.Context) {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.disk.again:
		}
		r.measure()
		// Walking a directory is work: a drive that is out of space must not cause it with each of its writes.
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// diskUse returns how many bytes the files below a directory take.
func diskUse(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return nil // as above
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += st.Blocks * 512
		}
		return nil
	})
	return n, err
}
