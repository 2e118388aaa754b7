package volume_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// a node that is to go publishes and pauses all that it has open; every sandbox goes on elsewhere from its last
// write, and nobody but the two nodes and the store takes part.
func TestDrainPausesEverySandbox(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	var ids []string
	for i, sandbox := range []string{"sb1", "sb1", "sb2"} {
		v := create(t, a, volume.CreateOptions{})
		s := attach(t, a, v.ID, sandbox)
		write(t, s.Device(), 8192, byte('a'+i))
		frozen := false
		s.OnFlush(func(context.Context) (func() error, error) {
			frozen = true
			return func() error { frozen = false; return nil }, nil
		})
		t.Cleanup(func() {
			if frozen {
				t.Error("a file system stays frozen")
			}
		})
		ids = append(ids, v.ID)
	}
	ok(t, a.Repository().Drain(t.Context()))
	one, other := get(t, b, ids[0]), get(t, b, ids[1])
	if one.Cut != other.Cut || one.Consistency != volume.Clean {
		t.Errorf("I10: cuts %s and %s, %s", one.Cut, other.Cut, one.Consistency)
	}
	for i, id := range ids {
		if p := get(t, b, id).Reservation.Phase; p != reservation.Paused {
			t.Errorf("volume %d is %s", i, p)
		}
		s := attach(t, b, id, []string{"sb1", "sb1", "sb2"}[i])
		if got := at(t, s.Device(), 8192); got != byte('a'+i) {
			t.Errorf("volume %d reads %q", i, got)
		}
	}
	ok(t, a.Repository().Drain(t.Context())) // nothing is left to do
}

// What cannot be published stays with its sandbox and is named; the drain is repeated.
func TestDrainNamesWhatFailsAndMayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, f := w.faulty("a")
		v, s := torn(t, a)
		f.plan = func(c storetest.Call) storetest.Fault {
			if c.Op == storetest.OpPutBlob {
				return storetest.ErrorBefore
			}
			return storetest.None
		}
		err := a.Repository().Drain(t.Context())
		if wantErr(t, err, volume.ErrUnavailable); !strings.Contains(err.Error(), "team/sb") {
			t.Errorf("error %q", err)
		}
		f.plan = nil
		ok(t, s.Err())
		ok(t, a.Repository().Drain(t.Context()))
		reads(t, w.st, get(t, a, v.ID), map[int64]byte{8192: 'y'})
	})
}

// An operator removes the pins of a sandbox that is gone with its node; those of others stay.
func TestUnpinRemovesTheSandboxsPinsOnly(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := readOnly(t, a, 'x')
	must[*volume.Reader](t)(a.Pin(t.Context(), v.ID, "sb1"))
	other := must[*volume.Reader](t)(b.Pin(t.Context(), v.ID, "sb2"))
	_, err := b.Unpin(t.Context(), v.ID, "sb1", "")
	wantErr(t, err, volume.ErrInvalid)
	for _, want := range []int{1, 0} {
		if n := must[int](t)(b.Unpin(t.Context(), v.ID, "sb1", "node lost")); n != want {
			t.Errorf("%d pins removed, want %d", n, want)
		}
	}
	wantErr(t, b.Delete(t.Context(), v.ID), volume.ErrInUse)
	ok(t, other.Release(t.Context()))
	ok(t, b.Delete(t.Context(), v.ID))
	_, err = w.tenant(b.Repository(), "other").Unpin(t.Context(), v.ID, "sb1", "node lost")
	wantErr(t, err, volume.ErrNotFound)
}

// forgetful is a store that replaces what is there.
type forgetful struct{ store.Store }

func (f forgetful) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	if strings.HasPrefix(key, "v1/probes/") {
		if err := f.Store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return f.Store.PutIfAbsent(ctx, key, body)
}

func (f forgetful) Findings(context.Context) ([]string, error) {
	return []string{"the bucket keeps every version for ever"}, nil
}

// A probe measures, finds fault with what will hurt, and leaves nothing behind.
func TestProbeTriesOutStoreAndMachine(t *testing.T) {
	w := newWorld(t)
	w.clock = time.Now()
	m := w.node("a")
	p := must[volume.ProbeReport](t)(m.Repository().Probe(t.Context()))
	if p.Put <= 0 || p.Get <= 0 || p.List <= 0 || p.Dir.Total <= 0 || p.Dir.FileSystem == "" || p.Dir.Sync <= 0 {
		t.Errorf("report %+v", p)
	}
	if left := keysBelow(t, w.st, "v1/probes/"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err := w.on(forgetful{w.st}, "b").Repository().Probe(t.Context())
	wantErr(t, err, volume.ErrUnsupported)
}

type limits map[string]error

func (l limits) Allow(_ context.Context, d volume.Demand) error { return l[d.Op] }

// A tenant's limits refuse what adds to it, and never what keeps data that exists.
func TestLimiterRefusesNewThingsAndKeepsOldOnes(t *testing.T) {
	w := newWorld(t)
	l := limits{}
	w.opts = append(w.opts, volume.WithLimiter(l))
	a, b := w.node("a"), w.node("b")
	v, s := torn(t, a)
	l["create"] = errors.New("enough")
	l["grow"] = &volume.QuotaError{Tenant: "team", What: "provisioned bytes", Limit: 10, Used: 10, Add: 1}
	l["publish"] = errors.New("enough")
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{}))
	id := must[string](t)(volume.NewID())
	size := v.Size + volume.MiB
	for name, try := range map[string]func() error{
		"create":  func() error { _, err := a.Create(t.Context(), volume.CreateOptions{}); return err },
		"fork":    func() error { _, err := a.Fork(t.Context(), v.ID, volume.ForkOptions{}); return err },
		"fork as": func() error { _, err := a.ForkAs(t.Context(), v.ID, id, volume.ForkOptions{}); return err },
		"restore": func() error { _, err := a.Restore(t.Context(), shot.ID, volume.ForkOptions{}); return err },
		"grow":    func() error { _, err := a.Update(t.Context(), v.ID, volume.Update{Size: &size}); return err },
		"publish": func() error {
			return s.Publish(t.Context(), must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Crash, false))))
		},
	} {
		if wantErr(t, try(), volume.ErrQuota); len(liveVolumes(t, a)) != 1 {
			t.Errorf("%s left a volume", name)
		}
	}
	takeOver(t, b, v.ID, 1, "")
	ok(t, a.Repository().Beat(t.Context()))
	salvage(t, a)
	ok(t, b.Repository().Drain(t.Context()))
}

// Drives are published while they are in use when the policy says so: not before, and never a clean one.
func TestPublishPolicyPublishesDirtyDrivesOnly(t *testing.T) {
	for name, policy := range map[string]volume.PublishPolicy{
		"time":  {Every: 2 * time.Minute},
		"bytes": {Bytes: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := living(t, volume.WithPublishPolicy(policy), volume.WithHeartbeat(0))
				m, trace := w.traced("a")
				v := create(t, m, volume.CreateOptions{})
				s := attach(t, m, v.ID, "sb")
				trace.Reset()
				time.Sleep(time.Hour)
				if n := len(puts(trace)); n > 0 {
					t.Errorf("a clean drive sent %v", puts(trace))
				}
				write(t, s.Device(), 8192, 'x')
				if st := s.Stats(); st.UnpublishedBytes != 512 || st.UnpublishedSince != time.Now() {
					t.Errorf("stats %+v", st)
				}
				time.Sleep(time.Minute)
				if n := len(puts(trace)); n > 0 {
					t.Errorf("sent too early: %v", puts(trace))
				}
				if policy.Bytes > 0 {
					for off := range int64(8) {
						write(t, s.Device(), off*512, 'x')
					}
				}
				time.Sleep(90 * time.Second)
				reads(t, w.st, get(t, m, v.ID), map[int64]byte{8192: 'x'})
				if st := s.Stats(); st.UnpublishedBytes != 0 || !st.UnpublishedSince.IsZero() {
					t.Errorf("stats %+v", st)
				}
				n := len(puts(trace))
				time.Sleep(time.Hour)
				if len(puts(trace)) != n {
					t.Errorf("sent again: %v", puts(trace)[n:])
				}
			})
		})
	}
}

// A publish that the policy wants and the store refuses is told, once a minute at most, and made up for.
func TestPublishLateIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		w := living(t, volume.WithPublishPolicy(volume.PublishPolicy{Every: time.Minute}), volume.WithObserver(seen))
		var down atomic.Bool
		m := w.on(storetest.Faulty(w.st, noBlobs(&down)), "a")
		v := create(t, m, volume.CreateOptions{})
		s := attach(t, m, v.ID, "sb")
		write(t, s.Device(), 8192, 'x')
		down.Store(true)
		time.Sleep(10 * time.Minute)
		late := seen.of(volume.EventPublishLate)
		if len(late) < 5 || len(late) > 10 || late[0].Volume != v.ID || late[0].Bytes == 0 {
			t.Errorf("%d events: %+v", len(late), late)
		}
		down.Store(false)
		time.Sleep(2 * time.Minute)
		reads(t, w.st, get(t, m, v.ID), map[int64]byte{8192: 'x'})
	})
}

// A publish may be waited for later.
func TestPublishAsync(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v, s := torn(t, m)
	p := s.PublishAsync(must[*volume.Sealed](t)(s.Seal(t.Context(), volume.NewCut(volume.Clean, false))))
	ok(t, p.Err())
	<-p.Done()
	reads(t, w.st, get(t, m, v.ID), map[int64]byte{8192: 'y'})
	release(t, s)
}
