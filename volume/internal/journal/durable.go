package journal

import (
	"errors"
	"os"
	"path/filepath"
)

// ReplaceFile makes a file, or replaces it, in one rename: a reader after a crash sees the old content or the new, never a
// part. When it returns nil the new content survives a power cut.
func ReplaceFile(path string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
