package ext4

import (
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/overlaybd"
)

// Error classes, tested with errors.Is. Arguments and entries outside their limits are overlaybd.ErrInvalid, file systems
// that contradict their format or their checksums overlaybd.ErrCorrupt.
var (
	// ErrNoSpace: the entries need more blocks or inodes than the file system has.
	ErrNoSpace = errors.New("ext4: no space left in the file system")
	// ErrUnsupported: the file system or its journal uses a feature that this package does not know. Nothing was changed.
	ErrUnsupported = errors.New("ext4: unsupported")
)

// EntryError says which entry could not be added. It is of the class of Err.
type EntryError struct {
	Path string
	Err  error
}

func (e *EntryError) Error() string { return fmt.Sprintf("ext4: entry %q: %v", e.Path, e.Err) }

// Unwrap returns what was wrong.
func (e *EntryError) Unwrap() error { return e.Err }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{overlaybd.ErrInvalid}, args...)...)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("ext4: %w: "+format, append([]any{overlaybd.ErrCorrupt}, args...)...)
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUnsupported}, args...)...)
}
