package volume

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/sandvol/sandvol/reservation"
)

// peers remembers when each node was last heard of, for a while: it is advice, and must not cost a request a volume.
type peers struct {
	mu   sync.Mutex
	seen map[string]time.Time
	at   time.Time // when they were listed, or tried to be, by this node's clock
}

// suspectSince returns when the node of a holder was last heard of, if that is longer ago than three heartbeats. It is zero
// for a node that was heard of, for this one, for one that never wrote a heartbeat, and when it cannot be found out.
func (r *Repository) suspectSince(ctx context.Context, res reservation.State) time.Time {
	g, held := res.Holder()
	if !held || g.Node == r.node || res.Phase == reservation.Paused {
		return time.Time{} // a paused sandbox needs no node
	}
	last, known := r.seenPeers(ctx)[g.Node]
	if !known || r.clock().Sub(last) <= missedBeats*r.beatEvery() {
		return time.Time{}
	}
	return last
}

// beatEvery is how often nodes are expected to be heard of.
func (r *Repository) beatEvery() time.Duration {
	if r.heartbeat == 0 {
		return defaultHeartbeat
	}
	return r.heartbeat
}

// seenPeers returns what is remembered, after one listing if that is old. While one caller lists, or when it cannot, the
// others make do with what there is: nobody waits for advice.
func (r *Repository) seenPeers(ctx context.Context) map[string]time.Time {
	now := r.clock()
	r.peers.mu.Lock()
	seen, fresh := r.peers.seen, !r.peers.at.IsZero() && now.Sub(r.peers.at) < r.beatEvery()
	if !fresh {
		r.peers.at = now
	}
	r.peers.mu.Unlock()
	if fresh {
		return seen
	}
	listed, err := r.lastSeen(ctx)
	if err != nil {
		return seen
	}
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.seen = listed
	return listed
}

// lastSeen returns when each node wrote its newest heartbeat, by one listing.
func (r *Repository) lastSeen(ctx context.Context) (map[string]time.Time, error) {
	seen := map[string]time.Time{}
	for e, err := range r.store.List(ctx, nodesPrefix, "", 0) {
		if err != nil {
			return nil, err
		}
		node, _, _ := strings.Cut(strings.TrimPrefix(e.Key, nodesPrefix), "/")
		if e.Modified.After(seen[node]) {
			seen[node] = e.Modified
		}
	}
	return seen, nil
}

// withAdvice adds to each volume of a listing what is known of its holder's node.
func (r *Repository) withAdvice(ctx context.Context, volumes iter.Seq2[Volume, error]) iter.Seq2[Volume, error] {
	return func(yield func(Volume, error) bool) {
		for v, err := range volumes {
			if err == nil {
				v.SuspectSince = r.suspectSince(ctx, v.Reservation)
			}
			if !yield(v, err) {
				return
			}
		}
	}
}
