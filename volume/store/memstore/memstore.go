package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandvol/sandvol/volume/store"
)

// Store is a store.Store in memory. Make one with New.
type Store struct {
	mu      sync.RWMutex
	objects map[string]object
	keys    []string // of objects, sorted
}

// object is never changed once stored, so readers may use its bytes without a lock.
type object struct {
	body     []byte
	modified time.Time
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store { return &Store{objects: map[string]object{}} }

// PutIfAbsent implements store.Store.
func (s *Store) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	if err := begin(ctx, key); err != nil {
		return opError("put", key, err)
	}
	return opError("put", key, s.put(key, bytes.Clone(body)))
}

// PutBlob implements store.Store.
func (s *Store) PutBlob(ctx context.Context, key string, src store.Source) error {
	if err := begin(ctx, key); err != nil {
		return opError("put blob", key, err)
	}
	// A key that is taken is refused without reading the source, as one would over a network.
	if _, err := s.get(key); err == nil {
		return opError("put blob", key, store.ErrExists)
	}
	var body bytes.Buffer
	if err := store.CopySource(ctx, &body, src); err != nil {
		return opError("put blob", key, err)
	}
	return opError("put blob", key, s.put(key, body.Bytes()))
}

func (s *Store) put(key string, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.objects[key]; taken {
		return store.ErrExists
	}
	i, _ := slices.BinarySearch(s.keys, key)
	if err := s.noDirectory(key, i); err != nil {
		return err
	}
	s.keys = slices.Insert(s.keys, i, key)
	s.objects[key] = object{body, time.Now()}
	return nil
}

// noDirectory refuses a key that is a directory of a stored one, or the other way round.
func (s *Store) noDirectory(key string, i int) error {
	below := key + "/"
	j, _ := slices.BinarySearch(s.keys[i:], below)
	if i += j; i < len(s.keys) && strings.HasPrefix(s.keys[i], below) {
		return &store.KeyError{Key: key, Reason: "it is a directory of the stored key " + s.keys[i]}
	}
	for at, c := range key {
		if c != '/' {
			continue
		}
		if _, taken := s.objects[key[:at]]; taken {
			return &store.KeyError{Key: key, Reason: "its directory " + key[:at] + " is a stored key"}
		}
	}
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := begin(ctx, key); err != nil {
		return nil, opError("get", key, err)
	}
	o, err := s.get(key)
	if err != nil {
		return nil, opError("get", key, err)
	}
	return bytes.Clone(o.body), nil
}

func (s *Store) get(key string) (object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.objects[key]
	if !ok {
		return object{}, store.ErrNotExist
	}
	return o, nil
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := begin(ctx, key); err != nil {
		return opError("delete", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key]; !ok {
		return nil
	}
	delete(s.objects, key)
	i, _ := slices.BinarySearch(s.keys, key)
	s.keys = slices.Delete(s.keys, i, i+1)
	return nil
}

func begin(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.ValidKey(key)
}

func opError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	// An invalid key is in its own error, shortened if need be.
	if errors.Is(err, store.ErrInvalidKey) {
		return fmt.Errorf("memstore: %s: %w", op, err)
	}
	return fmt.Errorf("memstore: %s %s: %w", op, key, err)
}
