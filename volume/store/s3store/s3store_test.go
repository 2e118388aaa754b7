package s3store_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// prefixes returns a factory of empty stores in one bucket, each below a prefix of its own.
func prefixes(open func(t testing.TB, prefix string) *s3store.Store) storetest.Factory {
	var n atomic.Int64
	return func(t testing.TB) (a, b store.Store) {
		prefix := fmt.Sprintf("store-%d/", n.Add(1))
		return open(t, prefix), open(t, prefix)
	}
}

// a bucket is the same store as every other medium.
func TestS3storeIsAStore(t *testing.T) {
	t.Parallel()
	srv := s3test.New(t)
	storetest.Run(t, prefixes(func(t testing.TB, prefix string) *s3store.Store { return srv.Open(t, prefix) }))
}

// everything is in the bucket that was configured, below its prefix, and nothing else is looked at.
func TestKeysAreObjectsBelowThePrefix(t *testing.T) {
	w := newWire(t)
	open := func(prefix string) *s3store.Store {
		cfg := w.config()
		cfg.Prefix = prefix
		s, err := s3store.New(t.Context(), cfg, s3store.WithoutProbe(), s3store.WithTransport(w))
		must(t, err)
		return s
	}
	ctx := t.Context()
	all, a, b := open(""), open("a/"), open("a-b/")
	must(t, a.PutIfAbsent(ctx, "d/key", []byte("of a")))
	must(t, b.PutIfAbsent(ctx, "d/key", []byte("of b")))
	must(t, all.PutIfAbsent(ctx, "d/key", []byte("of none")))
	for s, want := range map[*s3store.Store][]string{
		a: {"d/key"}, b: {"d/key"}, all: {"a-b/d/key", "a/d/key", "d/key"},
	} {
		if diff := cmp.Diff(want, keys(t, s)); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
	}
	body, err := all.Get(ctx, "a-b/d/key")
	if must(t, err); string(body) != "of b" {
		t.Errorf("a-b/d/key holds %q", body)
	}
	must(t, a.Delete(ctx, "d/key"))
	if diff := cmp.Diff([]string{"d/key"}, keys(t, b)); diff != "" {
		t.Errorf("keys of another prefix (-want +got):\n%s", diff)
	}
}

func keys(t testing.TB, s *s3store.Store) (keys []string) {
	t.Helper()
	entries, err := storetest.Collect(s.List(t.Context(), "", "", 0))
	must(t, err)
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func TestForeignObjectsAreNotKeys(t *testing.T) {
	w := newWire(t)
	s := w.open(t)
	must(t, s.PutIfAbsent(t.Context(), "d/key", nil))
	for _, name := range []string{"d/", "folder/.x", ".probe/left", "d/.hidden", "d/with space", "d//x"} {
		put := httptest.NewRequest(http.MethodPut, "/"+s3test.Bucket+"/"+url.PathEscape(name), strings.NewReader("x"))
		put.Header.Set("Content-Length", "1")
		rec := httptest.NewRecorder()
		if w.handler.ServeHTTP(rec, put); rec.Code != http.StatusOK {
			t.Fatalf("put %s: %d %s", name, rec.Code, rec.Body)
		}
	}
	if diff := cmp.Diff([]string{"d/key"}, keys(t, s)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	dirs, err := storetest.Collect(s.Dirs(t.Context(), "", "", 0))
	must(t, err)
	// A directory of foreign objects cannot be told from one of keys without a request for each.
	if diff := cmp.Diff([]string{"d", "folder"}, dirs); diff != "" {
		t.Errorf("directories (-want +got):\n%s", diff)
	}
}

// What a call costs when nothing goes wrong.
func TestCallsCostOneRequest(t *testing.T) {
	w := newWire(t)
	s := w.open(t)
	ctx := t.Context()
	b, err := s.OpenBlob(ctx, "d/blob")
	must(t, err)
	for _, c := range []struct {
		want string
		call func() error
	}{
		{"PUT", func() error { return s.PutIfAbsent(ctx, "d/key", []byte("body")) }},
		{"PUT", func() error { return s.PutBlob(ctx, "d/blob", store.BytesSource(make([]byte, 16<<20))) }},
		{"GET", func() error { _, err := s.Get(ctx, "d/key"); return err }},
		{"GET", func() error { _, err := b.ReadRange(ctx, make([]byte, 1<<20), 5); return err }},
		{"", func() error { _, err := b.Size(ctx); return err }},
		{"GET list-type", func() error { _, err := storetest.Collect(s.List(ctx, "d/", "", 1)); return err }},
		{"GET list-type", func() error { _, err := storetest.Collect(s.Dirs(ctx, "", "", 0)); return err }},
		{"", func() error { _, err := storetest.Collect(s.List(ctx, "d/", "e", 0)); return err }},
		{"DELETE", func() error { return s.Delete(ctx, "d/key") }},
	} {
		before := len(w.ops())
		must(t, c.call())
		if got := strings.Join(w.ops()[before:], ", "); got != c.want {
			t.Errorf("requests %q, want %q", got, c.want)
		}
	}
}
