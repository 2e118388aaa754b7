package volume_test

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// events collects what an Observer is told.
type events struct {
	mu  sync.Mutex
	all []volume.Event
}

func (e *events) Event(ev volume.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(kind volume.EventKind) (out []volume.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			out = append(out, ev)
		}
	}
	return out
}

// living is a world whose nodes do by themselves what nodes do, in a bubble's time.
func living(t *testing.T, opts ...volume.Option) *world {
	w := &world{t: t, st: memstore.New()}
	w.opts = append([]volume.Option{volume.WithFormatter(marker{})}, opts...)
	return w
}

// A node says every 30 s what it holds; one heartbeat of each is there, and Held reads it from any node.
func TestHeartbeatsSayWhatANodeHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := living(t)
		a, b := w.node("a"), w.node("b")
		if n := len(keysBelow(t, w.st, "v1/nodes/")); n != 2 {
			t.Errorf("%d heartbeats at the start", n)
		}
		v := create(t, a, volume.CreateOptions{})
		ro := readOnly(t, b, 'x')
		s := attach(t, a, v.ID, "sb")
		r := must[*volume.Reader](t)(a.Pin(t.Context(), ro.ID, "sb2"))
		time.Sleep(31 * time.Second)
		got := must[volume.NodeReport](t)(b.Repository().Held(t.Context(), "a"))
		want := []volume.Holding{{Tenant: "team", Volume: v.ID, Sandbox: "sb", Epoch: 1},
			{Tenant: "team", Volume: ro.ID, Sandbox: "sb2", Pin: r.Pin()}}
		slices.SortFunc(got.Holds, func(a, b volume.Holding) int { return cmp.Compare(b.Epoch, a.Epoch) })
		if diff := gocmp.Diff(want, got.Holds); diff != "" || time.Since(got.SeenAt) > 31*time.Second {
			t.Errorf("seen at %s: %s", got.SeenAt, diff)
		}
		time.Sleep(5 * time.Minute)
		if n := len(keysBelow(t, w.st, "v1/nodes/")); n != 2 {
			t.Errorf("%d heartbeats after a while", n)
		}
		ok(t, r.Release(t.Context()))
		release(t, s)
		_, err := b.Repository().Held(t.Context(), "nobody")
		wantErr(t, err, volume.ErrNotFound)
		_, err = b.Repository().Held(t.Context(), "a/b")
		wantErr(t, err, volume.ErrInvalid)
	})
}

// whose node has not been heard of is suspect in Get and List, and nothing else comes of it.
func TestHolderOfASilentNodeIsSuspectAndKeepsItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := living(t)
		a, b := w.node("a"), w.node("b")
		v := create(t, a, volume.CreateOptions{})
		held := attach(t, a, v.ID, "sb")
		write(t, held.Device(), 8192, 'x')
		paused := create(t, a, volume.CreateOptions{})
		pause(t, attach(t, a, paused.ID, "sb2"))
		time.Sleep(time.Minute)
		if got := get(t, b, v.ID); !got.SuspectSince.IsZero() {
			t.Errorf("suspect since %s while its node lives", got.SuspectSince)
		}
		ok(t, a.Repository().Close())
		silent := time.Now()
		time.Sleep(24 * time.Hour)
		got := get(t, b, v.ID)
		if d := silent.Sub(got.SuspectSince); d < 0 || d > 31*time.Second {
			t.Errorf("suspect since %s, silent since %s", got.SuspectSince, silent)
		}
		all := liveVolumes(t, b)
		if all[v.ID].SuspectSince != got.SuspectSince || !all[paused.ID].SuspectSince.IsZero() {
			t.Errorf("listed: %s, paused: %s", all[v.ID].SuspectSince, all[paused.ID].SuspectSince)
		}
		_, err := b.Attach(t.Context(), v.ID, "sb2")
		wantErr(t, err, volume.ErrConflict)
		s := takeOver(t, b, v.ID, got.Reservation.Epoch, "")
		release(t, s)
	})
}

// Advice costs one listing for a whole page of volumes, and none while it is fresh.
func TestAdviceCostsNoRequestAVolume(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	b, trace := w.traced("b")
	for range 5 {
		attach(t, a, create(t, a, volume.CreateOptions{}).ID, "sb")
	}
	for _, want := range []int{1, 0} {
		trace.Reset()
		liveVolumes(t, b)
		n := 0
		for _, c := range trace.Calls() {
			if c.Op == storetest.OpList && c.Key == "v1/nodes/" {
				n++
			}
		}
		if n != want {
			t.Errorf("%d listings of nodes, want %d", n, want)
		}
	}
}

// A runbook starts from the volumes of the node that is lost.
func TestListByNode(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	v := create(t, a, volume.CreateOptions{})
	attach(t, a, v.ID, "sb")
	create(t, a, volume.CreateOptions{})
	for node, want := range map[string]int{"a": 1, "b": 0, "": 2} {
		n := 0
		for got, err := range b.List(t.Context(), volume.ListOptions{Node: node}) {
			ok(t, err)
			if n++; node == "a" && got.ID != v.ID {
				t.Errorf("volume %s", got.ID)
			}
		}
		if n != want {
			t.Errorf("%d volumes held on node %q, want %d", n, node, want)
		}
	}
}

// from the notice to the salvage nobody has to do anything; what is seen of it is events.
func TestFencedNodeKeepsItsWritesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		w := living(t, volume.WithObserver(seen))
		a, b := w.node("a"), w.node("b")
		v, old := torn(t, a)
		takeOver(t, b, v.ID, 1, "")
		time.Sleep(31 * time.Second)
		<-old.Lost()
		synctest.Wait()
		kept := seen.of(volume.EventSalvaged)
		if len(kept) != 1 || len(seen.of(volume.EventTakenOver)) != 1 || len(seen.of(volume.EventFenced)) != 1 {
			t.Fatalf("events %+v", seen.all)
		}
		reads(t, w.st, get(t, b, kept[0].Other), map[int64]byte{8192: 'y'})
	})
}

// noBlobs is a plan by which no blob's upload is answered while down is set.
func noBlobs(down *atomic.Bool) storetest.Plan {
	return func(c storetest.Call) storetest.Fault {
		if c.Op == storetest.OpPutBlob && down.Load() {
			return storetest.ErrorAfter
		}
		return storetest.None
	}
}

// A store that is away keeps nothing from being kept later, and the failure is said once.
func TestSalvageGoesOnWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &events{}
		w := living(t, volume.WithObserver(seen))
		var down atomic.Bool
		a := w.on(storetest.Faulty(w.st, noBlobs(&down)), "a")
		b := w.node("b")
		v, old := torn(t, a)
		takeOver(t, b, v.ID, 1, "")
		down.Store(true)
		time.Sleep(5 * time.Minute)
		<-old.Lost()
		if n := len(seen.of(volume.EventSalvageFailed)); n != 1 {
			t.Errorf("the failure was said %d times", n)
		}
		ok(t, a.Repository().Close())
		a = w.nodeAt("a", a.Repository().Dir())
		time.Sleep(time.Minute)
		kept := seen.of(volume.EventSalvaged)
		if len(kept) != 1 {
			t.Fatalf("events %+v", seen.all)
		}
		reads(t, w.st, get(t, b, kept[0].Other), map[int64]byte{8192: 'y'})
		if p, _ := a.Repository().Journal(); len(p) > 0 {
			t.Errorf("the journal has %+v", p)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]volume.Option{
		"heartbeat": volume.WithHeartbeat(time.Millisecond),
		"every":     volume.WithPublishPolicy(volume.PublishPolicy{Every: time.Second}),
		"bytes":     volume.WithPublishPolicy(volume.PublishPolicy{Bytes: -1}),
	} {
		cfg := volume.Config{Store: memstore.New(), Dir: filepath.Join(t.TempDir(), "n"), Node: "a"}
		_, err := volume.Open(t.Context(), cfg, o)
		if wantErr(t, err, volume.ErrInvalid); err == nil {
			t.Error(name)
		}
	}
}
