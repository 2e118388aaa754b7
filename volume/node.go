package volume

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandvol/sandvol/volume/internal/journal"
)

// This file is what a repository handle knows of its own node: which volumes are open, whose turn it is, what the journal
// holds.

// keyedLocks gives out one lock a volume, so that two calls for one volume on this node take turns.
type keyedLocks struct {
	mu    sync.Mutex
	locks map[volumeKey]*keyedLock
}

type keyedLock struct {
	sem   *semaphore.Weighted
	users int
}

func (k *keyedLocks) lock(ctx context.Context, key volumeKey) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		l = &keyedLock{sem: semaphore.NewWeighted(1)}
		if k.locks == nil {
			k.locks = map[volumeKey]*keyedLock{}
		}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
	if err := l.sem.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	return func() { l.sem.Release(1); leave() }, nil
}

// session returns the newest open session of a volume, or nil.
func (r *Repository) session(key volumeKey) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[key]
}

// openSessions returns every session that is open, lost ones included.
func (r *Repository) openSessions() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.grants))
}

// sessionOf returns the open session of a grant, or nil.
func (r *Repository) sessionOf(grant string) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grants[grant]
}

// register makes a session known, unless the repository is closed.
func (r *Repository) register(s *Session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.sessions[volumeKey{s.m.tenant, s.grant.Volume}] = s
	r.grants[s.grant.ID] = s
	return true
}

func (r *Repository) unregister(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := volumeKey{s.m.tenant, s.grant.Volume}
	if r.sessions[key] == s {
		delete(r.sessions, key)
	}
	delete(r.grants, s.grant.ID)
}

// findEntry returns the journal's entry about a volume of a sandbox. Lost ones do not count: they are kept for people.
func (r *Repository) findEntry(kind journal.Kind, tenant, volume, sandbox string) (journal.Entry, bool, error) {
	e, ok, bad := r.journal.Find(func(e journal.Entry) bool {
		return e.Kind == kind && e.Tenant == tenant && e.Volume == volume && e.Sandbox == sandbox && e.Lost == ""
	})
	if ok {
		return e, true, nil
	}
	// An entry that cannot be read may be the one: then asking for the volume again could hide what is in its directory.
	return journal.Entry{}, false, errors.Join(bad...)
}

// forget removes an entry and its local layers, which are in the repository or were never filled. Only the entry's removal
// can fail it. The layers are moved first to where the next Open removes what a process that dies here leaves behind.
func (r *Repository) forget(e journal.Entry) error {
	if e.Dir == "" {
		return r.journal.Remove(e.ID)
	}
	dir, trash := filepath.Join(r.dir, e.Dir), filepath.Join(r.tmp, "forgotten-"+e.ID)
	moved := os.Rename(dir, trash)
	if errors.Is(moved, os.ErrNotExist) {
		moved = nil // never filled, or moved before
	}
	if err := r.journal.Remove(e.ID); err != nil {
		return err
	}
	if err := errors.Join(moved, os.RemoveAll(trash)); err != nil {
		r.log.Warn("local clean-up", "volume", e.Volume, "dir", e.Dir, "error", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // the volume's directory, if no other grant's drive is in it
	return nil
}

// now is the time for records. It has no monotonic part: it equals what a reader decodes.
func (r *Repository) now() time.Time { return r.clock().UTC().Round(0) }
