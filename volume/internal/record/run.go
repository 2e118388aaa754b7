package record

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/volume/genlog"
)

// Run is the state of the collector's log: the newest run.
type Run struct {
	ID      string    `json:"id"`
	Node    string    `json:"node"`
	Ended   bool      `json:"ended"`
	BegunAt time.Time `json:"begunAt"`
	// Candidates is how many layers the run found unreferenced, Digest the sha256 of their sorted keys, one a line.
	Candidates int            `json:"candidates,omitzero"`
	Digest     string         `json:"digest,omitzero"`
	DryRun     bool           `json:"dryRun,omitzero"`
	Extra      jsontext.Value `json:",embed"`
}

// Begin starts a run. Any earlier run that has not ended may no longer end: `ended` must be its direct successor.
func Begin(r Run) genlog.Op[Run] {
	return genlog.Op[Run]{Name: "begun", Apply: func(s Run) (Run, bool, error) {
		if s.ID == r.ID {
			return s, false, nil
		}
		r.Extra = s.Extra
		return r, true, nil
	}}
}

// End ends the run, recording what it found. It is appended only as the direct successor of `begun`.
func End(r Run) genlog.Op[Run] {
	return genlog.Op[Run]{Name: "ended", Apply: func(s Run) (Run, bool, error) {
		if s.ID == r.ID && s.Ended {
			return s, false, nil
		}
		r.Extra, r.Ended = s.Extra, true
		return r, true, nil
	}}
}
