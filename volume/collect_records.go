package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// eachRecord reads the newest generation of every volume and checkpoint of every tenant, hidden ones and tombstones too.
func (c *collector) eachRecord(ctx context.Context, volume func(*Manager, genlog.Generation[record.Volume]),
	checkpoint func(*Manager, genlog.Generation[record.Checkpoint])) error {
	err := eachTenant(ctx, c.r, volumesPrefix, func(m *Manager) error {
		return eachLog(ctx, c, volumesPrefix+m.tenant+"/", m.volumeLog,
			func(g genlog.Generation[record.Volume]) { volume(m, g) })
	})
	if err != nil {
		return err
	}
	return eachTenant(ctx, c.r, checkpointsPrefix, func(m *Manager) error {
		open := func(id string) *genlog.Log[record.Checkpoint] { return c.r.checkpointLog(m.tenant, id) }
		return eachLog(ctx, c, checkpointsPrefix+m.tenant+"/", open,
			func(g genlog.Generation[record.Checkpoint]) { checkpoint(m, g) })
	})
}

func eachTenant(ctx context.Context, r *Repository, prefix string, f func(*Manager) error) error {
	for tenant, err := range r.store.Dirs(ctx, prefix, "", 0) {
		if err != nil {
			return fmt.Errorf("%w: list tenants: %w", ErrUnavailable, err)
		}
		if err := f(&Manager{r: r, tenant: tenant}); err != nil {
			return err
		}
	}
	return nil
}

// eachLog reads the logs below a prefix, several at once, and hands them over one by one. A record that cannot be read ends
// the run, unless the operator has named it.
func eachLog[S any](ctx context.Context, c *collector, prefix string, open func(string) *genlog.Log[S],
	f func(genlog.Generation[S])) error {
	get := func(ctx context.Context, id string) (genlog.Generation[S], bool, error) {
		gen, err := open(id).Newest(ctx)
		if errors.Is(err, genlog.ErrUnreadable) {
			if slices.Contains(c.o.Skip, id) {
				return gen, false, nil
			}
			if c.unreadable != nil {
				c.unreadable(id, err)
				return gen, false, nil
			}
			return gen, false, &UnreadableRecordError{ID: id, Err: err}
		}
		return gen, true, err
	}
	batch := make([]string, 0, listBatch)
	flush := func() error {
		gens, err := readAll(ctx, batch, get)
		for _, g := range gens {
			f(g)
		}
		batch = batch[:0]
		return err
	}
	for id, err := range c.r.store.Dirs(ctx, prefix, "", 0) {
		if err != nil {
			return fmt.Errorf("%w: list %s: %w", ErrUnavailable, prefix, err)
		}
		if slices.Contains(c.o.Skip, id) && !slices.Contains(c.report.Skipped, id) {
			c.report.Skipped = append(c.report.Skipped, id)
		}
		if batch = append(batch, id); len(batch) == listBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// skipped protects what was uploaded for a volume whose record was passed over.
func (c *collector) skipped(key string) bool {
	id, _, _ := strings.Cut(strings.TrimPrefix(key, layersPrefix), "/")
	return slices.ContainsFunc(c.report.Skipped, func(s string) bool { return volumeOfCheckpoint(s) == id })
}

// dropUnusedBases deletes hidden volumes that no living record is a copy of, before the run begins: so that it reads their
// tombstones. A child that copies from one meanwhile finds it deleted when it checks again, and starts from another.
func (c *collector) dropUnusedBases(ctx context.Context) error {
	used := map[string]bool{}
	var hidden []genlog.Generation[record.Volume]
	note := func(s record.Head) {
		for _, l := range s.Stack.Layers {
			used[l.Key] = used[l.Key] || s.Status != record.StatusDeleted
		}
	}
	err := c.eachRecord(ctx, func(m *Manager, g genlog.Generation[record.Volume]) {
		if m.tenant == record.ReservedTenant {
			hidden = append(hidden, g)
			return
		}
		note(g.State.Head)
		for _, f := range g.State.Former {
			used[f.Key] = true
		}
		for _, f := range g.State.Fenced {
			for _, l := range f.Stack.Layers {
				used[l.Key] = true
			}
		}
	}, func(_ *Manager, g genlog.Generation[record.Checkpoint]) { note(g.State.Head) })
	if err != nil {
		return err
	}
	for _, g := range hidden {
		inUse := slices.ContainsFunc(g.State.Stack.Layers, func(l record.Layer) bool { return used[l.Key] })
		if inUse || (g.State.Status != record.StatusReady && g.State.Status != record.StatusDeleting) {
			continue
		}
		if err := c.drop(ctx, c.r.hidden(), g); err != nil {
			return err
		}
	}
	return nil
}
