package volume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// A heartbeat says that a node was there, and what it held. It is for people and schedulers, who may conclude from a missing
// one that a node is lost and take its volumes over. The library concludes nothing: a holder is suspect, and that is all.

// defaultHeartbeat is how often a node says that it is there, and reads the format and its notices.
const defaultHeartbeat = 30 * time.Second

// missedBeats is how many heartbeats have to be missing before a holder is called suspect.
const missedBeats = 3

// nodeLife is what an option can change about a node's life in the repository.
type nodeLife struct {
	heartbeat time.Duration
	observer  Observer
	limiter   Limiter
	policy    PublishPolicy
	// quiet turns off everything that happens by itself: tests decide when it does.
	quiet bool
}

// WithHeartbeat sets how often this node writes a heartbeat and looks for notices, 30 s by default; at least 1 s. Each is a put,
// two listings, a read and a deletion. 0 turns it off: then other nodes cannot tell that this one is gone, and a takeover
// becomes known to it only when it next publishes. All nodes of a repository are to use the same value.
func WithHeartbeat(every time.Duration) Option { return func(s *settings) { s.heartbeat = every } }

func (l nodeLife) check() error {
	if l.heartbeat != 0 && l.heartbeat < time.Second {
		return fmt.Errorf("%w: heartbeat every %s: want 0 or at least 1s", ErrInvalid, l.heartbeat)
	}
	return l.policy.check()
}

// beatBody is what a heartbeat says.
type beatBody struct {
	Format int       `json:"format"`
	Node   string    `json:"node"`
	At     time.Time `json:"at"`
	// Every is the time to the next one, in seconds.
	Every float64        `json:"every"`
	Holds []beatHolding  `json:"holds"`
	Extra jsontext.Value `json:",embed"`
}

// beatHolding is one volume in a node's hands: under a grant, or under a pin.
type beatHolding struct {
	Tenant  string         `json:"tenant"`
	Volume  string         `json:"volume"`
	Sandbox string         `json:"sandbox"`
	Epoch   uint64         `json:"epoch,omitzero"`
	Pin     string         `json:"pin,omitzero"`
	Lost    bool           `json:"lost,omitzero"` // taken over, and not yet kept elsewhere
	Extra   jsontext.Value `json:",embed"`
}

// heartbeats counts those that this process has written.
type heartbeats struct {
	mu     sync.Mutex
	number uint64 // of the newest; 0: not known
}

func beatPrefix(node string) string { return nodesPrefix + node + "/" }

// startLife begins what a node does by itself. The first heartbeat is written before anything is acquired: a node that dies
// after that has one that can be missed.
func (r *Repository) startLife(ctx context.Context) {
	if r.quiet {
		return
	}
	if r.heartbeat > 0 {
		if err := r.beat(ctx); err != nil {
			r.log.Warn("heartbeat", "node", r.node, "error", err)
		}
	}
	r.goBackground(r.live)
	r.goBackground(r.salvageLost)
	if r.policy != (PublishPolicy{}) {
		r.goBackground(r.publishDue)
	}
}

// live is a node's life: it looks whether it may still write, says that it is there, and reads what was left for it.
func (r *Repository) live(ctx context.Context) {
	for {
		// Nodes that were started together are not to write together for ever.
		if !wait(ctx, jittered(r.beatEvery())) {
			return
		}
		r.gate.refresh(ctx)
		if r.heartbeat == 0 {
			continue
		}
		// Neither keeps the other from its turn: a store that refuses writes may still be read.
		for what, do := range map[string]func(context.Context) error{"heartbeat": r.beat, "notices": r.readNotices} {
			if err := do(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn(what, "node", r.node, "error", err)
			}
		}
	}
}

// wait reports false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// jittered returns a time between nine and ten tenths of d.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

// beat writes the next heartbeat and removes those before it.
func (r *Repository) beat(ctx context.Context) error {
	r.beats.mu.Lock()
	defer r.beats.mu.Unlock()
	older := []uint64{r.beats.number}
	if r.beats.number == 0 {
		var err error
		if older, err = r.ownBeats(ctx); err != nil {
			return err
		}
	}
	next := uint64(1)
	for _, n := range older {
		next = max(next, n+1)
	}
	body, err := json.Marshal(r.beatBody(), json.Deterministic(true))
	if err != nil {
		return err
	}
	err = r.gate.check(ctx)
	if err == nil {
		err = r.store.PutIfAbsent(ctx, genlog.Key(beatPrefix(r.node), next), body)
	}
	if err != nil {
		r.beats.number = 0 // an answer may have been lost, or another process may go by this node's name: look again next time
		return fmt.Errorf("write heartbeat %d: %w", next, err)
	}
	r.beats.number = next
	for _, n := range older {
		if n == 0 {
			continue
		}
		if err := r.store.Delete(ctx, genlog.Key(beatPrefix(r.node), n)); err != nil {
			return fmt.Errorf("remove heartbeat %d: %w", n, err) // one that stays is older and changes nothing
		}
	}
	return nil
}

func (r *Repository) ownBeats(ctx context.Context) (numbers []uint64, err error) {
	for e, err := range r.store.List(ctx, beatPrefix(r.node), "", 0) {
		if err != nil {
			return nil, fmt.Errorf("%w: list heartbeats: %w", ErrUnavailable, err)
		}
		if _, n, ok := genlog.ParseKey(e.Key); ok {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

func (r *Repository) beatBody() beatBody {
	b := beatBody{Format: 1, Node: r.node, At: r.now(), Every: r.heartbeat.Seconds(), Holds: []beatHolding{}}
	entries, _ := r.journal.All() // what cannot be read is reported by Journal
	for _, e := range entries {
		h := beatHolding{Tenant: e.Tenant, Volume: e.Volume, Sandbox: e.Sandbox, Epoch: e.Epoch, Lost: e.Lost != ""}
		switch {
		case e.Kind == journal.Pin:
			h.Pin = e.ID
		case e.Kind != journal.Grant || e.Epoch == 0:
			continue
		}
		b.Holds = append(b.Holds, h)
	}
	return b
}

// Holding is a volume in a node's hands.
type Holding struct {
	Tenant  string
	Volume  string
	Sandbox string
	// Epoch is that of the grant of an exclusive volume, Pin the nonce of an ro volume's.
	Epoch uint64
	Pin   string
	// Lost: the volume was taken over, and what the sandbox had not published is not kept yet.
	Lost bool
}

// NodeReport is what a node said last.
type NodeReport struct {
	Node string
	// SeenAt is when the store took its newest heartbeat, by the store's clock.
	SeenAt time.Time
	// Holds is what the node said that it holds. What it acquired or gave back since then is not in it: for that, list the
	// volumes whose holder's node it is.
	Holds []Holding
}

// Held returns what a node said in its newest heartbeat. It is ErrNotFound if the node never wrote one.
func (r *Repository) Held(ctx context.Context, node string) (NodeReport, error) {
	if err := record.CheckID("node", node); err != nil {
		return NodeReport{}, err
	}
	out := NodeReport{Node: node}
	// The one that was listed is gone if the node has written another since.
	for range 3 {
		key := ""
		for e, err := range r.store.List(ctx, beatPrefix(node), "", 1) {
			if err != nil {
				return out, fmt.Errorf("%w: list heartbeats of node %s: %w", ErrUnavailable, node, err)
			}
			key, out.SeenAt = e.Key, e.Modified
		}
		if key == "" {
			return out, fmt.Errorf("%w: node %s has no heartbeat", ErrNotFound, node)
		}
		body, err := r.store.Get(ctx, key)
		if errors.Is(err, store.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("%w: read heartbeat of node %s: %w", ErrUnavailable, node, err)
		}
		var b beatBody
		if err := json.Unmarshal(body, &b); err != nil {
			return out, fmt.Errorf("%w: heartbeat of node %s: %w", ErrUnreadable, node, err)
		}
		for _, h := range b.Holds {
			out.Holds = append(out.Holds, Holding{Tenant: h.Tenant, Volume: h.Volume, Sandbox: h.Sandbox, Epoch: h.Epoch,
				Pin: h.Pin, Lost: h.Lost})
		}
		return out, nil
	}
	return out, fmt.Errorf("%w: heartbeats of node %s come and go", ErrUnavailable, node)
}
