package genlog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume/store"
)

func TestRequestsOfEachCall(t *testing.T) {
	f := newFake()
	ctx := t.Context()
	l := testLog(f)
	var g Generation[register]
	var err error
	for _, c := range []struct {
		name string
		do   func() error
		want string
	}{
		{"create", func() error { g, err = l.Create(ctx, register{}); return err }, "put"},
		{"append to a known generation", func() error { g, err = l.AppendTo(ctx, g, tagOp("a")); return err }, "put list"},
		{"append", func() error { _, err = l.Append(ctx, tagOp("b")); return err }, "list get put list"},
		{"append what is there", func() error { g, err = l.Append(ctx, tagOp("a")); return err }, "list get list"},
		{"append next", func() error { _, err = l.AppendNext(ctx, g, tagOp("c")); return err }, "put list"},
		{"newest", func() error { _, err = l.Newest(ctx); return err }, "list get"},
		{"newest number", func() error { _, err = l.NewestNumber(ctx); return err }, "list"},
		{"read", func() error { _, err = l.Read(ctx, 1); return err }, "get"},
		{"append or create", func() error { _, err = l.AppendOrCreate(ctx, tagOp("d")); return err }, "list get put list"},
		// The known generation is three behind: its slot is taken, and the rest is an ordinary append.
		{"append to a stale generation", func() error { _, err = l.AppendTo(ctx, g, tagOp("e")); return err },
			"put list get put list"},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := f.take(); got != c.want {
			t.Errorf("%s sends %s, want %s", c.name, got, c.want)
		}
	}
}

func TestGenerationsChainAndReadBackAsReturned(t *testing.T) {
	f := newFake()
	l, g1 := filled(t, f, 1, WithClock(func() time.Time { return start }))
	g2, err := l.Append(t.Context(), tagOp("a"))
	if err != nil {
		t.Fatal(err)
	}
	if g2.Number != 2 || g2.Previous != g1.Nonce || g2.Nonce == g1.Nonce || g2.Op != "a" || !g2.At.Equal(start) {
		t.Errorf("generation 2 = %+v after %+v", g2, g1)
	}
	read, err := l.Newest(t.Context())
	if diff := cmp.Diff(g2, read); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestEmptyLog(t *testing.T) {
	l := testLog(newFake())
	if _, err := l.Newest(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("newest: %v", err)
	}
	if _, err := l.NewestNumber(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("newest number: %v", err)
	}
	if _, err := l.Append(t.Context(), tagOp("a")); !errors.Is(err, ErrNotFound) {
		t.Errorf("append: %v", err)
	}
	nothing := Op[register]{Apply: func(r register) (register, bool, error) { return r, false, nil }}
	if g, err := l.AppendOrCreate(t.Context(), nothing); err != nil || g.Number != 0 {
		t.Errorf("append or create of nothing: generation %d, %v", g.Number, err)
	}
	if g, err := l.AppendOrCreate(t.Context(), tagOp("a")); err != nil || g.Number != 1 || g.Previous != "" {
		t.Errorf("append or create: %+v, %v", g, err)
	}
}

func TestRefusalReachesTheCallerAndWritesNothing(t *testing.T) {
	f := newFake()
	l, g := filled(t, f, 2)
	for name, appendOp := range map[string]func(context.Context, Op[register]) (Generation[register], error){
		"Append": l.Append,
		"AppendNext": func(ctx context.Context, op Op[register]) (Generation[register], error) {
			return l.AppendNext(ctx, g, op)
		},
	} {
		if _, err := appendOp(t.Context(), takeOp("x", 99)); !errors.Is(err, errTaken) || errors.Is(err, ErrInDoubt) {
			t.Errorf("%s: %v, want the op's refusal", name, err)
		}
	}
	if len(f.objects) != 2 {
		t.Errorf("%d objects", len(f.objects))
	}
}

func TestGateIsAskedBeforeEachAppendAndNothingIsSent(t *testing.T) {
	f := newFake()
	shut := errors.New("this node is too old")
	open, g := filled(t, f, 1)
	l := testLog(f, WithGate(func(context.Context) error { return shut }))
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"Create":         func() error { _, err := l.Create(ctx, register{}); return err },
		"Append":         func() error { _, err := l.Append(ctx, tagOp("a")); return err },
		"AppendTo":       func() error { _, err := l.AppendTo(ctx, g, tagOp("a")); return err },
		"AppendOrCreate": func() error { _, err := l.AppendOrCreate(ctx, tagOp("a")); return err },
		"AppendNext":     func() error { _, err := l.AppendNext(ctx, g, tagOp("a")); return err },
	} {
		if err := do(); !errors.Is(err, shut) {
			t.Errorf("%s: %v, want the gate's error", name, err)
		}
	}
	if calls := f.take(); calls != "" {
		t.Errorf("sent %s", calls)
	}
	if _, err := open.Newest(ctx); err != nil {
		t.Error(err)
	}
}

// A put whose answer is lost is found by reading, not sent again.
func TestLostAnswerIsFoundNotRepeated(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 1)
	f.after = once("put", func(string) error { return errLost })
	g, err := l.Append(t.Context(), tagOp("a"))
	if err != nil {
		t.Fatal(err)
	}
	if g.Number != 2 || len(f.objects) != 2 || !slices.Equal(g.State.Tags, []string{"a"}) {
		t.Errorf("generation %d of %d, tags %v", g.Number, len(f.objects), g.State.Tags)
	}
}

// The answer is lost, and by the time it is looked for another writer has changed the state to one that refuses the op.
func TestOpThatTookEffectBeforeItsRefusalIsSuccess(t *testing.T) {
	for name, answer := range map[string]error{"lost answer": errLost, "client repeated the put": store.ErrExists} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			l, _ := filled(t, f, 1)
			f.after = once("put", func(string) error {
				for i, id := range []string{"other1", "other2"} {
					if _, err := testLog(f).Append(t.Context(), takeOp(id, i+1)); err != nil {
						t.Error(err)
					}
				}
				return answer
			})
			g, err := l.Append(t.Context(), takeOp("mine", 0))
			if err != nil || g.Number != 2 || g.State.Owner != "mine" {
				t.Errorf("generation %d, owner %q, %v", g.Number, g.State.Owner, err)
			}
		})
	}
}

// The put has no answer and no effect yet, another writer takes the slot: the refusal is definite.
func TestPutThatLostItsSlotIsRefusedForGood(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 1)
	f.before = once("put", func(string) error {
		for i, id := range []string{"other1", "other2"} {
			if _, err := testLog(f).Append(t.Context(), takeOp(id, i)); err != nil {
				t.Error(err)
			}
		}
		return errLost
	})
	if _, err := l.Append(t.Context(), takeOp("mine", 0)); !errors.Is(err, errTaken) || errors.Is(err, ErrInDoubt) {
		t.Errorf("%v, want a definite refusal", err)
	}
}

// A holder that stalled for so long that its slot was pruned: the put lands in the empty slot, and must not count.
func TestPutIntoAPrunedSlotIsNotAcknowledged(t *testing.T) {
	f := newFake()
	l, g := filled(t, f, 1, WithKeepWindow(0))
	l.always = 2
	for i, id := range []string{"o1", "o2", "o3", "o4", "o5"} {
		if _, err := l.Append(t.Context(), takeOp(id, i)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := l.Prune(t.Context()); n != 4 || err != nil {
		t.Fatalf("pruned %d, %v", n, err)
	}
	_, err := l.AppendTo(t.Context(), g, takeOp("late", 0))
	if !errors.Is(err, errTaken) || !errors.Is(err, ErrInDoubt) {
		t.Errorf("takeover from a stale generation: %v, want the refusal, in doubt", err)
	}
	if _, err := l.AppendNext(t.Context(), g, takeOp("later", 0)); !errors.Is(err, ErrInDoubt) {
		t.Errorf("one shot onto a stale generation: %v, want ErrInDoubt", err)
	}
	// An op that is not refused is appended where it counts.
	h, err := l.AppendTo(t.Context(), g, tagOp("t"))
	if err != nil || h.Number != 7 {
		t.Errorf("generation %d, %v", h.Number, err)
	}
	if n, err := l.Prune(t.Context()); n != 2 || err != nil {
		t.Errorf("pruned %d, %v, want generation 5 and the ghost", n, err)
	}
}

// Read long after it was listed, a slot can hold a ghost. That the ghost shows the op's effect proves nothing.
func TestEffectFoundInAGhostIsNotAcknowledged(t *testing.T) {
	f := newFake()
	l, g := filled(t, f, 1, WithKeepWindow(0))
	l.always = 2
	// The put of generation 2 has no answer. Others write 2 first; then, after 2 was listed and before it is read, they
	// go on, 2 is pruned, and the delayed put arrives there.
	var late []byte
	other := testLog(f, WithKeepWindow(0))
	other.always = 2
	f.before = func(kind, key string) error {
		switch {
		case kind == "put" && late == nil:
			late, _ = l.successor(g, "a", register{Tags: []string{"a"}}).encode()
			_, err := other.Append(t.Context(), tagOp("o"))
			return errors.Join(err, errLost)
		case kind == "get" && key == Key(testPrefix, 2) && len(f.objects) == 2:
			f.before = nil
			for _, id := range []string{"p", "q", "r"} {
				if _, err := other.Append(t.Context(), tagOp(id)); err != nil {
					t.Error(err)
				}
			}
			if _, err := other.Prune(t.Context()); err != nil {
				t.Error(err)
			}
			return f.PutIfAbsent(t.Context(), key, late)
		}
		return nil
	}
	acked, err := l.Append(t.Context(), tagOp("a"))
	if err != nil || acked.Number != 6 {
		t.Fatalf("acknowledged as generation %d, %v, want 6", acked.Number, err)
	}
	if diff := cmp.Diff([]string{"o", "p", "q", "r", "a"}, acked.State.Tags); diff != "" {
		t.Error(diff)
	}
}

func TestStoreThatKeepsFailingIsReportedWithDoubtOnlyIfSomethingWasSent(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 1)
	f.before = func(kind, _ string) error {
		if kind == "list" {
			return errLost
		}
		return nil
	}
	if _, err := l.Append(t.Context(), tagOp("a")); !errors.Is(err, errLost) || errors.Is(err, ErrInDoubt) {
		t.Errorf("reads fail: %v, want the store's error and no doubt", err)
	}
	f.before = func(kind, _ string) error {
		if kind == "put" {
			return errLost
		}
		return nil
	}
	_, err := l.Append(t.Context(), tagOp("a"))
	var doubt *InDoubtError
	if !errors.As(err, &doubt) || !errors.Is(err, errLost) || doubt.Key != Key(testPrefix, 2) {
		t.Errorf("puts fail: %v, want doubt about generation 2", err)
	}
}

func TestContextEndsTheRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, _ = filled(t, f, 1)
		f.before = func(string, string) error { return errLost }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := New[register](f, testPrefix).Append(ctx, tagOp("a"))
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errLost) {
			t.Errorf("append: %v", err)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("gave up after %v", waited)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := New[register](f, testPrefix).Append(cancelled, tagOp("a")); !errors.Is(err, context.Canceled) {
			t.Errorf("append under a cancelled context: %v", err)
		}
	})
}

func TestWriterThatNeverGetsASlotSaysSo(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 1)
	busy := false
	f.before = func(kind, _ string) error {
		if kind == "put" && !busy {
			busy = true
			_, err := testLog(f).Append(t.Context(), countOp())
			busy = false
			return err
		}
		return nil
	}
	if _, err := l.Append(t.Context(), tagOp("a")); !errors.Is(err, ErrContended) || errors.Is(err, ErrInDoubt) {
		t.Errorf("%v, want ErrContended", err)
	}
}

func TestConcurrentWritersAllLandOnce(t *testing.T) {
	f := newFake()
	_, _ = filled(t, f, 1)
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			if _, err := New[register](f, testPrefix).Append(t.Context(), tagOp(id)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g, err := testLog(f).Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(g.State.Tags)
	if diff := cmp.Diff(ids, g.State.Tags); diff != "" || g.Number != 17 {
		t.Errorf("generation %d: %s", g.Number, diff)
	}
}
