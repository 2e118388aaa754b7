package posixstore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/volume/store"
)

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		w := &walk{s: s, after: after, left: limit, yield: yield}
		err := beginList(ctx, prefix)
		if err == nil {
			err = w.dir(ctx, prefix)
		}
		if err != nil && err != errStop {
			yield(store.Entry{}, opError("list", prefix, err))
		}
	}
}

// errStop ends a walk that has yielded enough.
var errStop = errors.New("stop")

// walk is one listing.
type walk struct {
	s     *Store
	after string
	left  int
	yield func(store.Entry, error) bool
}

// dir yields what is below a prefix. One directory at a time is in memory, and those above it.
func (w *walk) dir(ctx context.Context, prefix string) error {
	children, err := w.s.children(prefix)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := ctx.Err(); err != nil {
			return err
		}
		key := prefix + c.order
		switch {
		case !c.isDir() && key > w.after:
			err = w.file(key)
		case c.isDir() && (key > w.after || strings.HasPrefix(w.after, key)):
			err = w.dir(ctx, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) file(key string) error {
	path := w.s.path(key)
	fi, err := os.Lstat(path)
	if err == nil {
		err = w.s.settle(path, fi)
	}
	if isAbsent(err) {
		return nil // deleted since the directory was read
	}
	if err != nil {
		return err
	}
	if !w.yield(store.Entry{Key: key, Size: fi.Size(), Modified: fi.ModTime()}, nil) {
		return errStop
	}
	if w.left--; w.left == 0 {
		return errStop
	}
	return nil
}

// Dirs implements store.Store. Unlike an Entry, a name is only where to look: what is below it is made durable when it
// is listed or read.
func (s *Store) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		err := beginList(ctx, prefix)
		if err == nil {
			err = s.dirs(ctx, prefix, after, limit, yield)
		}
		if err != nil {
			yield("", opError("list directories", prefix, err))
		}
	}
}

func (s *Store) dirs(ctx context.Context, prefix, after string, limit int, yield func(string, error) bool) error {
	children, err := s.children(prefix)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !c.isDir() || after != "" && c.order <= after+"/" {
			continue
		}
		// A directory without keys is left over from a Delete, or about to be used.
		found, err := s.holdsKeys(s.path(prefix + c.order))
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		if !yield(c.name, nil) {
			return nil
		}
		if limit--; limit == 0 {
			return nil
		}
	}
	return nil
}

// child is a file or directory that may hold keys. The order of keys is that of order: a directory counts as its name
// and a slash, so that a-b/x comes before a/x.
type child struct{ name, order string }

func (c child) isDir() bool { return len(c.order) > len(c.name) }

func newChild(e fs.DirEntry) (child, bool) {
	c := child{e.Name(), e.Name()}
	if e.IsDir() {
		c.order += "/"
	}
	// Whatever else lies around, such as lost+found, holds no keys.
	return c, (e.IsDir() || e.Type().IsRegular()) && store.ValidSegment(c.name)
}

// children returns what is in the directory of a prefix, in order; nothing when there is no such directory.
func (s *Store) children(prefix string) ([]child, error) {
	f, err := openPlain(s.path(prefix))
	if isAbsent(err) {
		return nil, s.present()
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil && !isAbsent(err) {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, s.present()
	}
	all := make([]child, 0, len(entries))
	for _, e := range entries {
		if c, ok := newChild(e); ok {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b child) int { return strings.Compare(a.order, b.order) })
	return all, nil
}

// holdsKeys reports whether there is any key below a directory. It reads no more than it needs to find one.
func (s *Store) holdsKeys(dir string) (bool, error) {
	f, err := openPlain(dir)
	if isAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		const batch = 64
		entries, readErr := f.ReadDir(batch)
		for _, e := range entries {
			c, ok := newChild(e)
			if ok && !c.isDir() {
				return true, nil
			}
			if !ok {
				continue
			}
			if found, err := s.holdsKeys(filepath.Join(dir, c.name)); found || err != nil {
				return found, err
			}
		}
		if readErr == io.EOF || isAbsent(readErr) {
			return false, nil
		}
		if readErr != nil {
			return false, readErr
		}
	}
}

func beginList(ctx context.Context, prefix string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.ValidPrefix(prefix)
}
