package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandvol/sandvol/volume/store"
)

// Factory returns two handles on one empty store, as two nodes have them. It fails t when it cannot, and cleans up with
// it.
type Factory func(t testing.TB) (a, b store.Store)

// Run checks that what a factory makes is a store.Store, in all that package store promises. It is the same contract
// for every medium.
func Run(t *testing.T, f Factory) {
	run(t, f, size{keys: 2000, rounds: 8, models: 100})
}

// RunQuick is Run with smaller numbers, for a store that Run has checked on one medium already and that is slow on
// another.
func RunQuick(t *testing.T, f Factory) {
	run(t, f, size{keys: 200, rounds: 2, models: 15})
}

// size is how much is done.
type size struct {
	keys   int // of a long listing
	rounds int // of each race
	models int // runs against the model
}

func run(t *testing.T, f Factory, n size) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, suite)
	}{
		{"CreateNeverReplaces", createNeverReplaces},
		{"BodiesAreCopies", bodiesAreCopies},
		{"RecordOfAnySize", recordOfAnySize},
		{"OneOfManyRecordWritersWins", oneRecordWriterWins},
		{"OneOfManyBlobWritersWins", oneBlobWriterWins},
		{"SecondHandleSeesEveryFinishedWrite", secondHandleSeesWrites},
		{"DeleteIsIdempotent", deleteIsIdempotent},
		{"DeleteLeavesNoDirectoriesInListings", deleteLeavesNoDirectories},
		{"CreatorsAndDeletersShareADirectory", creatorsAndDeleters},
		{"AbsentKeys", absentKeys},
		{"InvalidKeysAreRefused", invalidKeys},
		{"CancelledContextChangesNothing", cancelledContext},
		{"ListIsInByteOrder", listOrder},
		{"ListPrefixAfterAndLimit", listRules},
		{"ListOfManyKeys", listManyKeys},
		{"ListSeesEverythingThatStays", listUnderChange},
		{"ListingsEndEarlyAndBeginAgain", listingsEndEarly},
		{"DirsPrefixAfterAndLimit", dirsRules},
		{"BlobIsVisibleOnlyWhole", blobWhole},
		{"BlobRanges", blobRanges},
		{"FailedSourceLeavesNothing", failedSource},
		{"SameResultsAsAMap", model},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := f(t)
			c.run(t, suite{t, t.Context(), a, b, n})
		})
	}
}

// suite is what one subtest works with. Its methods fail the test.
type suite struct {
	t    testing.TB
	ctx  context.Context
	a, b store.Store
	size size
}

// both calls f with each of the handles.
func (s suite) both(f func(store.Store)) {
	s.t.Helper()
	f(s.a)
	f(s.b)
}

func (s suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s suite) put(h store.Store, keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		s.must(h.PutIfAbsent(s.ctx, key, []byte(key)))
	}
}

// is fails the test unless err is of a class.
func (s suite) is(what string, err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (s suite) wantBody(h store.Store, key, want string) {
	s.t.Helper()
	got, err := h.Get(s.ctx, key)
	s.must(err)
	if string(got) != want {
		s.t.Errorf("%s holds %s, want %s", key, brief(got), brief([]byte(want)))
	}
}

func (s suite) wantKeys(h store.Store, prefix, after string, limit int, want ...string) {
	s.t.Helper()
	entries, err := Collect(h.List(s.ctx, prefix, after, limit))
	s.must(err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Key)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		s.t.Errorf("List(%q, %q, %d) (-want +got):\n%s", prefix, after, limit, diff)
	}
}

func (s suite) wantDirs(h store.Store, prefix, after string, limit int, want ...string) {
	s.t.Helper()
	got, err := Collect(h.Dirs(s.ctx, prefix, after, limit))
	s.must(err)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		s.t.Errorf("Dirs(%q, %q, %d) (-want +got):\n%s", prefix, after, limit, diff)
	}
}

// blob opens a handle that is closed with the test.
func (s suite) blob(h store.Store, key string) store.Blob {
	s.t.Helper()
	b, err := h.OpenBlob(s.ctx, key)
	s.must(err)
	s.t.Cleanup(func() { s.must(b.Close()) })
	return b
}

// absent fails the test when a key is to be seen in any way.
func (s suite) absent(key string) {
	s.t.Helper()
	s.both(func(h store.Store) {
		_, err := h.Get(s.ctx, key)
		s.is("get", err, store.ErrNotExist)
		blob := s.blob(h, key)
		_, err = blob.Size(s.ctx)
		s.is("size", err, store.ErrNotExist)
		_, err = blob.ReadRange(s.ctx, make([]byte, 1), 0)
		s.is("read", err, store.ErrNotExist)
		for e, err := range h.List(s.ctx, "", "", 0) {
			s.must(err)
			if e.Key == key {
				s.t.Errorf("%s is listed", key)
			}
		}
	})
}

func brief(b []byte) string {
	const shown = 40
	if len(b) > shown {
		return fmt.Sprintf("%q and %d more bytes", b[:shown], len(b)-shown)
	}
	return fmt.Sprintf("%q", b)
}
