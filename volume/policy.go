package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
)

// minPublishEvery bounds how often a mounted drive is published by itself: each time adds a layer to its stack.
const minPublishEvery = time.Minute

// policyTick is how often it is looked whether a drive is due.
const policyTick = 5 * time.Second

// PublishPolicy says when drives are published while they are in use, besides at a pause and when somebody asks. The zero
// value is never. A drive without unpublished writes is left alone.
type PublishPolicy struct {
	// Every is how old the oldest unpublished write may become: 0, or at least a minute. Drives spread over the last tenth of it.
	Every time.Duration
	// Bytes is how much may be unpublished, 0 for no limit. A drive is published for it at most once a minute.
	Bytes int64
}

// WithPublishPolicy has drives published while they are in use. Each time a drive's file systems are brought to rest for a
// moment, if its session knows how.
func WithPublishPolicy(p PublishPolicy) Option { return func(s *settings) { s.policy = p } }

func (p PublishPolicy) check() error {
	if p.Every != 0 && p.Every < minPublishEvery {
		return fmt.Errorf("%w: publish every %s: want 0 or at least %s", ErrInvalid, p.Every, minPublishEvery)
	}
	if p.Bytes < 0 {
		return fmt.Errorf("%w: publish every %d bytes: must not be negative", ErrInvalid, p.Bytes)
	}
	return nil
}

// Stats are a drive's figures.
type Stats struct {
	overlaybd.Stats
	// UnpublishedBytes is how much was written that the repository does not have: what this node's loss would cost.
	UnpublishedBytes int64
	// UnpublishedSince is when the oldest of it was written, or an earlier time; zero if there is none.
	UnpublishedSince time.Time
}

// unpublished follows what the repository does not have.
type unpublished struct {
	// dirty is the time of the first write since the last seal, nil if there was none. Each write looks at it.
	dirty atomic.Pointer[time.Time]

	mu     sync.Mutex
	sealed time.Time // the first write of what is sealed and not published
	bytes  int64     // sealed and not published
}

// touched notes a write.
func (u *unpublished) touched(now func() time.Time) {
	if u.dirty.Load() == nil {
		at := now()
		u.dirty.CompareAndSwap(nil, &at)
	}
}

// begin is called before a seal, and returns what to give to end after it. A write in between counts as one after the seal:
// it makes the drive look due when it is not, and not the other way round.
func (u *unpublished) begin() time.Time { return timeAt(u.dirty.Swap(nil)) }

func timeAt(p *time.Time) time.Time {
	if p == nil {
		return time.Time{}
	}
	return *p
}

// end takes in what a seal has found waiting; ok is false if it failed.
func (u *unpublished) end(since time.Time, layers []overlaybd.SealedLayer, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !ok:
		if !since.IsZero() {
			u.dirty.Store(&since)
		}
		return
	case len(layers) == 0:
		u.sealed = time.Time{}
	case u.sealed.IsZero():
		u.sealed = since
	}
	u.bytes = liveBytes(layers)
}

// published takes in that layers have reached the repository; all says that nothing sealed is left.
func (u *unpublished) published(layers []overlaybd.SealedLayer, all bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes = max(u.bytes-liveBytes(layers), 0)
	if all {
		u.bytes, u.sealed = 0, time.Time{}
	}
}

func (u *unpublished) since() (since time.Time, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.sealed.IsZero() {
		return u.sealed, u.bytes
	}
	return timeAt(u.dirty.Load()), u.bytes
}

func liveBytes(layers []overlaybd.SealedLayer) (n int64) {
	for _, l := range layers {
		n += l.LiveBytes
	}
	return n
}

// Stats tells how much was written since the last cut and how it is mapped, and how much of it is on this node only.
func (s *Session) Stats() Stats {
	out := Stats{Stats: s.dev.Stats()}
	since, sealed := s.fresh.since()
	out.UnpublishedSince, out.UnpublishedBytes = since, sealed+out.UnsealedBytes
	return out
}

// Publishing is a publish under way.
type Publishing struct {
	done chan struct{}
	err  error
}

// Done is closed when the publish has ended.
func (p *Publishing) Done() <-chan struct{} { return p.done }

// Err waits for the publish to end and returns what Publish would have.
func (p *Publishing) Err() error {
	<-p.done
	return p.err
}

// PublishAsync is Publish without waiting for it. It goes on until it is done or the repository closes.
func (s *Session) PublishAsync(c *Sealed) *Publishing {
	p := &Publishing{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = s.m.r.owned(func(ctx context.Context) error { return s.Publish(ctx, c) })
	}()
	return p
}

// duty is what the policy knows of one session.
type duty struct {
	every   time.Duration // the policy's, for this drive
	last    time.Time     // when it was published last by the policy, or tried to be
	running bool
}

// publishDue publishes drives as the policy says, for as long as the repository is open.
func (r *Repository) publishDue(ctx context.Context) {
	var mu sync.Mutex
	duties := map[*Session]*duty{}
	for wait(ctx, policyTick) {
		open := r.openSessions()
		mu.Lock()
		known := duties
		duties = map[*Session]*duty{}
		for _, s := range open {
			d := known[s]
			if d == nil {
				d = &duty{every: jittered(r.policy.Every)}
			}
			duties[s] = d
			if d.running || s.Err() != nil || !r.due(s, d) {
				continue
			}
			d.running, d.last = true, r.clock()
			r.goBackground(func(ctx context.Context) {
				r.publishByPolicy(ctx, s)
				mu.Lock()
				defer mu.Unlock()
				d.running = false
			})
		}
		mu.Unlock()
	}
}

func (r *Repository) due(s *Session, d *duty) bool {
	st, now := s.Stats(), r.clock()
	switch {
	case st.UnpublishedSince.IsZero(), !d.last.IsZero() && now.Sub(d.last) < minPublishEvery:
		return false
	case r.policy.Every > 0 && now.Sub(st.UnpublishedSince) >= d.every:
		return true
	}
	return r.policy.Bytes > 0 && st.UnpublishedBytes >= r.policy.Bytes
}

// publishByPolicy publishes one drive. One that is being paused, or whose volume is gone, is somebody else's affair.
func (r *Repository) publishByPolicy(ctx context.Context, s *Session) {
	c, err := s.cutNow(ctx)
	if err == nil {
		err = s.Publish(ctx, c)
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, overlaybd.ErrClosed) || errors.Is(err, ErrFenced) {
		return
	}
	st := s.Stats()
	r.log.Warn("publish late", "volume", s.grant.Volume, "bytes", st.UnpublishedBytes, "error", err)
	r.emit(Event{Kind: EventPublishLate, Tenant: s.m.tenant, Volume: s.grant.Volume, Sandbox: s.grant.Sandbox,
		Epoch: s.grant.Epoch, Bytes: st.UnpublishedBytes, Err: err})
}
