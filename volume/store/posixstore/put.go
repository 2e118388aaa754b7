package posixstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/volume/store"
)

// placeAttempts bounds how often a writer makes a directory that others remove again. Each of them must have deleted
// the last key in it just then.
const placeAttempts = 100

// PutIfAbsent implements store.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	return opError("put", key, s.put(ctx, key, func(w io.Writer) error {
		_, err := w.Write(body)
		return err
	}))
}

// PutBlob implements store.Store.
func (s *Store) PutBlob(ctx context.Context, key string, src store.Source) error {
	return opError("put blob", key, s.put(ctx, key, func(w io.Writer) error {
		return store.CopySource(ctx, w, src)
	}))
}

func (s *Store) put(ctx context.Context, key string, fill func(io.Writer) error) error {
	if err := begin(ctx, key); err != nil {
		return err
	}
	path := s.path(key)
	// Whoever comes late need not write, nor read its source.
	switch fi, err := os.Lstat(path); {
	case err == nil:
		return s.taken(key, path, fi)
	case errors.Is(err, unix.ENOTDIR):
		return &store.KeyError{Key: key, Reason: "one of its directories is a stored key"}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := s.present(); err != nil {
		return err // the temporary file could not be made
	}
	tmp := filepath.Join(s.tmp, rand.Text())
	if err := writeTemp(tmp, fill); err != nil {
		return err
	}
	return s.place(key, tmp, path)
}

// writeTemp writes a whole file, durable in all but its name. It leaves nothing when it fails.
func writeTemp(tmp string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = fill(f); err == nil {
		// Before the link: readers must not see bytes that a power cut takes away again.
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		// The error that counts is the first. What cannot be removed now is CleanTemp's.
		_ = os.Remove(tmp)
	}
	return err
}

// place gives a finished temporary file its key, durably, and removes its temporary name. That name stays wherever the
// key may have been placed and may not be durable: without it, readers would take the record for durable.
func (s *Store) place(key, tmp, path string) error {
	if linkErr := s.link(tmp, path); linkErr != nil {
		placed, err := isPlaced(tmp, path)
		if err != nil {
			return errors.Join(linkErr, err)
		}
		if !placed {
			_ = os.Remove(tmp) // as in writeTemp
			if errors.Is(linkErr, fs.ErrExist) {
				return s.lost(key, path)
			}
			return linkErr
		}
		// It did take effect: an NFS client repeats a request whose reply was lost, and is then told that the name
		// exists.
	}
	// A directory that is gone by now means that someone has seen the record and deleted it.
	if err := ignoreAbsent(s.syncNames(filepath.Dir(path))); err != nil {
		return fmt.Errorf("visible, but may not be durable: %w", err)
	}
	// A temporary name that cannot be removed costs readers an fsync each, and nothing else.
	_ = os.Remove(tmp)
	return nil
}

// isPlaced reports whether the temporary file is what the path names.
func isPlaced(tmp, path string) (bool, error) {
	ours, err := os.Lstat(tmp)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	there, err := os.Lstat(path)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	return os.SameFile(there, ours), nil
}

func ignoreAbsent(err error) error {
	if isAbsent(err) {
		return nil
	}
	return err
}

// link is link(2), which makes the directories that are missing.
func (s *Store) link(tmp, path string) error {
	var err error
	for range placeAttempts {
		if err = os.Link(tmp, path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := os.Lstat(tmp); err != nil {
			return fmt.Errorf("temporary file was removed as a dead writer's: %w", err)
		}
		if err := s.makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return err
}

// makeDirs makes a directory and those above it, marked as perhaps not durable.
func (s *Store) makeDirs(dir string) error {
	if dir == s.root {
		// Not by us: a root that went away may be a file system that was unmounted.
		_, err := os.Stat(dir)
		return err
	}
	err := os.Mkdir(dir, dirMode|fs.ModeSticky)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, dirMode|fs.ModeSticky)
	}
	// Others make the same directories, and remove them when a Delete leaves them empty: link tries again.
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// lost is the answer to a writer that came second.
func (s *Store) lost(key, path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return store.ErrExists // deleted since
	}
	if err != nil {
		return err
	}
	return s.taken(key, path, fi)
}

// taken is the answer about a key under which something is stored. The key's owner may take it as success, so what is
// stored must be durable first.
func (s *Store) taken(key, path string, fi fs.FileInfo) error {
	if fi.IsDir() {
		return &store.KeyError{Key: key, Reason: "it is a directory of stored keys"}
	}
	if err := ignoreAbsent(s.settle(path, fi)); err != nil {
		return err
	}
	return store.ErrExists
}
