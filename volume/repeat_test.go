package volume_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// the same request with the same token returns the volume that it made before; what the source is by now does not
// matter. Another request with that token is refused, and without the token the name is taken.
func TestTokenMakesCreateRepeatable(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	ctx, src := t.Context(), written(t, a, "src", 'x')
	shot := must[volume.Checkpoint](t)(a.Snapshot(ctx, "src", volume.SnapshotOptions{}))
	for name, o := range map[string]volume.CreateOptions{
		"empty":   {Size: volume.MinSize, Labels: map[string]string{"a": "b"}},
		"fork":    {Source: volume.FromVolume("src")},
		"ro":      {Source: volume.FromVolume(src.ID), Mode: volume.ReadOnly},
		"restore": {Source: volume.FromCheckpoint(shot.ID), Size: volume.GiB},
	} {
		o.Name, o.Token = name, "token-1"
		v := create(t, a, o)
		if diff := cmp.Diff(v, create(t, b, o)); diff != "" {
			t.Errorf("%s repeated: %s", name, diff)
		}
		other := o
		other.Labels = map[string]string{"other": ""}
		_, err := b.Create(ctx, other)
		var mismatch *volume.TokenMismatchError
		if !errors.As(err, &mismatch) || mismatch.Volume != v.ID || !errors.Is(err, volume.ErrConflict) {
			t.Errorf("%s: another request: %v", name, err)
		}
		for _, token := range []string{"", "token-2"} {
			other = o
			other.Token = token
			_, err := b.Create(ctx, other)
			wantErr(t, err, volume.ErrExists)
		}
	}
	o := volume.CreateOptions{Name: "fork", Token: "token-1", Source: volume.FromVolume("src")}
	before := get(t, a, "fork")
	grown := volume.Update{Size: new(2 * volume.GiB)}
	must[volume.Volume](t)(a.Update(ctx, "src", grown))
	if got := create(t, b, o); got.ID != before.ID || got.Size != before.Size {
		t.Errorf("after the source has grown: %+v", got)
	}
	ok(t, a.Delete(ctx, "src"))
	if got := create(t, b, o); got.ID != before.ID {
		t.Errorf("after the source is gone: %+v", got)
	}
	ok(t, a.Delete(ctx, "fork"))
	_, err := b.Create(ctx, o) // the volume is gone, so this is a new request, and its source is gone
	wantErr(t, err, volume.ErrNotFound)
}

// a creation that died at any of its writes is carried on by whoever repeats the request, from any node, and what
// the dead one still sends has no effect.
func TestTokenCarriesAnInterruptedCreateOn(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	for stop := 1; stop <= 3; stop++ {
		for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
			timeless(t, fmt.Sprint("put ", stop, " ", fault), func(t *testing.T) {
				w := newWorld(t)
				b := w.node("b")
				create(t, b, volume.CreateOptions{}) // the hidden volume
				a, f := w.faulty("a")
				n := 0
				f.plan = func(c storetest.Call) storetest.Fault {
					if c.Op.Mutates() {
						n++
					}
					switch {
					case n < stop:
						return storetest.None
					case n == stop && c.Op.Mutates():
						return fault
					}
					return storetest.ErrorBefore
				}
				o := volume.CreateOptions{Name: "data", Size: volume.MinSize, Token: "t"}
				if _, err := a.Create(t.Context(), o); err == nil {
					t.Fatal("created although the replies were lost")
				}
				v := create(t, b, o)
				f.st.Land(t.Context())
				if got := get(t, b, "data"); got.ID != v.ID || got.Status != volume.StatusReady {
					t.Errorf("the name points to %+v", got)
				}
				f.plan = nil
				if got := create(t, a, o); got.ID != v.ID {
					t.Errorf("repeated: %s, was %s", got.ID, v.ID)
				}
				if n := len(readyVolumes(t, b)); n != 2 {
					t.Errorf("%d volumes are ready", n)
				}
				s := attach(t, a, v.ID, "sb")
				write(t, s.Device(), 8192, 'x')
				release(t, s)
			})
		}
	}
}

func readyVolumes(t *testing.T, m *volume.Manager) []volume.Volume {
	t.Helper()
	return must[[]volume.Volume](t)(storetest.Collect(m.List(t.Context(), volume.ListOptions{Status: volume.StatusReady})))
}

// one request sent many times at once makes one volume, and everybody gets it.
func TestConcurrentRepetitionsMakeOneVolume(t *testing.T) {
	w := newWorld(t)
	nodes := []*volume.Manager{w.node("a"), w.node("b")}
	create(t, nodes[0], volume.CreateOptions{})
	var group sync.WaitGroup
	got := make(chan string, 8)
	for i := range 8 {
		group.Go(func() {
			o := volume.CreateOptions{Name: "data", Size: volume.MinSize, Token: "t"}
			v, err := nodes[i%2].Create(t.Context(), o)
			if errors.Is(err, volume.ErrConflict) {
				// Somebody else carries it on: the request is to be sent again.
				v, err = nodes[i%2].Create(t.Context(), o)
			}
			if err != nil && !errors.Is(err, volume.ErrConflict) {
				t.Errorf("create: %v", err)
			}
			if err == nil {
				got <- v.ID
			}
		})
	}
	group.Wait()
	close(got)
	want := get(t, nodes[0], "data").ID
	for id := range got {
		if id != want {
			t.Errorf("created %s, the name points to %s", id, want)
		}
	}
	if n := len(liveVolumes(t, nodes[1])); n != 2 {
		t.Errorf("%d volumes are listed", n)
	}
}

// every call is sent again after its reply was lost, be it before or after the write took effect. The outcome is as
// if it had been sent once: epochs, layers, tombstones and pins are not doubled.
func TestEveryCallMayBeRepeatedAfterALostReply(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	scene := newWorld(t)
	first := scene.node("first")
	v, ro := create(t, first, volume.CreateOptions{Name: "data"}), readOnly(t, first, 'r')
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter} {
		for n := 1; n <= 14; n++ {
			timeless(t, fmt.Sprint(fault, " at put ", n), func(t *testing.T) {
				w := scene.copy(t)
				m, f := w.faulty("a")
				f.plan = nthPut(n, fault)
				liveThrough(t, w, m, v, ro)
			})
		}
	}
	timeless(t, "every request arrives twice", func(t *testing.T) {
		w := scene.copy(t)
		m, f := w.faulty("a")
		f.plan = storetest.Match("", "", storetest.Duplicate)
		liveThrough(t, w, m, v, ro)
	})
}

// nthPut is the plan that hits the n-th request that changes something.
func nthPut(n int, fault storetest.Fault) storetest.Plan {
	puts := 0
	return func(c storetest.Call) storetest.Fault {
		if c.Op.Mutates() {
			puts++
		}
		if puts == n && c.Op.Mutates() {
			return fault
		}
		return storetest.None
	}
}

// liveThrough leads a volume through its life, repeating each call until it succeeds.
func liveThrough(t *testing.T, w *world, m *volume.Manager, v, ro volume.Volume) {
	t.Helper()
	ctx := t.Context()
	s := again(t, func() (*volume.Session, error) { return m.Attach(ctx, "data", "sb") })
	write(t, s.Device(), 8192, 'x')
	again(t, func() (any, error) { return nil, s.Mounted(ctx) })
	c := seal(t, s, false)
	again(t, func() (any, error) { return nil, s.Publish(ctx, c) })
	write(t, s.Device(), 12288, 'y')
	c = seal(t, s, true)
	again(t, func() (any, error) { return nil, s.Pause(ctx, c) })
	r := again(t, func() (*volume.Reader, error) { return m.Pin(ctx, ro.ID, "sb") })
	again(t, func() (any, error) { return nil, r.Release(ctx) })
	s = again(t, func() (*volume.Session, error) { return m.Attach(ctx, v.ID, "sb") })
	c = seal(t, s, true)
	again(t, func() (any, error) { return nil, s.Release(ctx, c) })

	got := get(t, m, v.ID)
	if got.Reservation.Phase != reservation.Free || got.Reservation.Epoch != 2 || len(got.Stack.Layers) != 3 {
		t.Errorf("volume %+v", got)
	}
	checkLayers(t, w, got.Stack)
	reads(t, w.st, got, map[int64]byte{8192: 'x', 12288: 'y'})
	for _, ref := range []string{"data", ro.ID} {
		again(t, func() (any, error) {
			err := m.Delete(ctx, ref)
			if errors.Is(err, volume.ErrNotFound) {
				err = nil // an earlier try has deleted it
			}
			return nil, err
		})
		wantErr(t, second(m.Get(ctx, ref)), volume.ErrNotFound)
	}
	if pins := keysBelow(t, w.st, "v1/pins/"); len(pins) > 0 {
		t.Errorf("pins %q are left", pins)
	}
	if pending, bad := m.Repository().Journal(); len(pending)+len(bad) > 0 || len(drives(t, m)) > 0 {
		t.Errorf("left %v %v %v", pending, bad, drives(t, m))
	}
}

// again repeats a call until it succeeds.
func again[T any](t *testing.T, do func() (T, error)) T {
	t.Helper()
	var err error
	for range 3 {
		var v T
		if v, err = do(); err == nil {
			return v
		}
	}
	t.Fatal(err)
	panic("unreachable")
}

// A call that its caller gives up in the middle of is repeated like one whose reply was lost.
func TestCancelledCallsMayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 6; n++ {
			w := newWorld(t)
			m, h := w.hooked("a")
			v := create(t, m, volume.CreateOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			h.arm(n, cancel)
			s, err := m.Attach(ctx, v.ID, "sb")
			if err != nil {
				s = attach(t, m, v.ID, "sb")
			}
			write(t, s.Device(), 8192, 'x')
			c := seal(t, s, true)
			ctx, cancel = context.WithCancel(t.Context())
			h.arm(n, cancel)
			if err := s.Release(ctx, c); err != nil {
				ok(t, s.Release(t.Context(), c))
			}
			got := get(t, m, v.ID)
			if got.Reservation.Phase != reservation.Free || got.Reservation.Epoch != 1 || len(got.Stack.Layers) != 2 {
				t.Errorf("request %d: %+v", n, got)
			}
			cancel()
		}
	})
}

// Forks and checkpoints under an id that the caller chose are made once, whichever reply is lost.
func TestForkAndSnapshotUnderAnIDAreMadeOnce(t *testing.T) {
	scene := newWorld(t)
	first := scene.node("first")
	src, other := written(t, first, "", 'x'), written(t, first, "", 'y')
	for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter} {
		for n := 1; n <= 4; n++ {
			timeless(t, fmt.Sprint(fault, " at put ", n), func(t *testing.T) {
				w := scene.copy(t)
				m, f := w.faulty("a")
				id, shot := must[string](t)(volume.NewID()), volume.NewCheckpointID(src.ID)
				f.plan = nthPut(n, fault)
				for range 2 {
					again(t, func() (volume.Volume, error) { return m.ForkAs(t.Context(), src.ID, id, volume.ForkOptions{}) })
					again(t, func() (volume.Checkpoint, error) {
						return m.Snapshot(t.Context(), src.ID, volume.SnapshotOptions{ID: shot})
					})
				}
				all := liveVolumes(t, m)
				if len(all) != 3 || all[id].Status != volume.StatusReady {
					t.Errorf("volumes %v", all)
				}
				_, err := m.ForkAs(t.Context(), other.ID, id, volume.ForkOptions{})
				wantErr(t, err, volume.ErrExists)
			})
		}
	}
}

// A node whose shared directory is not mounted finds an empty one, or another. It must not begin a repository there, nor take
// its volumes for deleted.
func TestANodeKnowsItsRepository(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	open := func(st store.Store) (*volume.Repository, error) {
		return volume.Open(t.Context(), volume.Config{Store: st, Dir: dir, Node: "a"}, w.opts...)
	}
	r := must[*volume.Repository](t)(open(w.st))
	m := w.tenant(r, "team")
	v := create(t, m, volume.CreateOptions{})
	s := attach(t, m, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	ok(t, s.Device().Flush())
	ok(t, r.Close())

	empty, other := memstore.New(), newWorld(t)
	other.node("b")
	for name, st := range map[string]store.Store{"empty": empty, "other": other.st} {
		_, err := open(st)
		wantErr(t, err, volume.ErrUnavailable)
		if !strings.Contains(err.Error(), "mounted") || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: error does not say what to look at: %v", name, err)
		}
	}
	for e, err := range empty.List(t.Context(), "", "", 0) {
		t.Errorf("the empty store was written: %v %v", e, err)
	}
	r = must[*volume.Repository](t)(open(w.st))
	defer r.Close()
	s = attach(t, w.tenant(r, "team"), v.ID, "sb")
	if got := at(t, s.Device(), 8192); got != 'x' {
		t.Errorf("after all that the sandbox reads %q", got)
	}
	release(t, s)
}
