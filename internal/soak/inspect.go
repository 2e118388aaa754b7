package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
)

// Inspect reads every volume of a node that has recovered: what its sandbox sees, and what is published. A volume whose
// creation was not finished is deleted; there can be one.
func (n *Node) Inspect(ctx context.Context) (map[string]Found, error) {
	found, unfinished := map[string]Found{}, 0
	for v, err := range n.Team.List(ctx, volume.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		if v.Status != volume.StatusReady {
			if unfinished++; v.Status != volume.StatusUploading || unfinished > 1 {
				return nil, fmt.Errorf("volume %s is %s, and %d others are not ready", v.ID, v.Status, unfinished-1)
			}
			if err := n.Team.Delete(ctx, v.ID); err != nil {
				return nil, err
			}
			continue
		}
		f, err := n.inspect(ctx, v)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.ID, err)
		}
		found[v.ID] = f
	}
	return found, nil
}

func (n *Node) inspect(ctx context.Context, v volume.Volume) (f Found, err error) {
	if f.Published, err = n.published(ctx, v.Stack); err != nil {
		return f, err
	}
	f.Live = f.Published
	s, phase := n.Sessions[v.ID], v.Reservation.Phase
	switch {
	case s != nil:
		f.Held = true
		f.Live, err = read(s.Device())
	case phase != reservation.Free && phase != reservation.Paused:
		err = fmt.Errorf("it is %s, and nobody has it", phase)
	}
	return f, err
}

// published reads a stack from the store alone.
func (n *Node) published(ctx context.Context, stack overlaybd.Stack) (c Content, err error) {
	e, err := overlaybd.New(overlaybd.Config{Open: func(ctx context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
		b, err := n.Store.OpenBlob(ctx, l.Key)
		return stored{b, l.Size}, err
	}})
	if err != nil {
		return c, err
	}
	dev, err := e.OpenReadOnly(ctx, stack)
	if err != nil {
		return c, err
	}
	c, err = read(dev)
	return c, errors.Join(err, dev.Close())
}

type stored struct {
	store.Blob
	size int64
}

func (b stored) Size() int64 { return b.size }

func (b stored) ReadAt(p []byte, off int64) (int, error) {
	n, err := b.ReadRange(context.Background(), p, off)
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// collections is how many collector runs it takes until what was deleted is gone: one sees the tombstone, the next that
// it has settled.
const collections = 3

// Account collects and then looks for what nobody accounts for: layers in the store that no record refers to, records
// that refer to layers that are not there or not whole, and directories of drives on this node that nobody has open.
func (n *Node) Account(ctx context.Context) error {
	for range collections {
		// The process may have died in the middle of a run, which nobody will end.
		o := volume.CollectOptions{MinAge: new(time.Duration), TakeOver: true}
		if _, err := n.Repo.Collect(ctx, o); err != nil {
			return err
		}
	}
	report, err := n.Repo.Verify(ctx, volume.VerifyOptions{Data: true})
	if err != nil {
		return err
	}
	if len(report.Problems)+len(report.Orphans) > 0 {
		return fmt.Errorf("problems %+v, orphans %v", report.Problems, report.Orphans)
	}
	drives, err := filepath.Glob(filepath.Join(n.Repo.Dir(), "drives", "*", "*"))
	if err != nil {
		return err
	}
	pending, bad := n.Repo.Journal()
	if len(drives) != len(n.Sessions) || len(pending) != len(n.Sessions) || len(bad) > 0 {
		return fmt.Errorf("%d volumes are open, and there are %d directories of drives and %d entries of the journal",
			len(n.Sessions), len(drives), len(pending))
	}
	return nil
}
