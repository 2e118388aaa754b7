package volume

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// ListOptions narrow and page a listing. The zero value lists everything.
type ListOptions struct {
	// After is the id of the last volume of the page before. Empty: from the start.
	After string
	// Limit is how many to yield at most; 0 is all.
	Limit int
	// Labels are all to be present with these values.
	Labels map[string]string
	// Status and Mode, where set, are to be equal.
	Status Status
	Mode   Mode
	// Node narrows a listing of volumes to those whose holder runs there, or ran there when it was paused.
	Node string
	// Volume narrows a listing of checkpoints to those of one volume id.
	Volume string
}

func (o ListOptions) check() error {
	if o.Limit < 0 {
		return fmt.Errorf("%w: limit %d: must not be negative", ErrInvalid, o.Limit)
	}
	for _, f := range []struct{ field, id string }{{"volume", o.Volume}, {"after", o.After}, {"node", o.Node}} {
		if f.id == "" {
			continue
		}
		if err := record.CheckID(f.field, f.id); err != nil {
			return err
		}
	}
	return nil
}

func (o ListOptions) match(labels map[string]string, status Status, mode Mode) bool {
	for k, v := range o.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return (o.Status == "" || o.Status == status) && (o.Mode == "" || o.Mode == mode)
}

// List yields the tenant's volumes in the order of their creation. It sees each one that existed before it began. A record
// that this version cannot read is yielded with StatusUnreadable and nothing but its id. An error ends the sequence.
func (m *Manager) List(ctx context.Context, o ListOptions) iter.Seq2[Volume, error] {
	get := func(ctx context.Context, id string) (Volume, bool, error) {
		gen, err := m.volumeLog(id).Newest(ctx)
		if errors.Is(err, genlog.ErrUnreadable) {
			v := Volume{ID: id, Status: StatusUnreadable}
			return v, o.Node == "" && o.match(nil, v.Status, ""), nil
		}
		v := volumeOf(gen)
		held := o.Node == "" || v.heldBy(o.Node)
		return v, err == nil && v.Status != record.StatusDeleted && held && o.match(v.Labels, v.Status, v.Mode), err
	}
	return m.r.withAdvice(ctx, list(ctx, m.r, volumesPrefix+m.tenant+"/", "", o, get))
}

// listBatch is how many records are read at once while listing.
const listBatch = 64

// list reads the records of a directory of logs, several at once, and yields in the directory's order those that get keeps.
// within narrows to names that begin so.
func list[T any](ctx context.Context, r *Repository, prefix, within string, o ListOptions,
	get func(context.Context, string) (T, bool, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if err := o.check(); err != nil {
			yield(zero, err)
			return
		}
		left := o.Limit
		flush := func(ids []string) bool {
			items, err := readAll(ctx, ids, get)
			for _, it := range items {
				if !yield(it, nil) {
					return false
				}
				if left--; left == 0 {
					return false
				}
			}
			if err != nil {
				yield(zero, fmt.Errorf("list %s: %w", prefix, err))
			}
			return err == nil
		}
		var ids []string
		for id, err := range r.store.Dirs(ctx, prefix, o.After, 0) {
			if err != nil {
				yield(zero, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			if !strings.HasPrefix(id, within) {
				break // the names are sorted: no later one begins so
			}
			if ids = append(ids, id); len(ids) == listBatch {
				if !flush(ids) {
					return
				}
				ids = ids[:0]
			}
		}
		flush(ids)
	}
}

// readAll reads records concurrently and returns those to keep, in order. A log that is absent was not there yet.
func readAll[T any](ctx context.Context, ids []string, get func(context.Context, string) (T, bool, error)) ([]T, error) {
	items := make([]T, len(ids))
	keep := make([]bool, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i, id := range ids {
		g.Go(func() (err error) {
			items[i], keep[i], err = get(ctx, id)
			if errors.Is(err, genlog.ErrNotFound) {
				keep[i], err = false, nil
			}
			return err
		})
	}
	err := g.Wait()
	kept := items[:0]
	for i := range items {
		if keep[i] && err == nil {
			kept = append(kept, items[i])
		}
	}
	return kept, err
}

// Checkpoints yields the tenant's checkpoints, in the order of their volumes' creation.
func (m *Manager) Checkpoints(ctx context.Context, o ListOptions) iter.Seq2[Checkpoint, error] {
	get := func(ctx context.Context, id string) (Checkpoint, bool, error) {
		gen, err := m.r.checkpointLog(m.tenant, id).Newest(ctx)
		if errors.Is(err, genlog.ErrUnreadable) {
			c := Checkpoint{ID: id, Volume: volumeOfCheckpoint(id), Status: StatusUnreadable}
			return c, o.match(nil, c.Status, ""), nil
		}
		c := checkpointOf(gen)
		return c, err == nil && c.Status != record.StatusDeleted && o.match(c.Labels, c.Status, ""), err
	}
	within := ""
	if o.Volume != "" {
		within = o.Volume + checkpointSep
		// The listing begins after the volume's own id: a directory of that name would come before all that begin with it.
		o.After = max(o.After, o.Volume)
	}
	return list(ctx, m.r, checkpointsPrefix+m.tenant+"/", within, o, get)
}
