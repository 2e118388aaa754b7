package memstore

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/volume/store"
)

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := beginList(ctx, prefix); err != nil {
			yield(store.Entry{}, opError("list", prefix, err))
			return
		}
		// What is yielded was collected under the lock, so that the caller may use the store meanwhile.
		for _, e := range s.list(prefix, after, limit) {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *Store) list(prefix, after string, limit int) []store.Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var entries []store.Entry
	i, found := slices.BinarySearch(s.keys, max(prefix, after))
	if found && s.keys[i] == after {
		i++
	}
	for ; i < len(s.keys) && strings.HasPrefix(s.keys[i], prefix); i++ {
		o := s.objects[s.keys[i]]
		entries = append(entries, store.Entry{Key: s.keys[i], Size: int64(len(o.body)), Modified: o.modified})
		if len(entries) == limit {
			break
		}
	}
	return entries
}

// Dirs implements store.Store.
func (s *Store) Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := beginList(ctx, prefix); err != nil {
			yield("", opError("list directories", prefix, err))
			return
		}
		for _, name := range s.dirs(prefix, after, limit) {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (s *Store) dirs(prefix, after string, limit int) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	from := prefix
	if after != "" {
		from = behind(prefix + after)
	}
	for {
		i, _ := slices.BinarySearch(s.keys, from)
		if i == len(s.keys) || !strings.HasPrefix(s.keys[i], prefix) {
			return names
		}
		name, _, isDir := strings.Cut(s.keys[i][len(prefix):], "/")
		if !isDir {
			from = s.keys[i] + "\x00"
			continue
		}
		names = append(names, name)
		if len(names) == limit {
			return names
		}
		from = behind(prefix + name)
	}
}

// behind returns the least string greater than every key below a directory: the successor of "/" is "0".
func behind(dir string) string { return dir + "0" }

func beginList(ctx context.Context, prefix string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.ValidPrefix(prefix)
}
