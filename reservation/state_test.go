package reservation

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

const goldenState = `{"epoch":4,"phase":"paused",` +
	`"grant":{"id":"g4","owner":"s1","node":"n1","at":"2026-01-02T03:04:05Z"},"since":"2026-01-02T03:04:05Z"}`

// the state is durable as its caller's bytes.
func TestGoldenStateSurvivesItsJSON(t *testing.T) {
	for text, want := range map[string]State{goldenState: at(Paused), `{"epoch":0,"phase":"free"}`: New()} {
		body, err := json.Marshal(want, json.Deterministic(true))
		if err != nil || string(body) != text {
			t.Errorf("encoded %s, %v, want %s", body, err, text)
		}
		var got State
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// What a newer version has added to the holder's state is still there after this one has changed the phase.
func TestUnknownMembersSurviveATransition(t *testing.T) {
	s := at(Mounted)
	s.Unknown, s.Grant.Unknown = jsontext.Value(`{"zone":"b"}`), jsontext.Value(`{"cpu":[1]}`)
	next, _, err := s.Pause(4, "s1", t1)
	if err != nil || string(next.Unknown) != `{"zone":"b"}` || string(next.Grant.Unknown) != `{"cpu":[1]}` {
		t.Errorf("carried %s and %s, %v", next.Unknown, next.Grant.Unknown, err)
	}
}

// drawTransition draws any transition, mostly with arguments that could fit the state.
func drawTransition(t *rapid.T, s State, n int) transition {
	owner := rapid.SampledFrom([]string{s.Grant.Owner, "s1", "s2", "s3"}).Draw(t, "owner")
	epoch := s.Epoch - min(s.Epoch, uint64(rapid.IntRange(0, 2).Draw(t, "behind")))
	g := Grant{ID: s.Grant.ID, Owner: owner, Node: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), At: t0}
	if rapid.Bool().Draw(t, "fresh grant") {
		g.ID = fmt.Sprintf("g%d", n)
	}
	now := t0.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "clock")) * time.Hour)
	return rapid.SampledFrom([]transition{
		acquire(g), takeOver(epoch, g), pause(epoch, owner),
		func(s State) (State, bool, error) { return s.Mounted(epoch, owner) },
		func(s State) (State, bool, error) { return s.Expire(epoch, owner, now) },
		func(s State) (State, bool, error) { return s.Release(epoch, owner, now) },
	}).Draw(t, "transition")
}

// I1 and I2, whatever the clocks say: an epoch has one grant, epochs rise with every grant and with nothing else, and
// each transition applied again changes nothing.
func TestModelOneOwnerPerEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, granted := New(), map[uint64]Grant{}
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			do := drawTransition(t, s, n)
			next, changed, err := do(s)
			if (err != nil || !changed) && !cmp.Equal(s, next) {
				t.Fatalf("a transition without effect returns %+v for %+v", next, s)
			}
			if next.Epoch != s.Epoch && (next.Epoch != s.Epoch+1 || next.Phase != Preparing) {
				t.Fatalf("epoch %d becomes %d in phase %s", s.Epoch, next.Epoch, next.Phase)
			}
			if g, known := granted[next.Epoch]; known && !cmp.Equal(g, next.Grant) {
				t.Fatalf("epoch %d had the grant %+v and has %+v", next.Epoch, g, next.Grant)
			}
			granted[next.Epoch] = next.Grant
			if err == nil {
				again, changed, err := do(next)
				if err != nil || changed || !cmp.Equal(next, again) {
					t.Fatalf("again: %+v becomes %+v, %v", next, again, err)
				}
			}
			s = next
		}
	})
}

// only the owner's own transitions, and a takeover that names its epoch, move a paused owner out.
func TestModelPausedOwnerKeepsTheVolume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := at(Paused)
		strangers := []transition{
			acquire(fresh("s2", rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"))),
			takeOver(rapid.Uint64Max(3).Draw(t, "older"), fresh("s2", "n2")),
			release(4, "s2"), pause(4, "s2"), expire(4, "s2"), mounted(4, "s2"),
			release(rapid.Uint64Max(3).Draw(t, "older"), "s1"), expire(rapid.Uint64Max(3).Draw(t, "older"), "s1"),
		}
		next, changed, err := rapid.SampledFrom(strangers).Draw(t, "transition")(s)
		if err == nil || changed || !cmp.Equal(s, next, cmpopts.EquateEmpty()) {
			t.Fatalf("paused reservation becomes %+v, %v", next, err)
		}
	})
}
