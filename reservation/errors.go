package reservation

import (
	"errors"
	"fmt"
	"time"
)

// Error classes, tested with errors.Is.
var (
	// ErrConflict: the volume is in a phase, or in hands, that do not allow the transition.
	ErrConflict = errors.New("reservation: conflict")
	// ErrFenced: the epoch or owner that the transition was made under is not the current one, and never will be again.
	ErrFenced = errors.New("reservation: fenced")
	// ErrInvalid: an argument is outside its limits.
	ErrInvalid = errors.New("reservation: invalid argument")
	// ErrUnknownPhase: the state was written by a version that knows more phases than this one.
	ErrUnknownPhase = errors.New("reservation: unknown phase")
)

// ConflictError says who holds the volume. It depends on the state alone: whoever asks, on whichever node, is told the
// same. It is ErrConflict.
type ConflictError struct {
	// Op is what was attempted.
	Op string
	// Owner and Node are those of the holder; of the last one if the volume is free; empty if it was never held.
	Owner, Node string
	Phase       Phase
	Epoch       uint64
	Since       time.Time
}

// Error names the holder, the phase, the epoch and since when.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("cannot %s: %s", e.Op, describe(e.Phase, e.Owner, e.Node, e.Epoch, e.Since))
}

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// FencedError says under what epoch and owner a transition was made, and who holds the volume instead. It is ErrFenced.
type FencedError struct {
	// Owner and Epoch are what the caller presented.
	Owner string
	Epoch uint64
	// Holder and Node are those of the holder; of the last one if the volume is free; empty if it was never held.
	Holder, Node string
	Phase        Phase
	CurrentEpoch uint64
	Since        time.Time
}

// Error names both epochs, the holder, the phase and since when.
func (e *FencedError) Error() string {
	return fmt.Sprintf("epoch %d of %s is not current: %s", e.Epoch, e.Owner,
		describe(e.Phase, e.Holder, e.Node, e.CurrentEpoch, e.Since))
}

// Is reports whether target is ErrFenced.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// InvalidError names the argument, its value and the limit that it breaks. It is ErrInvalid.
type InvalidError struct {
	Field, Value, Limit string
}

// Error names field, value and limit. A long value is cut.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %.140q %s", e.Field, e.Value, e.Limit)
}

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// PhaseError names a phase that this version does not know. It is ErrUnknownPhase.
type PhaseError struct {
	Phase Phase
}

// Error names the phase.
func (e *PhaseError) Error() string {
	return fmt.Sprintf("reservation is in the unknown phase %q", e.Phase)
}

// Is reports whether target is ErrUnknownPhase.
func (e *PhaseError) Is(target error) bool { return target == ErrUnknownPhase }

func (s State) conflict(op string) error {
	return &ConflictError{Op: op, Owner: s.Grant.Owner, Node: s.Grant.Node, Phase: s.Phase, Epoch: s.Epoch, Since: s.Since}
}

func (s State) fenced(epoch uint64, owner string) error {
	return &FencedError{
		Owner: owner, Epoch: epoch,
		Holder: s.Grant.Owner, Node: s.Grant.Node, Phase: s.Phase, CurrentEpoch: s.Epoch, Since: s.Since,
	}
}

// describe says in words who holds a volume.
func describe(phase Phase, owner, node string, epoch uint64, since time.Time) string {
	at := since.UTC().Format(time.RFC3339)
	switch {
	case owner == "":
		return fmt.Sprintf("the volume is free and was never held, epoch %d", epoch)
	case phase == Free:
		return fmt.Sprintf("the volume is free, epoch %d, released by %s at %s", epoch, owner, at)
	}
	return fmt.Sprintf("the volume is held by %s on node %s, phase %s, epoch %d, since %s", owner, node, phase, epoch, at)
}
