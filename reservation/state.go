package reservation

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Phase is where a reservation is in its life.
type Phase string

// The phases. A stored phase that is none of these is ErrUnknownPhase in every transition, and never taken for free.
const (
	// Free: nobody holds the volume.
	Free Phase = "free"
	// Preparing: granted; the owner's node is opening it.
	Preparing Phase = "preparing"
	// Mounted: the owner reads and writes.
	Mounted Phase = "mounted"
	// Paused: the owner keeps it without using it. What it wrote is published.
	Paused Phase = "paused"
	// Expiring: the owner's time is over, and its data is being kept before the release.
	Expiring Phase = "expiring"
)

// Grant is the right of one owner, on one node, for one epoch.
type Grant struct {
	// ID is fresh for every grant: by it a repeated acquire finds itself.
	ID    string `json:"id"`
	Owner string `json:"owner"`
	Node  string `json:"node"`
	// At is the grantor's clock, for people.
	At time.Time `json:"at"`
	// Reason says why the grant was taken over from another holder. It is empty for an acquired one.
	Reason string `json:"reason,omitzero"`
	// Unknown holds members that this version does not know. They are written again.
	Unknown jsontext.Value `json:",embed"`
}

// State is a volume's reservation. A zero State has no phase and is refused everywhere: begin with New.
type State struct {
	// Epoch counts grants. Whoever stores the state may raise it for reasons of its own, but never lowers it.
	Epoch uint64 `json:"epoch"`
	Phase Phase  `json:"phase"`
	// Grant is the current one. In the phase Free it is the last one: a late acquire or release finds itself by it.
	Grant Grant `json:"grant,omitzero"`
	// Since is when the volume was granted, paused, claimed for expiry or released, whichever was last. For people.
	Since time.Time `json:"since,omitzero"`
	// Unknown holds members that this version does not know. They are written again.
	Unknown jsontext.Value `json:",embed"`
}

// New returns the reservation of a volume that was never held.
func New() State { return State{Phase: Free} }

// Holder returns the current grant, and whether there is one.
func (s State) Holder() (Grant, bool) {
	switch s.Phase {
	case Preparing, Mounted, Paused, Expiring:
		return s.Grant, true
	}
	return Grant{}, false
}

// Check returns nil if owner holds the volume under epoch, and a *FencedError if not. Whatever changes a volume on a
// holder's behalf is checked with it on the newest state.
func (s State) Check(epoch uint64, owner string) error {
	if err := s.known(); err != nil {
		return err
	}
	if g, held := s.Holder(); !held || s.Epoch != epoch || g.Owner != owner {
		return s.fenced(epoch, owner)
	}
	return nil
}

// known refuses phases that a newer version may have written.
func (s State) known() error {
	if _, held := s.Holder(); held || s.Phase == Free {
		return nil
	}
	return &PhaseError{Phase: s.Phase}
}
