package genlog

import (
	"errors"
	"fmt"
)

// Error classes, tested with errors.Is.
var (
	// ErrNotFound: the log has no generation, or not the one asked for.
	ErrNotFound = errors.New("genlog: not found")
	// ErrExists: generation 1 was created by someone else.
	ErrExists = errors.New("genlog: log exists")
	// ErrSuperseded: the generation that was to be extended is not the newest any more. Nothing was changed.
	ErrSuperseded = errors.New("genlog: generation superseded")
	// ErrInDoubt: a put was sent whose outcome could not be learned. Its effect may be there or may still arrive.
	ErrInDoubt = errors.New("genlog: outcome in doubt")
	// ErrUnreadable: a generation cannot be interpreted by this version. Nothing is appended to such a log.
	ErrUnreadable = errors.New("genlog: generation unreadable")
	// ErrContended: other writers took every slot that an append tried. Nothing was changed.
	ErrContended = errors.New("genlog: too many concurrent writers")
)

// UnreadableError says which generation could not be interpreted and why. It is ErrUnreadable.
type UnreadableError struct {
	Key string
	// MinReader is what the body asks of its readers; 0 if the body could not be decoded that far.
	MinReader int
	// Reason is the decoder's error; nil when the body asks for a newer reader.
	Reason error
}

// Error names the key and the reason.
func (e *UnreadableError) Error() string {
	if e.Reason != nil {
		return fmt.Sprintf("genlog: %s is unreadable: %v", e.Key, e.Reason)
	}
	return fmt.Sprintf("genlog: %s is unreadable: needs a reader of format %d, this one reads %d",
		e.Key, e.MinReader, format)
}

// Is reports whether target is ErrUnreadable.
func (e *UnreadableError) Is(target error) bool { return target == ErrUnreadable }

// Unwrap returns Reason.
func (e *UnreadableError) Unwrap() error { return e.Reason }

// InDoubtError says which put has an unknown outcome. It is ErrInDoubt, and also answers errors.Is for its cause:
// when the cause is an op's refusal, the newest state refuses the op, and what is unknown is whether an earlier put
// of the same call took effect before that.
type InDoubtError struct {
	Key   string
	Cause error
}

// Error names the key and the cause.
func (e *InDoubtError) Error() string {
	return fmt.Sprintf("genlog: outcome of writing %s is in doubt: %v", e.Key, e.Cause)
}

// Is reports whether target is ErrInDoubt.
func (e *InDoubtError) Is(target error) bool { return target == ErrInDoubt }

// Unwrap returns Cause.
func (e *InDoubtError) Unwrap() error { return e.Cause }
