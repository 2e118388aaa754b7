package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Each publish adds a layer. A volume whose stack has more than compactAbove is shortened to compactTo layers when it is
// attached, by merging the newest ones into one; the old and large ones at the bottom stay, and with them what other volumes
// share. A device that stays attached for very long ends at maxLayers, where it takes only the last cut.
const (
	compactAbove = 32
	compactTo    = 16
	maxLayers    = 240 // below the engine's 255, so that a final cut always has room
)

// WithCompaction sets above how many layers a stack is shortened when its volume is attached, and to how many: 32 and 16
// by default.
func WithCompaction(above, to int) Option {
	return func(s *settings) { s.compactAbove, s.compactTo = above, to }
}

func (s settings) checkCompaction() error {
	if s.compactTo < 1 || s.compactAbove < s.compactTo || s.compactAbove > maxLayers {
		return fmt.Errorf("%w: compaction above %d to %d layers: want 1 <= to <= above <= %d",
			ErrInvalid, s.compactAbove, s.compactTo, maxLayers)
	}
	return nil
}

// shorten merges the newest layers of a long stack, before the volume's device is opened. It is the holder's to do: the
// append is checked against the grant. A volume that cannot be shortened now is used as it is.
func (m *Manager) shorten(ctx context.Context, gen genlog.Generation[record.Volume], entry journal.Entry) (
	genlog.Generation[record.Volume], journal.Entry) {
	if len(gen.State.Stack.Layers) <= m.r.compactAbove {
		return gen, entry
	}
	c := compaction{m: m, log: m.volumeLog(gen.State.ID), gen: gen, entry: entry}
	if err := c.run(ctx); err != nil {
		m.r.log.Warn("stack not shortened", "volume", gen.State.ID, "layers", len(gen.State.Stack.Layers), "error", err)
		// The append may have landed all the same. A device that is opened on the old layers would lose them to the collector.
		if now, err := m.read(ctx, gen.State.ID); err == nil {
			c.gen = now
		}
	} else {
		m.r.emit(Event{Kind: EventCompacted, Tenant: m.tenant, Volume: gen.State.ID, Sandbox: entry.Sandbox, Epoch: entry.Epoch})
	}
	return c.gen, c.entry
}

// compaction is one merge under way. gen and entry are the newest known.
type compaction struct {
	m     *Manager
	log   *genlog.Log[record.Volume]
	gen   genlog.Generation[record.Volume]
	entry journal.Entry
}

func (c *compaction) run(ctx context.Context) error {
	run := slices.Clone(c.gen.State.Stack.Layers[c.m.r.compactTo-1:])
	values := record.Stack{Layers: run}.Value().Layers
	var uuid string
	p, err := c.m.r.pack(func(w io.Writer) (err error) {
		uuid, err = c.m.r.engine.Merge(ctx, values, w)
		return err
	})
	if err != nil {
		return err
	}
	key, err := c.declare(ctx)
	if err != nil {
		return errors.Join(err, os.Remove(p.path))
	}
	merged, err := c.m.r.send(ctx, overlaybd.SealedLayer{UUID: uuid}, p, key)
	if err != nil {
		return err
	}
	return c.replace(ctx, run, merged)
}

// declare declares a key for the merged layer alone. The journal has it as spent before anything is sent under it: if this
// process dies, what was uploaded is never taken for something else.
func (c *compaction) declare(ctx context.Context) (string, error) {
	nonce := newNonce()
	key := record.LayerKey(c.gen.State.ID, c.entry.Epoch, nonce)
	entry := c.entry
	entry.Spent = append(slices.Clone(entry.Spent), key)
	if err := c.m.r.journal.Put(entry); err != nil {
		return "", err
	}
	c.entry = entry
	gen, err := c.log.AppendTo(ctx, c.gen, record.Declare(entry.Epoch, entry.Sandbox, []string{nonce}))
	if err != nil {
		return "", err
	}
	c.gen = gen
	return key, nil
}

// replace puts the merged layer in the place of its run. The append is bound to the generation that it names as the last one
// with the old stack; if somebody else appended in between, it is made again for the next.
func (c *compaction) replace(ctx context.Context, run []record.Layer, merged record.Layer) error {
	keys := make([]string, len(run))
	for i, l := range run {
		keys[i] = l.Key
	}
	for range claimTries {
		op := record.Compact{Epoch: c.entry.Epoch, Owner: c.entry.Sandbox, Run: keys, Merged: merged, Last: c.gen.Number}
		gen, err := c.log.AppendNext(ctx, c.gen, op.Op())
		if err == nil {
			c.gen = gen
			return nil
		}
		if !errors.Is(err, genlog.ErrSuperseded) {
			return err
		}
		if gen, err = c.log.Newest(ctx); err != nil {
			return err
		}
		c.gen = gen
	}
	return fmt.Errorf("%w: volume %s changes faster than its stack can be shortened", ErrUnavailable, c.gen.State.ID)
}
