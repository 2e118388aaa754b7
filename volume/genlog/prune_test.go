package genlog

import (
	"context"
	"errors"
	"testing"
	"time"
)

// ticking returns a clock that moves by step at each reading.
func ticking(step time.Duration) Option {
	now := start
	return WithClock(func() time.Time { now = now.Add(step); return now })
}

func TestPruneKeepsTheNewest64AndWhatTheNewestNames(t *testing.T) {
	f := newFake()
	// 130 generations, a quarter of a step apart: every fourth of them is kept by name.
	l, newest := filled(t, f, 130, ticking(keepWindow/maxKept/4))
	removed, err := l.Prune(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for n := uint64(1); n <= 130; n++ {
		keep := n > 130-64 || n%4 == 1
		if !keep {
			want++
		}
		if _, there := f.objects[Key(testPrefix, n)]; there != keep {
			t.Errorf("generation %d there: %v, want %v", n, there, keep)
		}
		if k, named := newest.Keeps(n); named {
			if g, err := l.ReadKept(t.Context(), k); err != nil || g.Number != n {
				t.Errorf("kept generation %d: %v", n, err)
			}
		}
	}
	if removed != want {
		t.Errorf("removed %d, want %d", removed, want)
	}
	if again, err := l.Prune(t.Context()); again != 0 || err != nil {
		t.Errorf("second pruning removed %d, %v", again, err)
	}
}

func TestPruneRemovesGhostsAndReadKeptRefusesThem(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 70, WithKeepWindow(0))
	if n, err := l.Prune(t.Context()); n != 6 || err != nil {
		t.Fatalf("removed %d, %v", n, err)
	}
	ghost, err := l.successor(Generation[register]{Number: 2, Nonce: "x"}, "late", register{}).encode()
	if err != nil {
		t.Fatal(err)
	}
	f.objects[Key(testPrefix, 3)] = ghost
	if _, err := l.ReadKept(t.Context(), Kept{Number: 3, Nonce: "y"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("ghost read as kept: %v", err)
	}
	if n, err := l.Prune(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v, want the ghost", n, err)
	}
}

func TestPruneNeverRemovesTheNewest(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65} {
		f := newFake()
		l, newest := filled(t, f, n, WithKeepWindow(0))
		if _, err := l.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g, err := l.Newest(t.Context()); err != nil || g.Nonce != newest.Nonce {
			t.Errorf("of %d: newest is %d, %v", n, g.Number, err)
		}
	}
	if n, err := testLog(newFake()).Prune(t.Context()); n != 0 || err != nil {
		t.Errorf("empty log: %d, %v", n, err)
	}
}

func TestPruneStoppedHalfWayCountsWhatItRemoved(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 70, WithKeepWindow(0))
	f.before = func(kind, key string) error {
		if kind == "delete" && key == Key(testPrefix, 4) {
			return errLost
		}
		return nil
	}
	if n, err := l.Prune(t.Context()); n != 3 || !errors.Is(err, errLost) {
		t.Errorf("removed %d, %v", n, err)
	}
}

func TestPruningRunsInTheBackgroundOncePer32Generations(t *testing.T) {
	f := newFake()
	var jobs []func(context.Context)
	l, newest := filled(t, f, 95, WithKeepWindow(0), WithBackground(func(job func(context.Context)) {
		jobs = append(jobs, job)
	}))
	if len(jobs) != 0 {
		t.Fatalf("%d prunings within 95 generations, of which 64 are always kept", len(jobs))
	}
	newest, err := l.AppendTo(t.Context(), newest, tagOp("a"))
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d prunings after generation 96, %v", len(jobs), err)
	}
	// Finding an effect again is no append.
	if _, err := l.Append(t.Context(), tagOp("a")); err != nil || len(jobs) != 1 {
		t.Fatalf("%d prunings after an op that changed nothing, %v", len(jobs), err)
	}
	jobs[0](t.Context())
	if len(f.objects) != 64 {
		t.Errorf("%d objects left", len(f.objects))
	}
	for newest.Number < 128 {
		if newest, err = l.AppendNext(t.Context(), newest, countOp()); err != nil {
			t.Fatal(err)
		}
	}
	if len(jobs) != 2 {
		t.Errorf("%d prunings after generation 128", len(jobs))
	}
}
