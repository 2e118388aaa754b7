package blockcache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("store is down")

// fakeStore is one stored layer, with a record of what was asked for.
type fakeStore struct {
	content []byte

	mu     sync.Mutex
	calls  [][2]int64                      // offset and length of each request
	err    error                           // of every request, if not nil
	hang   bool                            // requests wait for their context
	gate   chan struct{}                   // requests wait until it is closed, if not nil
	mangle func(p []byte, off, call int64) // changes what is sent
}

func newStore(size int) *fakeStore {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size), byte(size >> 8), byte(size >> 16)}).Read(b) // never fails
	return &fakeStore{content: b}
}

func (s *fakeStore) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	s.mu.Lock()
	s.calls = append(s.calls, [2]int64{off, int64(len(p))})
	call, err, hang, gate, mangle := int64(len(s.calls)), s.err, s.hang, s.gate, s.mangle
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err != nil {
		return 0, err
	}
	n := copy(p, s.content[off:])
	if mangle != nil {
		mangle(p[:n], off, call)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s *fakeStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeStore) requests() [][2]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][2]int64(nil), s.calls...)
}

func openCache(t testing.TB, dir string, opts ...Option) *Cache {
	t.Helper()
	c, err := Open(dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ok(t, c.Close()) })
	return c
}

func openLayer(t testing.TB, c *Cache, id string, s *fakeStore) *Layer {
	t.Helper()
	l, err := c.Layer(id, int64(len(s.content)), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ok(t, l.Close()) })
	return l
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error is %v, want %v", err, class)
	}
}

// check reads [off, off+n) and compares it with what is stored.
func check(t testing.TB, l *Layer, s *fakeStore, off, n int) {
	t.Helper()
	p := make([]byte, n)
	m, err := l.ReadAt(p, int64(off))
	want := s.content[min(off, len(s.content)):min(off+n, len(s.content))]
	if err != nil && (err != io.EOF || len(want) == n) || m != len(want) {
		t.Fatalf("read %d at %d: %d, %v", n, off, m, err)
	}
	if !bytes.Equal(p[:m], want) {
		t.Fatalf("read %d at %d: other bytes", n, off)
	}
}

func wantRequests(t testing.TB, s *fakeStore, want int) {
	t.Helper()
	if got := s.requests(); len(got) != want {
		t.Fatalf("%d requests, want %d: %v", len(got), want, got)
	}
}

// flip changes a byte of a file.
func flip(t testing.TB, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, off)
	ok(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, off)
	ok(t, err)
}
