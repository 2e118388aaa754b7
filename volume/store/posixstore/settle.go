package posixstore

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// settle makes sure that a record which a reader has found is durable. A second link is the temporary name, which its
// writer removes after it has synced the directory; while it is there, that writer is still at work or died on the way,
// and the reader does its work.
func (s *Store) settle(path string, fi fs.FileInfo) error {
	if fi.Sys().(*syscall.Stat_t).Nlink <= 1 {
		return nil
	}
	return s.syncNames(filepath.Dir(path))
}

// syncNames makes the names in a directory durable, and the directory's own when it is marked.
func (s *Store) syncNames(dir string) error {
	// The directory stays open to the end: should it be removed meanwhile and made again, the mark that is taken off is
	// that of the old one, which no longer matters.
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil || dir == s.root || fi.Mode()&fs.ModeSticky == 0 {
		return err
	}
	if err := s.syncNames(filepath.Dir(dir)); err != nil {
		return err
	}
	// Only now, when the names above are durable too: no mark means that nobody needs to look further up. A mark that
	// cannot be taken off costs others an fsync, and nothing else.
	_ = f.Chmod(fi.Mode() &^ fs.ModeSticky)
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
