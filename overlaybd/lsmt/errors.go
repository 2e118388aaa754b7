package lsmt

import (
	"errors"
	"fmt"
)

// Error classes, tested with errors.Is.
var (
	// ErrCorrupt: stored bytes contradict the format.
	ErrCorrupt = errors.New("corrupt data")
	// ErrInvalid: an argument is outside its limits. Nothing was changed.
	ErrInvalid = errors.New("invalid argument")
)

// CorruptError says which part of a file contradicts the format, and where. It is an ErrCorrupt.
type CorruptError struct {
	Part   string // header, trailer, index, data, pending
	Offset int64  // byte offset in that file
	Detail string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt %s at byte %d: %s", e.Part, e.Offset, e.Detail)
}

// Is makes a CorruptError an ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func corrupt(part string, off int64, format string, args ...any) error {
	return &CorruptError{Part: part, Offset: off, Detail: fmt.Sprintf(format, args...)}
}

// InvalidError names an argument, its value and its limit. It is an ErrInvalid.
type InvalidError struct {
	Field string
	Value any
	Limit string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid %s %v: must be %s", e.Field, e.Value, e.Limit)
}

// Is makes an InvalidError an ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Invalid returns an InvalidError.
func Invalid(field string, value any, limit string) error {
	return &InvalidError{Field: field, Value: value, Limit: limit}
}
