package mount

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
)

// Phase is where a sandbox's drives are. Volume records stay the truth about who owns what: a phase is written before the
// first volume is acquired, and changed after the last one has changed.
type Phase string

// The phases. Deleted is the tombstone; a sandbox of the same id may be created after it.
const (
	Creating Phase = "creating" // nothing was acknowledged yet
	Running  Phase = "running"
	Paused   Phase = "paused"
	Kept     Phase = "kept"     // a snapshot: nothing is attached, sandboxes are created from it
	Expiring Phase = "expiring" // its time is over: what it wrote is being kept, then it is deleted
	Deleted  Phase = "deleted"
)

// DriveSet is all drives of a sandbox, or of a snapshot of one. It is a value; a host may keep it in its own records. It
// names no path of a node.
type DriveSet struct {
	Phase Phase `json:"phase"`
	// Was is what an expiring sandbox was before: Running or Paused.
	Was Phase `json:"was,omitzero"`
	// Cut is the freeze under which a snapshot's checkpoints were made.
	Cut       string     `json:"cut,omitzero"`
	Drives    []SetDrive `json:"drives,omitempty"`
	UpdatedAt time.Time  `json:"updatedAt,omitzero"`

	// Extra keeps members that this version does not know, such as a host's own drives beside ours.
	Extra jsontext.Value `json:",embed"`
}

// SetDrive is one drive of a set.
type SetDrive struct {
	// Path is where the sandbox sees it.
	Path   string      `json:"path"`
	Volume string      `json:"volume"`
	Mode   volume.Mode `json:"mode"`
	// ReadOnly: the sandbox may not write it. Always so for an ro volume.
	ReadOnly bool `json:"readOnly,omitzero"`
	// Checkpoint is set in a snapshot: what the drive held.
	Checkpoint string `json:"checkpoint,omitzero"`
	// Pin is the nonce of an ro volume's pin, for whoever mounts the drive next.
	Pin string `json:"pin,omitzero"`

	Extra jsontext.Value `json:",embed"`
}

// runs reports whether a node has the drives open, or had when it stopped.
func (s DriveSet) runs() bool { return s.Phase == Running || s.Phase == Expiring && s.Was == Running }

// same reports whether both sets mount the same volumes at the same places.
func (s DriveSet) same(drives []SetDrive) bool {
	return slices.EqualFunc(s.Drives, drives, func(a, b SetDrive) bool {
		return a.Path == b.Path && a.Volume == b.Volume && a.Mode == b.Mode && a.ReadOnly == b.ReadOnly
	})
}

// begin writes the set of a sandbox that is about to be created. A set of the same drives is one that an earlier try wrote.
func begin(phase Phase, cut string, drives []SetDrive, at time.Time) genlog.Op[DriveSet] {
	return genlog.Op[DriveSet]{Name: "create", Apply: func(s DriveSet) (DriveSet, bool, error) {
		switch s.Phase {
		case "", Deleted:
			return DriveSet{Phase: phase, Cut: cut, Drives: slices.Clone(drives), UpdatedAt: at, Extra: s.Extra}, true, nil
		case phase:
			if s.same(drives) {
				return s, false, nil
			}
		}
		return s, false, fmt.Errorf("%w: the sandbox exists with %d drives and is %s", ErrExists, len(s.Drives), s.Phase)
	}}
}

// enter changes the phase, with the pins as they are now. from are the phases it may come from.
func enter(to Phase, drives []SetDrive, at time.Time, from ...Phase) genlog.Op[DriveSet] {
	return genlog.Op[DriveSet]{Name: string(to), Apply: func(s DriveSet) (DriveSet, bool, error) {
		switch {
		case s.Phase == to && slices.EqualFunc(s.Drives, drives, func(a, b SetDrive) bool { return a.Pin == b.Pin }):
			return s, false, nil
		case s.Phase != to && !slices.Contains(from, s.Phase):
			return s, false, fmt.Errorf("%w: the sandbox is %s and cannot become %s", ErrConflict, s.Phase, to)
		}
		s.Phase, s.Was, s.Drives, s.UpdatedAt = to, "", slices.Clone(drives), at
		return s, true, nil
	}}
}
