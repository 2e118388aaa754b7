package posixstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := begin(ctx, key); err != nil {
		return opError("delete", key, err)
	}
	if err := s.present(); err != nil {
		return opError("delete", key, err)
	}
	return opError("delete", key, s.remove(s.path(key)))
}

func (s *Store) remove(path string) error {
	parent := filepath.Dir(path)
	// Opened before the unlink, so that it can be synced even when another Delete removes it in between.
	dir, err := s.openNearest(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = retry(func() error { return unix.Unlink(path) })
	if err != nil && !isAbsent(err) && !errors.Is(err, unix.EISDIR) {
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	// Also when nothing was there: another Delete may have unlinked it and not have come this far.
	if err := dir.Sync(); err != nil {
		return err
	}
	s.removeEmpty(parent)
	return nil
}

// openNearest opens a directory, or the nearest one above it that exists. A missing directory is made durable as
// missing by syncing that one.
func (s *Store) openNearest(dir string) (*os.File, error) {
	for {
		f, err := os.Open(dir)
		if dir == s.root || !isAbsent(err) {
			return f, err
		}
		dir = filepath.Dir(dir)
	}
}

// removeEmpty removes a directory that holds nothing, and then those above it. It stops at the first that the kernel
// will not remove, for whatever reason. This need not be durable: an empty directory is in no listing.
func (s *Store) removeEmpty(dir string) {
	for dir != s.root && retry(func() error { return unix.Rmdir(dir) }) == nil {
		dir = filepath.Dir(dir)
	}
}

// retry repeats a system call that a signal interrupted, as package os does for its own.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
