package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// copyTries bounds how often references are copied again because their source moved on in between. Each round loses only
// to a compaction of the source whose old layers left it meanwhile, which takes a day by default.
const copyTries = 8

// abandonTimeout is how long a failed create goes on to clean up behind itself after its caller may have gone.
const abandonTimeout = 10 * time.Second

// copied is what was read of a source: its references, and where they were read.
type copied struct {
	origin  record.Origin
	stack   record.Stack
	content record.Content
	mode    Mode
}

// readVolume reads what there is to copy of a volume.
func (m *Manager) readVolume(ctx context.Context, id string) (copied, error) {
	gen, err := m.read(ctx, id)
	if err != nil {
		return copied{}, err
	}
	return m.copyVolume(gen)
}

func (m *Manager) copyVolume(gen genlog.Generation[record.Volume]) (copied, error) {
	s := gen.State
	if s.Status != record.StatusReady && s.Status != record.StatusDeleting {
		return copied{}, &record.StatusError{Kind: "volume", ID: s.ID, Status: s.Status, Op: "copy"}
	}
	origin := record.Origin{Volume: s.ID, Generation: gen.Number}
	if m.tenant == record.ReservedTenant {
		origin.Tenant = m.tenant
	}
	return copied{origin: origin, stack: s.Stack.Clone(), content: s.Content, mode: s.Mode}, nil
}

// readCopy reads what there is to copy of the checkpoint or volume that an origin names.
func (m *Manager) readCopy(ctx context.Context, o record.Origin) (copied, error) {
	if o.Checkpoint == "" {
		return m.owner(o).readVolume(ctx, o.Volume)
	}
	gen, err := m.readCheckpoint(ctx, o.Checkpoint)
	if err != nil {
		return copied{}, err
	}
	s := gen.State
	if s.Status != record.StatusReady {
		return copied{}, &record.StatusError{Kind: "checkpoint", ID: s.ID, Status: s.Status, Op: "copy"}
	}
	origin := record.Origin{Volume: s.Origin.Volume, Checkpoint: s.ID, Generation: gen.Number}
	return copied{origin: origin, stack: s.Stack.Clone(), content: s.Content}, nil
}

// owner is the manager under which an origin is found.
func (m *Manager) owner(o record.Origin) *Manager {
	if o.Tenant == record.ReservedTenant {
		return m.r.hidden()
	}
	return m
}

// stillThere reports whether the newest generation of the origin still lets a child refer to the stack. It is asked after
// the child's references were appended, so that a collector which did not see them ended before they were. When the origin
// has not changed it costs one listing.
func (m *Manager) stillThere(ctx context.Context, o record.Origin, stack record.Stack) (bool, error) {
	if o.Checkpoint != "" {
		return unchangedOr(ctx, m.r.checkpointLog(m.tenant, o.Checkpoint), o.Generation,
			func(c record.Checkpoint) bool { return c.MayCopy(stack) })
	}
	return unchangedOr(ctx, m.owner(o).volumeLog(o.Volume), o.Generation,
		func(v record.Volume) bool { return v.MayCopy(stack) })
}

func unchangedOr[S any](ctx context.Context, log *genlog.Log[S], number uint64, ok func(S) bool) (bool, error) {
	n, err := log.NewestNumber(ctx)
	if err == nil && n == number {
		return true, nil
	}
	if errors.Is(err, genlog.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	gen, err := log.Newest(ctx)
	return err == nil && ok(gen.State), err
}

// confirm checks a child's references again and, when its source has moved on, copies and checks anew. It returns the
// child's generation whose references were found in place.
func confirm[S record.Record](ctx context.Context, m *Manager, log *genlog.Log[S], child genlog.Generation[S]) (
	genlog.Generation[S], error) {
	for range copyTries {
		h := record.HeadOf(&child.State)
		ok, err := m.stillThere(ctx, h.Origin, h.Stack)
		if err != nil || ok {
			return child, err
		}
		fresh, err := m.readCopy(ctx, h.Origin)
		if err != nil {
			return child, err
		}
		// A child that was to be larger than its source stays so.
		fresh.stack.VirtualSize = max(fresh.stack.VirtualSize, h.Stack.VirtualSize)
		child, err = log.AppendTo(ctx, child, record.Recopy[S](h.Stack, fresh.origin, fresh.stack, fresh.content))
		if err != nil {
			return child, err
		}
	}
	h := record.HeadOf(&child.State)
	return child, fmt.Errorf("%w: the source of %s changes faster than it can be copied", ErrUnavailable, h.ID)
}

// finish makes an uploading child ready: its name is claimed and its references are checked, both together, and `ready`
// waits for both. When that fails the child is abandoned, so that nothing of a failed request stays behind.
func finish[S record.Record](ctx context.Context, m *Manager, log *genlog.Log[S], child genlog.Generation[S],
	claim func(context.Context) error) (genlog.Generation[S], error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return claim(gctx) })
	confirmed := child
	g.Go(func() (err error) {
		confirmed, err = confirm(gctx, m, log, child)
		return err
	})
	err := g.Wait()
	if err == nil {
		h := record.HeadOf(&confirmed.State)
		var ready genlog.Generation[S]
		if ready, err = log.AppendTo(ctx, confirmed, record.Ready[S](h.Stack)); err == nil {
			return ready, nil
		}
	}
	abandon(ctx, m.r, log, child)
	return child, err
}

// abandon tombstones a child that will not be finished, even if the caller is gone. If that fails too, the collector does
// it in a day.
func abandon[S record.Record](ctx context.Context, r *Repository, log *genlog.Log[S], child genlog.Generation[S]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	var epoch uint64
	if v, ok := any(&child.State).(*record.Volume); ok {
		epoch = v.Reservation.Epoch
	}
	if _, err := log.Append(ctx, record.Abandon[S](epoch, r.now())); err != nil {
		// Refused means that another request carries it on, or that `ready` landed after all: then it is not ours to remove.
		r.log.Warn("abandoned creation left to the collector", "id", record.HeadOf(&child.State).ID, "error", err)
	}
}

func unnamed(context.Context) error { return nil }
