package reservation

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t1 = t0.Add(time.Hour)
)

// at returns the reservation that s1 on n1 holds, or held, under epoch 4.
func at(p Phase) State {
	return State{Epoch: 4, Phase: p, Since: t0, Grant: Grant{ID: "g4", Owner: "s1", Node: "n1", At: t0}}
}

func fresh(owner, node string) Grant { return Grant{ID: "g5", Owner: owner, Node: node, At: t1} }

// transition is any one of them with its arguments.
type transition func(State) (State, bool, error)

func acquire(g Grant) transition { return func(s State) (State, bool, error) { return s.Acquire(g) } }
func takeOver(epoch uint64, g Grant) transition {
	return func(s State) (State, bool, error) { return s.TakeOver(epoch, g, "node n1 is gone") }
}
func mounted(epoch uint64, owner string) transition {
	return func(s State) (State, bool, error) { return s.Mounted(epoch, owner) }
}
func pause(epoch uint64, owner string) transition {
	return func(s State) (State, bool, error) { return s.Pause(epoch, owner, t1) }
}
func expire(epoch uint64, owner string) transition {
	return func(s State) (State, bool, error) { return s.Expire(epoch, owner, t1) }
}
func release(epoch uint64, owner string) transition {
	return func(s State) (State, bool, error) { return s.Release(epoch, owner, t1) }
}

// result puts what a transition does into a word: the phase it leads to, same, or the class of its error.
func result(s State, do transition) string {
	next, changed, err := do(s)
	switch {
	case errors.Is(err, ErrConflict):
		return "conflict"
	case errors.Is(err, ErrFenced):
		return "fenced"
	case err != nil:
		return err.Error()
	case !changed:
		return "same"
	case next.Epoch == s.Epoch+1:
		return string(next.Phase) + "+1"
	}
	return string(next.Phase)
}

// Every phase, every transition, asked by the holder and by everyone who is not: A-031 (one owner), A-033 (a paused
// owner keeps the volume), A-035 (and resumes on any node).
func TestTransitionTable(t *testing.T) {
	phases := []Phase{Free, Preparing, Mounted, Paused, Expiring}
	for _, c := range []struct {
		name string
		do   transition
		want string // by phase
	}{
		{"acquire by another owner", acquire(fresh("s2", "n1")),
			"preparing+1 conflict conflict conflict conflict"},
		{"acquire by the owner", acquire(fresh("s1", "n1")),
			"preparing+1 conflict conflict preparing+1 conflict"},
		{"acquire by the owner on another node", acquire(fresh("s1", "n2")),
			"preparing+1 conflict conflict preparing+1 conflict"},
		{"acquire repeated", acquire(at(Free).Grant),
			"conflict same same same same"},
		{"acquire under a used id", acquire(Grant{ID: "g4", Owner: "s2", Node: "n1"}),
			"conflict conflict conflict conflict conflict"},
		{"mounted", mounted(4, "s1"),
			"fenced mounted same conflict conflict"},
		{"mounted under an older epoch", mounted(3, "s1"),
			"fenced fenced fenced fenced fenced"},
		{"mounted by another", mounted(4, "s2"),
			"fenced fenced fenced fenced fenced"},
		{"pause", pause(4, "s1"),
			"fenced paused paused same conflict"},
		{"pause under an older epoch", pause(3, "s1"),
			"fenced fenced fenced fenced fenced"},
		{"pause under an epoch yet to come", pause(5, "s1"),
			"fenced fenced fenced fenced fenced"},
		{"pause by another", pause(4, "s2"),
			"fenced fenced fenced fenced fenced"},
		{"expire", expire(4, "s1"),
			"fenced conflict expiring expiring same"},
		{"expire under an older epoch", expire(3, "s1"),
			"fenced fenced fenced fenced fenced"},
		{"expire by another", expire(4, "s2"),
			"fenced fenced fenced fenced fenced"},
		{"release", release(4, "s1"),
			"same free free free free"},
		{"release under an older epoch", release(3, "s1"),
			"fenced fenced fenced fenced fenced"},
		{"release by another", release(4, "s2"),
			"fenced fenced fenced fenced fenced"},
		{"takeover by another owner", takeOver(4, fresh("s2", "n2")),
			"conflict preparing+1 preparing+1 preparing+1 preparing+1"},
		{"takeover by the owner on another node", takeOver(4, fresh("s1", "n2")),
			"conflict preparing+1 preparing+1 preparing+1 preparing+1"},
		{"takeover from an older epoch", takeOver(3, fresh("s2", "n2")),
			"conflict conflict conflict conflict conflict"},
		{"takeover from an epoch yet to come", takeOver(5, fresh("s2", "n2")),
			"conflict conflict conflict conflict conflict"},
		{"takeover repeated", takeOver(3, at(Free).Grant),
			"conflict same same same same"},
		{"takeover under a used id", takeOver(4, at(Free).Grant),
			"conflict conflict conflict conflict conflict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, p := range phases {
				got = append(got, result(at(p), c.do))
			}
			if diff := cmp.Diff(strings.Fields(c.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNeverHeld(t *testing.T) {
	for name, c := range map[string]struct {
		do   transition
		want string
	}{
		"acquire":  {acquire(fresh("s1", "n1")), "preparing+1"},
		"takeover": {takeOver(0, fresh("s1", "n1")), "conflict"},
		"release":  {release(0, ""), "fenced"},
		"pause":    {pause(0, ""), "fenced"},
		"expire":   {expire(0, "s1"), "fenced"},
	} {
		if got := result(New(), c.do); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestWhatATransitionLeaves(t *testing.T) {
	taken := fresh("s2", "n2")
	taken.Reason = "node n1 is gone"
	for name, c := range map[string]struct {
		from Phase
		do   transition
		want State
	}{
		"acquire": {Free, acquire(fresh("s2", "n2")),
			State{Epoch: 5, Phase: Preparing, Grant: fresh("s2", "n2"), Since: t1}},
		"takeover": {Mounted, takeOver(4, fresh("s2", "n2")),
			State{Epoch: 5, Phase: Preparing, Grant: taken, Since: t1}},
		"mounted": {Preparing, mounted(4, "s1"),
			State{Epoch: 4, Phase: Mounted, Grant: at(Free).Grant, Since: t0}},
		"pause": {Mounted, pause(4, "s1"),
			State{Epoch: 4, Phase: Paused, Grant: at(Free).Grant, Since: t1}},
		"expire": {Paused, expire(4, "s1"),
			State{Epoch: 4, Phase: Expiring, Grant: at(Free).Grant, Since: t1}},
		"release": {Mounted, release(4, "s1"),
			State{Epoch: 4, Phase: Free, Grant: at(Free).Grant, Since: t1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := c.do(at(c.from))
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func TestCheckAcceptsOnlyTheHolder(t *testing.T) {
	for _, p := range []Phase{Preparing, Mounted, Paused, Expiring} {
		if err := at(p).Check(4, "s1"); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if g, held := at(p).Holder(); !held || g.Owner != "s1" {
			t.Errorf("%s: holder %v %v", p, g, held)
		}
		for _, err := range []error{at(p).Check(3, "s1"), at(p).Check(5, "s1"), at(p).Check(4, "s2")} {
			if !errors.Is(err, ErrFenced) {
				t.Errorf("%s: %v, want ErrFenced", p, err)
			}
		}
	}
	if err := at(Free).Check(4, "s1"); !errors.Is(err, ErrFenced) {
		t.Errorf("free: %v, want ErrFenced", err)
	}
	if g, held := at(Free).Holder(); held {
		t.Errorf("free: held by %v", g)
	}
}

// A newer version's phase, and a State that was never initialised, are not free.
func TestUnknownPhaseIsNeverTakenForFree(t *testing.T) {
	for _, p := range []Phase{"", "draining", "Free"} {
		s := at(p)
		for name, do := range map[string]transition{
			"acquire": acquire(fresh("s1", "n1")), "takeover": takeOver(4, fresh("s1", "n1")), "mounted": mounted(4, "s1"),
			"pause": pause(4, "s1"), "expire": expire(4, "s1"), "release": release(4, "s1"),
		} {
			next, changed, err := do(s)
			var unknown *PhaseError
			if !errors.Is(err, ErrUnknownPhase) || !errors.As(err, &unknown) || unknown.Phase != p || changed {
				t.Errorf("%s in phase %q: %v", name, p, err)
			}
			if diff := cmp.Diff(s, next); diff != "" {
				t.Error(diff)
			}
		}
		if _, held := s.Holder(); held {
			t.Errorf("phase %q has a holder", p)
		}
	}
}
