package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
)

func createNeverReplaces(t *testing.T, s suite) {
	s.put(s.a, "d/record")
	s.must(s.a.PutBlob(s.ctx, "d/blob", store.BytesSource([]byte("d/blob"))))
	for _, key := range []string{"d/record", "d/blob"} {
		s.both(func(h store.Store) {
			s.is("put", h.PutIfAbsent(s.ctx, key, []byte("other")), store.ErrExists)
			s.is("put blob", h.PutBlob(s.ctx, key, store.BytesSource([]byte("other"))), store.ErrExists)
			s.wantBody(h, key, key)
		})
	}
}

func bodiesAreCopies(t *testing.T, s suite) {
	body := []byte("before")
	s.must(s.a.PutIfAbsent(s.ctx, "k", body))
	copy(body, "behind")
	got, err := s.a.Get(s.ctx, "k")
	s.must(err)
	copy(got, "beside")
	s.wantBody(s.a, "k", "before")
}

func recordOfAnySize(t *testing.T, s suite) {
	for _, n := range []int{0, 1, 4095, 4096, 1 << 20} {
		key := fmt.Sprint("r", n)
		body := bytes.Repeat([]byte{'x'}, n)
		s.must(s.a.PutIfAbsent(s.ctx, key, body))
		s.wantBody(s.b, key, string(body))
	}
}

const raceWriters = 64

func oneRecordWriterWins(t *testing.T, s suite) {
	s.race(func(h store.Store, key, body string) error {
		return h.PutIfAbsent(s.ctx, key, []byte(body))
	})
}

func oneBlobWriterWins(t *testing.T, s suite) {
	s.race(func(h store.Store, key, body string) error {
		return h.PutBlob(s.ctx, key, store.BytesSource([]byte(strings.Repeat(body, 1000))))
	})
}

// race lets many writers want the same new key, in a new directory, and looks for the one that got it.
func (s suite) race(put func(h store.Store, key, body string) error) {
	for round := range s.size.rounds {
		key := fmt.Sprintf("race/%d/key", round)
		errs := make([]error, raceWriters)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range errs {
			h := s.a
			if i%2 == 1 {
				h = s.b
			}
			wg.Go(func() {
				<-start
				errs[i] = put(h, key, fmt.Sprintf("writer %02d;", i))
			})
		}
		close(start)
		wg.Wait()
		s.oneWinner(key, errs)
	}
}

func (s suite) oneWinner(key string, errs []error) {
	s.t.Helper()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			s.t.Errorf("%s: writers %d and %d both won", key, winner, i)
		case err == nil:
			winner = i
		default:
			s.is(key, err, store.ErrExists)
		}
	}
	if winner < 0 {
		s.t.Fatalf("%s: nobody won", key)
	}
	s.both(func(h store.Store) {
		got, err := h.Get(s.ctx, key)
		s.must(err)
		if want := fmt.Sprintf("writer %02d;", winner); strings.ReplaceAll(string(got), want, "") != "" {
			s.t.Errorf("%s holds %s, the winner wrote %q", key, brief(got), want)
		}
	})
}

// there is no cache between a write and a reader on another node, of presence nor of absence.
func secondHandleSeesWrites(t *testing.T, s suite) {
	for i := range 20 {
		key := fmt.Sprintf("d%d/sub/k", i%3)
		s.absent(key)
		for _, h := range [][2]store.Store{{s.a, s.b}, {s.b, s.a}} {
			body := fmt.Sprint("body ", i)
			s.must(h[0].PutIfAbsent(s.ctx, key, []byte(body)))
			s.wantBody(h[1], key, body)
			s.wantKeys(h[1], "", "", 0, key)
			s.wantDirs(h[1], "", "", 0, key[:2])
			s.must(h[1].Delete(s.ctx, key))
			s.absent(key)
		}
	}
}

func deleteIsIdempotent(t *testing.T, s suite) {
	s.put(s.a, "d/one", "d/two")
	s.must(s.a.PutBlob(s.ctx, "d/blob", store.BytesSource([]byte("x"))))
	for range 2 {
		s.both(func(h store.Store) {
			s.must(h.Delete(s.ctx, "d/one"))
			s.must(h.Delete(s.ctx, "d/blob"))
			s.must(h.Delete(s.ctx, "never/was/there"))
		})
	}
	s.absent("d/one")
	s.absent("d/blob")
	s.wantKeys(s.b, "", "", 0, "d/two")
	s.put(s.a, "d/one")
	s.wantBody(s.b, "d/one", "d/one")
}

func deleteLeavesNoDirectories(t *testing.T, s suite) {
	s.put(s.a, "pins/v/s1/n1", "pins/v/s2/n2", "pins/w/s1/n3")
	s.must(s.b.Delete(s.ctx, "pins/v/s1/n1"))
	s.wantDirs(s.a, "pins/v/", "", 0, "s2")
	s.must(s.b.Delete(s.ctx, "pins/v/s2/n2"))
	s.wantDirs(s.a, "pins/v/", "", 0)
	s.wantDirs(s.a, "pins/", "", 0, "w")
	s.put(s.a, "pins/v/s1/n4")
	s.wantDirs(s.b, "pins/", "", 0, "v", "w")
	// A key may be where a directory was.
	s.must(s.b.Delete(s.ctx, "pins/w/s1/n3"))
	s.put(s.a, "pins/w")
	s.wantKeys(s.b, "", "", 0, "pins/v/s1/n4", "pins/w")
}

// creatorsAndDeleters makes and empties the same directories from both handles at once. No write may be lost or
// refused.
func creatorsAndDeleters(t *testing.T, s suite) {
	var wg sync.WaitGroup
	for i := range 8 {
		h, other := s.a, s.b
		if i%2 == 1 {
			h, other = other, h
		}
		wg.Go(func() {
			for round := range 15 {
				key := fmt.Sprintf("shared/%d/k%d", round%2, i)
				if err := createAndDelete(s.ctx, h, other, key); err != nil {
					s.t.Errorf("%s: %v", key, err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.wantKeys(s.a, "", "", 0)
}

func createAndDelete(ctx context.Context, h, other store.Store, key string) error {
	if err := h.PutIfAbsent(ctx, key, []byte(key)); err != nil {
		return err
	}
	body, err := other.Get(ctx, key)
	if err != nil {
		return err
	}
	if string(body) != key {
		return fmt.Errorf("holds %s", brief(body))
	}
	return other.Delete(ctx, key)
}

func absentKeys(t *testing.T, s suite) {
	s.put(s.a, "d/e/f")
	for _, key := range []string{"x", "d", "d/e", "d/e/g", "d/e/f/g", "d/x/f"} {
		s.absent(key)
		s.must(s.a.Delete(s.ctx, key))
	}
	s.wantBody(s.b, "d/e/f", "d/e/f")
}

func invalidKeys(t *testing.T, s suite) {
	long := strings.Repeat("s", store.MaxSegment+1)
	for _, key := range []string{"", "/", "/a", "a/", "a//b", "..", "a/../../b", ".tmp/x", "a b", "a\x00", "ä", long,
		strings.Repeat("s/", store.MaxKey/2) + "s"} {
		s.is("put", s.a.PutIfAbsent(s.ctx, key, nil), store.ErrInvalidKey)
		s.is("put blob", s.a.PutBlob(s.ctx, key, store.BytesSource(nil)), store.ErrInvalidKey)
		_, err := s.a.Get(s.ctx, key)
		s.is("get", err, store.ErrInvalidKey)
		s.is("delete", s.a.Delete(s.ctx, key), store.ErrInvalidKey)
		_, err = s.a.OpenBlob(s.ctx, key)
		s.is("open blob", err, store.ErrInvalidKey)
	}
	for _, prefix := range []string{"/", "a", "a//", "../", ".tmp/", long + "/"} {
		_, err := Collect(s.a.List(s.ctx, prefix, "", 0))
		s.is("list", err, store.ErrInvalidKey)
		_, err = Collect(s.a.Dirs(s.ctx, prefix, "", 0))
		s.is("dirs", err, store.ErrInvalidKey)
	}
	s.wantKeys(s.b, "", "", 0)
}

func cancelledContext(t *testing.T, s suite) {
	s.put(s.a, "kept")
	blob := s.blob(s.a, "kept")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	s.is("put", s.a.PutIfAbsent(ctx, "new", nil), context.Canceled)
	s.is("put blob", s.a.PutBlob(ctx, "new", store.BytesSource(nil)), context.Canceled)
	s.is("delete", s.a.Delete(ctx, "kept"), context.Canceled)
	_, err := s.a.Get(ctx, "kept")
	s.is("get", err, context.Canceled)
	_, err = Collect(s.a.List(ctx, "", "", 0))
	s.is("list", err, context.Canceled)
	_, err = Collect(s.a.Dirs(ctx, "", "", 0))
	s.is("dirs", err, context.Canceled)
	_, err = blob.ReadRange(ctx, make([]byte, 1), 0)
	s.is("read", err, context.Canceled)
	_, err = blob.Size(ctx)
	s.is("size", err, context.Canceled)
	s.wantKeys(s.b, "", "", 0, "kept")
}
