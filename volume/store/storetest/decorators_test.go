package storetest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func has(s store.Store, key string) bool {
	_, err := s.Get(context.Background(), key)
	return err == nil
}

func TestDecoratorsThatHitNothingAreStores(t *testing.T) {
	storetest.RunQuick(t, func(testing.TB) (a, b store.Store) {
		s := memstore.New()
		return storetest.Trace(storetest.Faulty(s, storetest.Random(1, 0))), storetest.StopAt(s, 0, false)
	})
}

func TestFaultsOfAPut(t *testing.T) {
	for _, c := range []struct {
		fault      storetest.Fault
		fails      bool
		there      bool
		afterLand  bool
		whileAlive int // requests that reached the store
	}{
		{storetest.None, false, true, true, 1},
		{storetest.ErrorBefore, true, false, false, 0},
		{storetest.ErrorAfter, true, true, true, 1},
		{storetest.Late, true, false, true, 0},
		{storetest.Slow, false, true, true, 1},
		{storetest.Duplicate, false, true, true, 2},
		{storetest.PartialRead, true, false, false, 0},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			below := storetest.Trace(memstore.New())
			s := storetest.Faulty(below, storetest.Nth(storetest.OpPutIfAbsent, 2, c.fault))
			must(t, s.PutIfAbsent(t.Context(), "first", nil))
			below.Reset()
			body := []byte("body")
			err := s.PutIfAbsent(t.Context(), "k", body)
			if c.fails {
				wantIs(t, err, storetest.ErrInjected)
			} else {
				must(t, err)
			}
			copy(body, "gone")
			if got := below.Count(); got != c.whileAlive {
				t.Errorf("%d requests reached the store, want %d", got, c.whileAlive)
			}
			if got := has(below, "k"); got != c.there {
				t.Errorf("there: %t, want %t", got, c.there)
			}
			s.Land(t.Context())
			if got := has(below, "k"); got != c.afterLand {
				t.Errorf("there after Land: %t, want %t", got, c.afterLand)
			}
			if got, err := below.Get(t.Context(), "k"); err == nil && string(got) != "body" {
				t.Errorf("a late request brought %q", got)
			}
		})
	}
}

func TestLatePutIsTooLate(t *testing.T) {
	shared := memstore.New()
	s := storetest.Faulty(shared, storetest.Match(storetest.OpPutIfAbsent, "k", storetest.Late))
	wantIs(t, s.PutIfAbsent(t.Context(), "k1", []byte("late")), storetest.ErrInjected)
	wantIs(t, s.PutIfAbsent(t.Context(), "k2", []byte("late")), storetest.ErrInjected)
	must(t, shared.PutIfAbsent(t.Context(), "k1", []byte("other")))
	if n := s.Land(t.Context()); n != 1 {
		t.Errorf("%d requests took effect, want 1", n)
	}
	if n := s.Injected(); n != 2 {
		t.Errorf("%d faults, want 2", n)
	}
}

func TestPartialReads(t *testing.T) {
	below := memstore.New()
	for _, key := range []string{"d/1", "d/2", "e/3", "f/4"} {
		must(t, below.PutIfAbsent(t.Context(), key, []byte("0123456789")))
	}
	s := storetest.Faulty(below, storetest.Match("", "", storetest.PartialRead))
	entries, err := storetest.Collect(s.List(t.Context(), "", "", 0))
	if wantIs(t, err, storetest.ErrInjected); len(entries) != 2 {
		t.Errorf("%d entries, want the first half", len(entries))
	}
	dirs, err := storetest.Collect(s.Dirs(t.Context(), "", "", 0))
	if wantIs(t, err, storetest.ErrInjected); len(dirs) != 1 {
		t.Errorf("%d directories, want the first half", len(dirs))
	}
	_, err = s.Get(t.Context(), "d/1")
	wantIs(t, err, storetest.ErrInjected)
	b, err := s.OpenBlob(t.Context(), "d/1")
	must(t, err)
	p := make([]byte, 8)
	n, err := b.ReadRange(t.Context(), p, 1)
	if wantIs(t, err, storetest.ErrInjected); n != 4 || string(p[:n]) != "1234" {
		t.Errorf("%d bytes: %q", n, p[:n])
	}
	_, err = s.Get(t.Context(), "absent")
	wantIs(t, err, store.ErrNotExist)
}

func TestSlowRequestObeysItsContext(t *testing.T) {
	s := storetest.Faulty(memstore.New(), storetest.Match("", "", storetest.Slow))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wantIs(t, s.PutIfAbsent(ctx, "k", nil), context.DeadlineExceeded)
}

func TestRandomPlansRepeat(t *testing.T) {
	draw := func(seed uint64) []storetest.Fault {
		plan := storetest.Random(seed, 50, storetest.ErrorAfter, storetest.Slow)
		faults := make([]storetest.Fault, 100)
		for i := range faults {
			faults[i] = plan(storetest.Call{})
		}
		return faults
	}
	if diff := cmp.Diff(draw(7), draw(7)); diff != "" {
		t.Errorf("equal seeds differ:\n%s", diff)
	}
	if cmp.Equal(draw(7), draw(8)) {
		t.Error("two seeds give one plan")
	}
}

func TestStopAt(t *testing.T) {
	for _, applied := range []bool{false, true} {
		below := memstore.New()
		s := storetest.StopAt(below, 2, applied)
		must(t, s.PutIfAbsent(t.Context(), "one", nil))
		_, err := s.Get(t.Context(), "one")
		must(t, err)
		wantIs(t, s.PutIfAbsent(t.Context(), "two", nil), storetest.ErrStopped)
		wantIs(t, s.Delete(t.Context(), "one"), storetest.ErrStopped)
		_, err = s.Get(t.Context(), "one")
		wantIs(t, err, storetest.ErrStopped)
		_, err = storetest.Collect(s.List(t.Context(), "", "", 0))
		wantIs(t, err, storetest.ErrStopped)
		if has(below, "two") != applied || !has(below, "one") {
			t.Errorf("applied %t: one there: %t, two there: %t", applied, has(below, "one"), has(below, "two"))
		}
		if s.Mutations() != 3 {
			t.Errorf("%d mutations, want 3", s.Mutations())
		}
	}
}

func TestTraceCountsRequestsAndRounds(t *testing.T) {
	s := storetest.Trace(memstore.New())
	must(t, s.PutIfAbsent(t.Context(), "d/k", nil))
	b, err := s.OpenBlob(t.Context(), "d/k") // sends nothing
	must(t, err)
	_, err = b.Size(t.Context())
	must(t, err)
	seq := s.List(t.Context(), "d/", "", 1) // sends nothing yet
	for range 2 {
		_, err = storetest.Collect(seq)
		must(t, err)
	}
	want := []storetest.Call{
		{Op: storetest.OpPutIfAbsent, Key: "d/k", N: 1}, {Op: storetest.OpSize, Key: "d/k", N: 1},
		{Op: storetest.OpList, Key: "d/", N: 1}, {Op: storetest.OpList, Key: "d/", N: 2},
	}
	if diff := cmp.Diff(want, s.Calls()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if s.Count() != 4 || s.Count(storetest.OpList, storetest.OpGet) != 2 || s.Rounds() != 4 {
		t.Errorf("%d requests, %d reads, %d rounds", s.Count(), s.Count(storetest.OpList, storetest.OpGet), s.Rounds())
	}
}

func TestRoundsOfConcurrentRequests(t *testing.T) {
	s := storetest.Trace(storetest.Faulty(memstore.New(), storetest.Match("", "", storetest.Slow)))
	for range 2 {
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b", "c"} {
			wg.Go(func() { _, _ = s.Get(t.Context(), key) })
		}
		wg.Wait()
	}
	// Three that overlap are one round, unless the machine is too busy to start them together.
	if r := s.Rounds(); r < 2 || r > 6 || s.Count() != 6 {
		t.Errorf("%d rounds of %d requests", r, s.Count())
	}
	s.Reset()
	if s.Rounds() != 0 || s.Count() != 0 {
		t.Error("Reset forgot nothing")
	}
}
