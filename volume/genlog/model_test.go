package genlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/volume/store"
)

// The model: an op is an id. Each generation of the lineage carries the id of the op that made it. However the writers,
// the pruner and the faults interleave,
//
//   - generations are contiguous and nonces chain (I2),
//   - the id of an acknowledged op is in the lineage exactly once, from the moment of the acknowledgement on,
//   - the id of a refused op is not in the lineage, and never will be,
//   - the id of an op in doubt is there at most once,
//   - what the newest generation keeps is there.

const simPrefix = "v1/volumes/t/v/"

// register is the state: who took it last, and how often it was taken.
type register struct {
	Epoch int      `json:"epoch"`
	Owner string   `json:"owner"`
	Tags  []string `json:"tags"`
}

var errTaken = errors.New("taken by another")

func tagOp(id string) Op[register] {
	return Op[register]{Name: id, Apply: func(r register) (register, bool, error) {
		for _, tag := range r.Tags {
			if tag == id {
				return r, false, nil
			}
		}
		r.Tags = append(r.Tags[:len(r.Tags):len(r.Tags)], id)
		return r, true, nil
	}}
}

// takeOp takes the register from the holder of the given epoch, and is refused after anyone else has.
func takeOp(id string, epoch int) Op[register] {
	return Op[register]{Name: id, Apply: func(r register) (register, bool, error) {
		switch {
		case r.Owner == id:
			return r, false, nil
		case r.Epoch != epoch:
			return r, false, errTaken
		}
		r.Owner, r.Epoch = id, epoch+1
		return r, true, nil
	}}
}

// careless breaks the second rule of ops: it never finds its own effect.
func careless(op Op[register]) Op[register] {
	return Op[register]{Name: op.Name, Apply: func(r register) (register, bool, error) {
		r.Tags = append(r.Tags[:len(r.Tags):len(r.Tags)], op.Name)
		return r, true, nil
	}}
}

// variant switches on one of the known ways to get this wrong.
type variant struct {
	noVerify     bool // a successful put is taken for success
	careless     bool
	removeNewest bool
}

type answer struct {
	id  string
	g   Generation[register]
	err error
}

type simulation struct {
	*world
	variant
	answers []answer
	checked int
	ticks   int
}

func (s *simulation) log(st store.Store, window time.Duration) *Log[register] {
	l := New[register](st, simPrefix, WithKeepWindow(window), WithClock(func() time.Time {
		s.ticks++
		return time.Unix(int64(s.ticks), 0)
	}))
	l.always = 2
	l.sleep = func(context.Context, time.Duration) error { return nil }
	return l
}

// write runs `ops` ops of all kinds as one writer.
func (s *simulation) write(name string, ops int, window time.Duration) {
	s.start(name, func(st store.Store) {
		if s.noVerify {
			st = &trusting{Store: st}
		}
		ctx, l := context.Background(), s.log(st, window)
		var known Generation[register]
		for i := range ops {
			id := fmt.Sprintf("%s%d", name, i)
			op := tagOp(id)
			if s.choose(2, "op") == 0 {
				op = takeOp(id, known.State.Epoch)
			}
			if s.careless {
				op = careless(op)
			}
			g, err := s.append(ctx, l, known, op)
			s.answers = append(s.answers, answer{id, g, err})
			if err == nil {
				known = g
			} else if newest, err := l.Newest(ctx); err == nil {
				known = newest
			}
		}
	})
}

func (s *simulation) append(ctx context.Context, l *Log[register], known Generation[register], op Op[register]) (
	Generation[register], error,
) {
	how := s.choose(4, "method")
	switch {
	case how == 0 && known.Number > 0:
		return l.AppendTo(ctx, known, op)
	case how == 1 && known.Number > 0:
		return l.AppendNext(ctx, known, op)
	}
	return l.AppendOrCreate(ctx, op)
}

func (s *simulation) prune(window time.Duration, times int) {
	s.start("pruner", func(st store.Store) {
		for range times {
			_, _ = s.log(st, window).Prune(context.Background())
			if s.removeNewest {
				if n, err := s.log(st, window).NewestNumber(context.Background()); err == nil {
					_ = st.Delete(context.Background(), Key(simPrefix, n))
				}
			}
		}
	})
}

// trusting believes that what was put successfully is the newest generation, whatever the listing after it says.
type trusting struct {
	store.Store
	put string
}

func (s *trusting) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	err := s.Store.PutIfAbsent(ctx, key, body)
	if err == nil {
		s.put = key
	}
	return err
}

func (s *trusting) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	if key := s.put; key != "" {
		s.put = ""
		return func(yield func(store.Entry, error) bool) { yield(store.Entry{Key: key}, nil) }
	}
	return s.Store.List(ctx, prefix, after, limit)
}

// simulate runs one whole scenario and returns the first violation.
func simulate(choose chooser, v variant) (violation error) {
	s := &simulation{world: newWorld(choose), variant: v}
	defer s.close()
	s.onStep = func() {
		if violation == nil && s.checked < len(s.answers) {
			violation = s.check()
		}
	}
	window := time.Duration(choose(2, "window")) * 3 * maxKept * time.Second
	for i := range 2 + choose(3, "writers") {
		s.write(string(rune('a'+i)), 5, window)
	}
	s.prune(window, 8)
	s.run(true, 1)
	for len(s.late) > 0 {
		s.land(0)
	}
	// A last op by a fresh writer sees the whole log.
	s.write("z", 1, window)
	s.run(false, 0)
	if violation == nil {
		violation = s.check()
	}
	return violation
}

// check compares the log with the answers.
func (s *simulation) check() error {
	s.checked = len(s.answers)
	line, err := s.lineage()
	if err != nil {
		return err
	}
	made := map[string]int{}
	for i, g := range line {
		made[g.Op]++
		if i > 0 && g.State.Epoch < line[i-1].State.Epoch {
			return fmt.Errorf("epoch falls in generation %d", g.Number)
		}
	}
	for _, a := range s.answers {
		switch n := made[a.id]; {
		case a.err == nil && n != 1:
			return fmt.Errorf("op %s is acknowledged and %d times in the lineage", a.id, n)
		case a.err == nil && line[a.g.Number-1].Nonce != a.g.Nonce:
			return fmt.Errorf("op %s is acknowledged as a generation %d that is not in the lineage", a.id, a.g.Number)
		case n > 1:
			return fmt.Errorf("op %s took effect %d times", a.id, n)
		case errors.Is(a.err, ErrInDoubt):
		case errors.Is(a.err, errTaken), errors.Is(a.err, ErrSuperseded), errors.Is(a.err, ErrContended):
			if n != 0 {
				return fmt.Errorf("op %s took effect, and was answered %w", a.id, a.err)
			}
		}
	}
	return s.checkKept(line)
}

// lineage follows the nonces from the newest key down to generation 1, through everything that was ever put.
func (s *simulation) lineage() ([]Generation[register], error) {
	keys := s.list(simPrefix)
	if len(keys) == 0 {
		return nil, nil
	}
	_, n, _ := ParseKey(keys[0])
	byNonce := map[string]Generation[register]{}
	for _, o := range s.history {
		_, n, _ := ParseKey(o.key)
		g, err := decode[register](o.key, n, o.body)
		if err != nil {
			return nil, err
		}
		byNonce[g.Nonce] = g
	}
	line := make([]Generation[register], n)
	g, err := decode[register](keys[0], n, s.objects[keys[0]])
	for ; err == nil && n > 0; n-- {
		line[n-1] = g
		if g.Number != n {
			return nil, fmt.Errorf("generation %d is followed by one that names a generation %d", g.Number, n)
		}
		g = byNonce[g.Previous]
	}
	return line, err
}

// checkKept: the newest generations and those that the newest one names are there, and are those of the lineage.
func (s *simulation) checkKept(line []Generation[register]) error {
	for i, g := range line {
		newest := line[len(line)-1]
		k, kept := newest.Keeps(g.Number)
		if !kept && newest.Number-g.Number >= 2 {
			continue
		}
		if kept && k.Nonce != g.Nonce {
			return fmt.Errorf("generation %d is kept by a nonce that is not in the lineage", i+1)
		}
		stored, err := decode[register]("", g.Number, s.objects[Key(simPrefix, g.Number)])
		if err != nil || stored.Nonce != g.Nonce {
			return fmt.Errorf("generation %d of %d should be there: %w", i+1, len(line), err)
		}
	}
	return nil
}

func TestModelEveryAcknowledgedOpIsInTheLineageOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	rapid.Check(t, func(t *rapid.T) {
		choose := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		if err := simulate(choose, variant{}); err != nil {
			t.Fatal(err)
		}
	})
}

// The model can fail: each known-bad variant has a schedule that loses something.
func TestModelFindsKnownBadVariants(t *testing.T) {
	defer goleak.VerifyNone(t)
	for name, v := range map[string]variant{
		"no verify with pruning": {noVerify: true},
		"apply not idempotent":   {careless: true},
		"newest removed":         {removeNewest: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5000) {
				r := rand.New(rand.NewPCG(seed, 0))
				if err := simulate(func(n int, _ string) int { return r.IntN(n) }, v); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("no violation found")
		})
	}
}
