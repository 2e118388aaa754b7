package soak

import "testing"

// The ledger finds what it is there to find.
func TestLedgerFindsWhatIsWrong(t *testing.T) {
	at := func(sectors ...uint64) (c Content) {
		copy(c[:], sectors)
		return c
	}
	attach := []Event{{Op: Create, Made: "v", Done: true}, {Op: Attach, Volume: "v", Done: true}}
	one := append(attach[:2:2], Event{Op: Write, Volume: "v", Number: 1, Done: true})
	both := append(one[:3:3], Event{Op: Publish, Volume: "v", Done: true},
		Event{Op: Write, Volume: "v", Sector: 1, Number: 2, Done: true})
	begun := func(events []Event, e Event) []Event { return append(events[:len(events):len(events)], e) }
	writing, pausing := Event{Op: Write, Volume: "v", Number: 2}, Event{Op: Pause, Volume: "v"}
	forking := Event{Op: Fork, Volume: "v"}
	whole := Found{true, at(1, 2), at(1)} // what both have made
	for name, c := range map[string]struct {
		events []Event
		found  map[string]Found
		wrong  int
	}{
		"all is well":          {both, map[string]Found{"v": whole}, 0},
		"a write is lost":      {both, map[string]Found{"v": {true, at(1), at(1)}}, 1},
		"a publish is lost":    {both, map[string]Found{"v": {true, at(1, 2), at()}}, 1},
		"nobody published":     {both, map[string]Found{"v": {true, at(1, 2), at(1, 2)}}, 1},
		"nobody paused":        {both, map[string]Found{"v": {false, at(1, 2), at(1)}}, 1},
		"the volume is lost":   {both, map[string]Found{}, 1},
		"a stranger":           {one, map[string]Found{"v": {true, at(1), at()}, "w": {}}, 1},
		"begun write, landed":  {begun(one, writing), map[string]Found{"v": {true, at(2), at()}}, 0},
		"begun write, not":     {begun(one, writing), map[string]Found{"v": {true, at(1), at()}}, 0},
		"begun write, neither": {begun(one, writing), map[string]Found{"v": {true, at(), at()}}, 1},
		"begun pause, landed":  {begun(both, pausing), map[string]Found{"v": {false, at(1, 2), at(1, 2)}}, 0},
		"begun pause, by half": {begun(both, pausing), map[string]Found{"v": {false, at(1, 2), at()}}, 1},
		"begun delete, landed": {begun(both, Event{Op: Delete, Volume: "v"}), map[string]Found{}, 0},
		"begun fork, landed":   {begun(both, forking), map[string]Found{"v": whole, "w": {false, at(1), at(1)}}, 0},
		"begun fork, empty":    {begun(both, forking), map[string]Found{"v": whole, "w": {}}, 1},
		"begun fork, two":      {begun(attach, forking), map[string]Found{"v": {Held: true}, "w": {}, "x": {}}, 1},
	} {
		var l Ledger
		for _, e := range c.events {
			l.Note(e)
		}
		if wrong := l.Settle(c.found); len(wrong) != c.wrong {
			t.Errorf("%s: %d wrong, want %d: %v", name, len(wrong), c.wrong, wrong)
		}
	}
}
