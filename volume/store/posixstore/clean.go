package posixstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// staleSuffix marks a temporary file that is about to be removed. rand.Text has no dot.
const staleSuffix = ".stale"

// CleanTemp removes the temporary files that were last written longer ago than olderThan, and returns how many. Their
// writers are most likely dead; one that is not gets an error and may try again. No record is ever at risk, whatever
// the age.
func (s *Store) CleanTemp(ctx context.Context, olderThan time.Duration) (int, error) {
	stale, err := s.claimStale(ctx, olderThan)
	if err != nil || len(stale) == 0 {
		return 0, wrapClean(err)
	}
	// A writer may have died between the link and the sync of the directory. Its temporary name is what tells readers
	// of that record to sync for it, so everything is synced before it goes.
	if err := syncAll(s.root); err != nil {
		return 0, wrapClean(err)
	}
	removed := 0
	for _, path := range stale {
		rerr := os.Remove(path)
		switch {
		case rerr == nil:
			removed++
		case !errors.Is(rerr, fs.ErrNotExist): // another cleaner's
			err = errors.Join(err, rerr)
		}
	}
	return removed, wrapClean(err)
}

// claimStale renames old temporary files and returns their new paths. After that their writers cannot link them any
// more, so that every link there will ever be is older than the sync that follows.
func (s *Store) claimStale(ctx context.Context, olderThan time.Duration) ([]string, error) {
	entries, err := os.ReadDir(s.tmp)
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		path := filepath.Join(s.tmp, e.Name())
		if strings.HasSuffix(path, staleSuffix) {
			stale = append(stale, path) // of a cleaner that died
			continue
		}
		fi, err := e.Info()
		if err == nil && time.Since(fi.ModTime()) < olderThan {
			continue
		}
		if err == nil {
			err = os.Rename(path, path+staleSuffix)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // its writer is done
		}
		if err != nil {
			return nil, err
		}
		stale = append(stale, path+staleSuffix)
	}
	return stale, nil
}

// syncAll makes all changes to the file system durable.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", retry(func() error { return unix.Syncfs(int(f.Fd())) }))
}

func wrapClean(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("posixstore: clean temporary files: %w", err)
}
