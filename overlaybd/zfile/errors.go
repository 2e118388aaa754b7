package zfile

import (
	"errors"
	"fmt"
	"io"
)

// Error classes, tested with errors.Is.
var (
	// ErrNotZFile: the bytes do not begin as a ZFile does; they may be something else that is whole.
	ErrNotZFile = errors.New("not a ZFile")
	// ErrCorrupt: stored bytes contradict the format or their checksum. Reading the same copy again will not help.
	ErrCorrupt = errors.New("corrupt ZFile")
	// ErrUnsupported: the file is sound as far as it was read, but uses what this package does not know.
	ErrUnsupported = errors.New("unsupported ZFile")
	// ErrInvalid: an argument is outside its limits. Nothing was changed.
	ErrInvalid = errors.New("invalid argument")
)

// Part is a part of a ZFile.
type Part string

// The parts of a ZFile, in file order.
const (
	PartHeader  Part = "header"
	PartBlock   Part = "block"
	PartIndex   Part = "index"
	PartTrailer Part = "trailer"
)

// CorruptError says which stored bytes contradict the format, and how. It is an ErrCorrupt. A cache below the Reader
// can drop exactly the range [Offset, Offset+Length) and fetch it again.
type CorruptError struct {
	Part   Part
	Block  int64 // number of the block, from 0; -1 if Part is not PartBlock
	Offset int64 // of the first suspect byte in the file
	Length int64 // bytes
	Detail string
}

func (e *CorruptError) Error() string {
	where := string(e.Part)
	if e.Part == PartBlock {
		where = fmt.Sprintf("block %d", e.Block)
	}
	return fmt.Sprintf("corrupt ZFile: %s, %d bytes at %d: %s", where, e.Length, e.Offset, e.Detail)
}

// Is makes a CorruptError an ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

func corrupt(part Part, off, n int64, format string, args ...any) error {
	return &CorruptError{Part: part, Block: -1, Offset: off, Length: n, Detail: fmt.Sprintf(format, args...)}
}

// LimitError names a value, and the limit that it breaks. It is an ErrInvalid when a caller gave the value, and an
// ErrUnsupported when a file holds it.
type LimitError struct {
	Field string
	Value any
	Limit string
	class error
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %s %v: must be %s", e.class, e.Field, e.Value, e.Limit)
}

// Is answers for the class of the error.
func (e *LimitError) Is(target error) bool { return target == e.class }

func invalid(field string, value any, limit string) error {
	return &LimitError{Field: field, Value: value, Limit: limit, class: ErrInvalid}
}

func unsupported(field string, value any, limit string) error {
	return &LimitError{Field: field, Value: value, Limit: limit, class: ErrUnsupported}
}

// readFull reads exactly p. A file that ends before the size it was opened with has lost bytes, so that is corruption;
// any other failure is the medium's and is passed on.
func readFull(r io.ReaderAt, part Part, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return corrupt(part, off, int64(len(p)), "the file ends at byte %d", off+int64(n))
	}
	return fmt.Errorf("read ZFile %s at byte %d: %w", part, off, err)
}
