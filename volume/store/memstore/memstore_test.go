package memstore_test

import (
	"errors"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func TestMemstoreIsAStore(t *testing.T) {
	storetest.Run(t, func(testing.TB) (a, b store.Store) {
		s := memstore.New()
		return s, s
	})
}

func TestKeyCannotBeADirectory(t *testing.T) {
	s := memstore.New()
	if err := s.PutIfAbsent(t.Context(), "a/b", nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		var ke *store.KeyError
		if err := s.PutIfAbsent(t.Context(), key, nil); !errors.As(err, &ke) || ke.Key != key {
			t.Errorf("put %s: %v, want a *KeyError", key, err)
		}
	}
	if err := s.PutIfAbsent(t.Context(), "a-b", nil); err != nil {
		t.Error(err)
	}
}
