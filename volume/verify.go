package volume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// verifiers is how many layers are read at once, and verifyChunk how much of each at a time, in bytes.
const (
	verifiers   = 4
	verifyChunk = 4 << 20
)

// VerifyOptions say how thoroughly to look. The zero value compares records with a listing.
type VerifyOptions struct {
	// Data reads every layer and compares its digest: as many bytes as the repository holds.
	Data bool
}

// Problem is one thing that is wrong with a repository.
type Problem struct {
	// ID is of the volume or checkpoint that needs it.
	Tenant, ID string
	// Layer is the key that is missing or damaged; empty if the record itself cannot be read.
	Layer string
	Err   error
}

// VerifyReport says what was found.
type VerifyReport struct {
	// Volumes are those that are ready, hidden ones included.
	Volumes, Checkpoints int
	Layers               int
	Bytes                int64
	// Read is how many bytes were compared with their digest.
	Read     int64
	Problems []Problem
	// Orphans are layers that no record refers to. Each is garbage for the collector, or was uploaded since.
	Orphans []string
}

// Verify looks whether everything that can be mounted, copied or salvaged can be read: every layer is there with the recorded
// size, and with Data the recorded digest. It changes nothing and may run next to anything. What is wrong is in the report; the
// error says that it could not be found out.
func (r *Repository) Verify(ctx context.Context, o VerifyOptions) (VerifyReport, error) {
	v := &verifier{c: &collector{r: r, refs: map[string]bool{}}, needs: map[string]need{}}
	v.c.unreadable = func(id string, err error) { v.found(Problem{ID: id, Err: err}) }
	if err := v.run(ctx, o); err != nil {
		return v.report, fmt.Errorf("verify: %w", err)
	}
	return v.report, nil
}

// verifier walks over the repository as a collector does: layers first, so that what a record refers to is either listed or was
// uploaded since.
type verifier struct {
	c     *collector
	needs map[string]need // by layer key

	mu     sync.Mutex
	report VerifyReport
}

// need is a layer that a record cannot do without.
type need struct {
	tenant, id string
	layer      record.Layer
	again      func(context.Context) (bool, error) // whether the record still refers to it
}

func (v *verifier) found(p Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Problems = append(v.report.Problems, p)
}

func (v *verifier) run(ctx context.Context, o VerifyOptions) error {
	if err := v.c.listLayers(ctx); err != nil {
		return err
	}
	v.report.Layers, v.report.Bytes = v.c.report.Layers, v.c.report.Bytes
	if err := v.c.eachRecord(ctx, v.volume, v.checkpoint); err != nil {
		return err
	}
	for key := range v.c.layers {
		if !v.c.refs[key] {
			v.report.Orphans = append(v.report.Orphans, key)
		}
	}
	slices.Sort(v.report.Orphans)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(verifiers)
	for _, n := range v.needs {
		g.Go(func() error { return v.check(gctx, n, o.Data) })
	}
	err := g.Wait()
	slices.SortFunc(v.report.Problems, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Layer, b.Layer)) })
	return err
}

func (v *verifier) volume(m *Manager, g genlog.Generation[record.Volume]) {
	s := g.State
	for key := range s.References() {
		v.c.refs[key] = true
	}
	again := func(key string) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			now, err := m.volumeLog(s.ID).Newest(ctx)
			return err == nil && slices.Contains(needed(now.State), key), err
		}
	}
	if live(s.Status) {
		v.report.Volumes++
		for _, l := range s.Stack.Layers {
			v.need(m.tenant, s.ID, l, again(l.Key))
		}
	}
	for _, f := range s.Fenced { // a salvage stands on it, whether the volume is deleted or not
		for _, l := range f.Stack.Layers {
			v.need(m.tenant, s.ID, l, again(l.Key))
		}
	}
}

// needed are the keys of the layers that a volume's record promises to be there.
func needed(s record.Volume) (keys []string) {
	var stacks []record.Stack
	if live(s.Status) {
		stacks = append(stacks, s.Stack)
	}
	for _, f := range s.Fenced {
		stacks = append(stacks, f.Stack)
	}
	for _, stack := range stacks {
		for _, l := range stack.Layers {
			keys = append(keys, l.Key)
		}
	}
	return keys
}

func live(s Status) bool { return s == record.StatusReady || s == record.StatusDeleting }

func (v *verifier) checkpoint(m *Manager, g genlog.Generation[record.Checkpoint]) {
	s := g.State
	for key := range s.References() {
		v.c.refs[key] = true
	}
	if s.Status != record.StatusReady {
		return
	}
	v.report.Checkpoints++
	for _, l := range s.Stack.Layers {
		v.need(m.tenant, s.ID, l, func(ctx context.Context) (bool, error) {
			now, err := m.r.checkpointLog(m.tenant, s.ID).Newest(ctx)
			return err == nil && now.State.Status == record.StatusReady, err
		})
	}
}

// need notes a layer once: many volumes may need it, and one names it.
func (v *verifier) need(tenant, id string, l record.Layer, again func(context.Context) (bool, error)) {
	old, known := v.needs[l.Key]
	if known && old.layer.Digest == l.Digest && old.layer.Size == l.Size {
		return
	}
	if known {
		v.found(Problem{Tenant: tenant, ID: id, Layer: l.Key, Err: fmt.Errorf("%w: %s and %s record different bytes", ErrCorrupt,
			old.id, id)})
		return
	}
	v.needs[l.Key] = need{tenant, id, l, again}
}

// check looks at one layer.
func (v *verifier) check(ctx context.Context, n need, data bool) error {
	bad := v.size(ctx, n)
	if bad == nil && data {
		bad = v.digest(ctx, n)
	}
	switch {
	case bad == nil:
		return nil
	case !errors.Is(bad, ErrCorrupt):
		return fmt.Errorf("layer %s: %w", n.layer.Key, bad)
	}
	// It may have been deleted together with whatever referred to it.
	still, err := n.again(ctx)
	if err != nil || !still {
		return err
	}
	v.found(Problem{Tenant: n.tenant, ID: n.id, Layer: n.layer.Key, Err: bad})
	return nil
}

func (v *verifier) size(ctx context.Context, n need) error {
	size, listed := v.c.layers[n.layer.Key]
	if !listed { // or uploaded after the listing
		b, err := v.c.r.store.OpenBlob(ctx, n.layer.Key)
		if err != nil {
			return err
		}
		size, err = b.Size(ctx)
		if err = errors.Join(err, b.Close()); errors.Is(err, store.ErrNotExist) {
			return fmt.Errorf("%w: the store has no such layer", ErrCorrupt)
		}
		if err != nil {
			return err
		}
	}
	if size != n.layer.Size {
		return fmt.Errorf("%w: it has %d bytes, recorded are %d", ErrCorrupt, size, n.layer.Size)
	}
	return nil
}

func (v *verifier) digest(ctx context.Context, n need) error {
	b, err := v.c.r.store.OpenBlob(ctx, n.layer.Key)
	if err != nil {
		return err
	}
	defer b.Close() // only read
	sum, p := sha256.New(), make([]byte, min(verifyChunk, n.layer.Size))
	for off := int64(0); off < n.layer.Size; {
		got, err := b.ReadRange(ctx, p[:min(int64(len(p)), n.layer.Size-off)], off)
		sum.Write(p[:got])
		off += int64(got)
		switch {
		case errors.Is(err, store.ErrNotExist), err == nil && got == 0, errors.Is(err, io.EOF) && off < n.layer.Size:
			return fmt.Errorf("%w: it ends at byte %d of %d", ErrCorrupt, off, n.layer.Size)
		case err != nil && !errors.Is(err, io.EOF):
			return err
		}
	}
	v.mu.Lock()
	v.report.Read += n.layer.Size
	v.mu.Unlock()
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != n.layer.Digest {
		return fmt.Errorf("%w: digest is %s, recorded is %s", ErrCorrupt, got, n.layer.Digest)
	}
	return nil
}
