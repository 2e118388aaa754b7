package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Times of comfort. None of them keeps data safe: they give people time to undo, and collectors time to finish.
const (
	// DefaultMinAge is how long a deleted volume keeps its data at least.
	DefaultMinAge = 24 * time.Hour
	// unfinishedAge is how long an unfinished creation, and another collector's unfinished run, are left alone.
	unfinishedAge = 24 * time.Hour
)

// CollectOptions say how much a collector run may remove.
type CollectOptions struct {
	// MinAge is how long deleted volumes and checkpoints keep their data. nil is DefaultMinAge.
	MinAge *time.Duration
	// DropUnusedBases deletes hidden volumes that nothing is a copy of any more. The next volume that needs one makes it again.
	DropUnusedBases bool
	// DryRun finds what would be deleted and deletes nothing.
	DryRun bool
	// Skip names records, by volume or checkpoint id, that cannot be read and are to be passed over. What only they refer to
	// is deleted, except layers that were uploaded for the volume itself.
	Skip []string
	// TakeOver begins a run although another one, younger than a day, has not ended. That one then deletes nothing.
	TakeOver bool
}

// CollectReport says what a run found and did.
type CollectReport struct {
	Run string
	// Layers and Bytes are what the store held when the run began.
	Layers int
	Bytes  int64
	// Candidates are the keys of the layers that no record refers to; they were deleted unless it was a dry run.
	Candidates     []string
	CandidateBytes int64
	// Settled counts tombstones that let go of their data: the next run deletes what nobody else refers to.
	Settled int
	// Abandoned counts creations that never finished, Dropped hidden volumes that were not used; both are tombstones now.
	Abandoned int
	Dropped   int
	// Skipped are the records passed over.
	Skipped []string
}

// UnreadableRecordError stops a collector run: what the record refers to is not known. It is ErrUnreadable.
type UnreadableRecordError struct {
	ID  string
	Err error
}

func (e *UnreadableRecordError) Error() string {
	return fmt.Sprintf("record %s cannot be read, and nothing is deleted unless it is named in Skip: %v", e.ID, e.Err)
}

func (e *UnreadableRecordError) Unwrap() error { return e.Err }

// Collect deletes layers that no record refers to. Runs are the grace periods: what a deletion freed is let go by the first
// run that begins after it, and deleted by the second. It may be called on any node at any time, next to anything; a run
// that dies is simply begun again.
func (r *Repository) Collect(ctx context.Context, o CollectOptions) (CollectReport, error) {
	c := &collector{r: r, o: o, minAge: DefaultMinAge, refs: map[string]bool{}}
	if o.MinAge != nil {
		c.minAge = *o.MinAge
	}
	if c.minAge < 0 {
		return c.report, fmt.Errorf("%w: MinAge %s: must not be negative", ErrInvalid, c.minAge)
	}
	if err := c.run(ctx); err != nil {
		return c.report, fmt.Errorf("collect: %w", err)
	}
	return c.report, nil
}

type collector struct {
	r      *Repository
	o      CollectOptions
	minAge time.Duration
	report CollectReport

	layers map[string]int64 // listed layers and their sizes
	refs   map[string]bool
	after  []func(context.Context) error // what may be done once the run has ended

	// unreadable is told of records that cannot be read, by who only looks. Without it they end the run.
	unreadable func(id string, err error)
}

// run follows the order that everything rests on: begun, layers listed, records read, ended, and only then deletions. A
// layer that is uploaded or referred to in between is either not listed or found by the re-check of whoever refers to it.
func (c *collector) run(ctx context.Context) error {
	if c.o.DropUnusedBases && !c.o.DryRun {
		if err := c.dropUnusedBases(ctx); err != nil {
			return err
		}
	}
	log := c.r.runLog()
	begun, err := c.begin(ctx, log)
	if err != nil {
		return err
	}
	err = c.listLayers(ctx)
	if err == nil {
		err = c.eachRecord(ctx, c.noteVolume, c.noteCheckpoint)
	}
	if err != nil {
		c.giveUp(ctx, log, begun)
		return err
	}
	c.findCandidates()
	if _, err := log.AppendNext(ctx, begun, record.End(c.summary(begun.State))); err != nil {
		// Another run has begun, or may have: then this one no longer knows who refers to what.
		return fmt.Errorf("%w: the run did not end, nothing was deleted: %w", ErrConflict, err)
	}
	if c.o.DryRun {
		return nil
	}
	if err := c.finish(ctx); err != nil {
		return err
	}
	c.r.emit(Event{Kind: EventCollected, Other: c.report.Run, Bytes: c.report.CandidateBytes})
	return nil
}

func (c *collector) begin(ctx context.Context, log *genlog.Log[record.Run]) (genlog.Generation[record.Run], error) {
	now := c.r.now()
	newest, err := log.Newest(ctx)
	if err != nil && !errors.Is(err, genlog.ErrNotFound) {
		return newest, err
	}
	s := newest.State
	if err == nil && !s.Ended && now.Sub(s.BegunAt) < unfinishedAge && !c.o.TakeOver {
		return newest, fmt.Errorf("%w: the run that node %s began at %s has not ended", ErrInUse, s.Node,
			s.BegunAt.Format(time.RFC3339))
	}
	c.report.Run = newNonce()
	return log.AppendOrCreate(ctx, record.Begin(record.Run{ID: c.report.Run, Node: c.r.node, BegunAt: now, DryRun: c.o.DryRun}))
}

// giveUp ends a run that deletes nothing, so that the next one need not wait for it.
func (c *collector) giveUp(ctx context.Context, log *genlog.Log[record.Run], begun genlog.Generation[record.Run]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if _, err := log.AppendNext(ctx, begun, record.End(begun.State)); err != nil {
		c.r.log.Warn("collector run left unfinished", "run", begun.State.ID, "error", err)
	}
}

func (c *collector) summary(r record.Run) record.Run {
	sum := sha256.New()
	for _, k := range c.report.Candidates {
		fmt.Fprintln(sum, k)
	}
	r.Candidates, r.Digest = len(c.report.Candidates), "sha256:"+hex.EncodeToString(sum.Sum(nil))
	return r
}

func (c *collector) listLayers(ctx context.Context) error {
	c.layers = map[string]int64{}
	for e, err := range c.r.store.List(ctx, layersPrefix, "", 0) {
		if err != nil {
			return fmt.Errorf("%w: list layers: %w", ErrUnavailable, err)
		}
		c.layers[e.Key] = e.Size
		c.report.Bytes += e.Size
	}
	c.report.Layers = len(c.layers)
	return nil
}

func (c *collector) findCandidates() {
	for key, size := range c.layers {
		if !c.refs[key] && !c.skipped(key) {
			c.report.Candidates = append(c.report.Candidates, key)
			c.report.CandidateBytes += size
		}
	}
	slices.Sort(c.report.Candidates)
}

// noteVolume takes in what a volume refers to, and what the collector may do about it after the run.
func (c *collector) noteVolume(m *Manager, g genlog.Generation[record.Volume]) {
	s := g.State
	for key := range s.References() {
		c.refs[key] = true
	}
	if retired := c.unneeded(g); len(retired) > 0 {
		c.after = append(c.after, func(ctx context.Context) error {
			_, err := m.volumeLog(s.ID).AppendTo(ctx, g, record.Retire(retired))
			return err
		})
	}
	dead := s.Status == record.StatusDeleted && !s.Settled && c.old(s.DeletedAt)
	if dead || len(s.Leaving) > 0 {
		c.after = append(c.after, func(ctx context.Context) error {
			c.report.Settled++
			_, err := m.volumeLog(s.ID).AppendTo(ctx, g, record.SettleVolume(s.Leaving, dead))
			return err
		})
	}
	if s.Status == record.StatusUploading && c.r.now().Sub(g.At) >= unfinishedAge {
		c.after = append(c.after, func(ctx context.Context) error {
			_, err := m.volumeLog(s.ID).AppendTo(ctx, g, record.Abandon[record.Volume](s.Reservation.Epoch, c.r.now()))
			return c.abandoned(err)
		})
	}
	if m.tenant == record.ReservedTenant && s.Status == record.StatusReady && c.r.now().Sub(g.At) >= unfinishedAge {
		c.after = append(c.after, func(ctx context.Context) error { return c.dropUnnamed(ctx, m, g) })
	}
}

// unneeded returns the keys of former layers that no kept generation young enough still holds.
func (c *collector) unneeded(g genlog.Generation[record.Volume]) []string {
	var keys []string
	for _, f := range g.State.Former {
		needed := slices.ContainsFunc(g.Kept, func(k genlog.Kept) bool {
			return k.Number >= f.First && k.Number <= f.Last && !c.old(k.At)
		})
		if !needed {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

func (c *collector) noteCheckpoint(m *Manager, g genlog.Generation[record.Checkpoint]) {
	s := g.State
	for key := range s.References() {
		c.refs[key] = true
	}
	log := c.r.checkpointLog(m.tenant, s.ID)
	if s.Status == record.StatusDeleted && !s.Settled && c.old(s.DeletedAt) {
		c.after = append(c.after, func(ctx context.Context) error {
			c.report.Settled++
			_, err := log.AppendTo(ctx, g, record.SettleCheckpoint())
			return err
		})
	}
	if s.Status == record.StatusUploading && c.r.now().Sub(g.At) >= unfinishedAge {
		c.after = append(c.after, func(ctx context.Context) error {
			_, err := log.AppendTo(ctx, g, record.Abandon[record.Checkpoint](0, c.r.now()))
			return c.abandoned(err)
		})
	}
}

func (c *collector) old(deleted time.Time) bool { return c.r.now().Sub(deleted) >= c.minAge }

// abandoned counts a creation that was given up; one that finished after all was not.
func (c *collector) abandoned(err error) error {
	if err == nil {
		c.report.Abandoned++
	}
	if classified(err) {
		return nil
	}
	return err
}

// dropUnnamed deletes a hidden volume that its name does not point to: its maker lost the race for the name and died.
func (c *collector) dropUnnamed(ctx context.Context, m *Manager, g genlog.Generation[record.Volume]) error {
	h, err := m.lookupName(ctx, g.State.Name)
	if err != nil || (h.taken && h.volume.State.ID == g.State.ID) {
		return err
	}
	return c.drop(ctx, m, g)
}

func (c *collector) drop(ctx context.Context, m *Manager, g genlog.Generation[record.Volume]) error {
	_, err := m.deleteReadOnly(ctx, g)
	if err == nil {
		c.report.Dropped++
	}
	if errors.Is(err, ErrInUse) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// finish deletes the candidates and then lets go of what this run read as leaving.
func (c *collector) finish(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, key := range c.report.Candidates {
		g.Go(func() error { return c.r.store.Delete(gctx, key) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("%w: delete layers: %w", ErrUnavailable, err)
	}
	for _, f := range c.after {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}
