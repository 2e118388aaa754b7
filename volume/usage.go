package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Usage is what a tenant has, in bytes. Stored bytes are those of layers as the store has them.
type Usage struct {
	Volumes, Checkpoints int
	// ProvisionedBytes is the sum of the disks' sizes.
	ProvisionedBytes int64
	// StoredBytes counts each layer once, however many volumes and checkpoints refer to it. What all tenants share, such as empty
	// file systems, is not counted; nor is what is deleted and not yet collected.
	StoredBytes int64
	// Each has the tenant's volumes and then its checkpoints, in the order of their creation.
	Each []ItemUsage
}

// ItemUsage is one volume's or checkpoint's part.
type ItemUsage struct {
	ID         string
	Checkpoint bool
	// ProvisionedBytes is the size of the disk; a checkpoint provisions nothing.
	ProvisionedBytes int64
	// ExclusiveBytes is what only this one refers to: what its deletion would free. SharedBytes is the rest.
	ExclusiveBytes, SharedBytes int64
}

// Usage counts what the tenant has, by reading each of its records.
func (m *Manager) Usage(ctx context.Context) (Usage, error) {
	u, err := m.usage(ctx)
	if err != nil {
		return u, fmt.Errorf("usage of tenant %s: %w", m.tenant, err)
	}
	return u, nil
}

func (m *Manager) usage(ctx context.Context) (u Usage, err error) {
	t := tally{shared: map[string]bool{}, holders: map[string]int{}}
	for id, err := range m.r.store.Dirs(ctx, volumesPrefix+record.ReservedTenant+"/", "", 0) {
		if err != nil {
			return u, err
		}
		t.shared[id] = true
	}
	volumes := list(ctx, m.r, volumesPrefix+m.tenant+"/", "", ListOptions{},
		func(ctx context.Context, id string) (item, bool, error) {
			return countable(ctx, m.volumeLog(id), id, false)
		})
	checkpoints := list(ctx, m.r, checkpointsPrefix+m.tenant+"/", "", ListOptions{},
		func(ctx context.Context, id string) (item, bool, error) {
			return countable(ctx, m.r.checkpointLog(m.tenant, id), id, true)
		})
	for i, err := range volumes {
		if err != nil {
			return u, err
		}
		u.Volumes++
		u.ProvisionedBytes += i.usage.ProvisionedBytes
		t.add(i)
	}
	for i, err := range checkpoints {
		if err != nil {
			return u, err
		}
		u.Checkpoints++
		t.add(i)
	}
	u.Each, u.StoredBytes = t.sum()
	return u, nil
}

// item is a volume or checkpoint with the sizes of the layers that it refers to.
type item struct {
	usage  ItemUsage
	layers map[string]int64
}

// countable reads a record. One that cannot be read counts as a volume without layers.
func countable[S record.Record](ctx context.Context, log *genlog.Log[S], id string, checkpoint bool) (item, bool, error) {
	i := item{usage: ItemUsage{ID: id, Checkpoint: checkpoint}, layers: map[string]int64{}}
	gen, err := log.Newest(ctx)
	if errors.Is(err, genlog.ErrUnreadable) {
		return i, true, nil
	}
	if err != nil {
		return i, false, err
	}
	h := record.HeadOf(&gen.State)
	if h.Status == record.StatusDeleted {
		return i, false, nil
	}
	if !checkpoint {
		i.usage.ProvisionedBytes = h.Stack.VirtualSize
	}
	for _, l := range h.Stack.Layers {
		i.layers[l.Key] = l.Size
	}
	if v, ok := any(gen.State).(record.Volume); ok {
		for _, f := range v.Former {
			i.layers[f.Key] = f.Size
		}
		for _, f := range v.Fenced {
			for _, l := range f.Stack.Layers {
				i.layers[l.Key] = l.Size
			}
		}
	}
	return i, true, nil
}

// tally counts who refers to each layer.
type tally struct {
	shared  map[string]bool // ids of volumes whose layers belong to all tenants
	holders map[string]int
	items   []item
}

func (t *tally) add(i item) {
	t.items = append(t.items, i)
	for key := range i.layers {
		t.holders[key]++
	}
}

func (t *tally) sum() (each []ItemUsage, stored int64) {
	counted := map[string]bool{}
	for _, i := range t.items {
		for key, size := range i.layers {
			owner, _, _ := strings.Cut(strings.TrimPrefix(key, layersPrefix), "/")
			switch {
			case t.shared[owner] || t.holders[key] > 1:
				i.usage.SharedBytes += size
			default:
				i.usage.ExclusiveBytes += size
			}
			if !t.shared[owner] && !counted[key] {
				counted[key] = true
				stored += size
			}
		}
		each = append(each, i.usage)
	}
	return each, stored
}
