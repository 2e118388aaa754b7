package storetest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/volume/store"
)

// model runs random operations on both handles and on a map, and wants the same results (I12, A-116). Each run has a
// prefix of its own.
func model(t *testing.T, s suite) {
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; runs > s.size.models {
			return
		}
		m := &mapModel{s: s, prefix: fmt.Sprintf("run%d/", runs), keys: map[string]string{}}
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "put blob": m.putBlob, "get": m.get, "read": m.read,
			"delete": m.delete, "list": m.list, "dirs": m.dirs,
		})
	})
}

type mapModel struct {
	s      suite
	prefix string
	keys   map[string]string
}

// Names of directories and of files, which never stand for both, but sort among each other.
var (
	modelDirs  = rapid.SampledFrom([]string{"a/", "a-b/", "a/c/", "a/c/d/", "e/", ""})
	modelFiles = rapid.SampledFrom([]string{"a-f", "a.f", "a0", "b", "f"})
)

func (m *mapModel) handle(t *rapid.T) store.Store {
	if rapid.Bool().Draw(t, "second handle") {
		return m.s.b
	}
	return m.s.a
}

func (m *mapModel) key(t *rapid.T) string {
	return m.prefix + modelDirs.Draw(t, "dir") + modelFiles.Draw(t, "file")
}

func (m *mapModel) put(t *rapid.T) {
	key, body := m.key(t), rapid.StringN(0, 20, -1).Draw(t, "body")
	m.created(t, key, body, m.handle(t).PutIfAbsent(m.s.ctx, key, []byte(body)))
}

func (m *mapModel) putBlob(t *rapid.T) {
	key, body := m.key(t), rapid.StringN(0, 20, -1).Draw(t, "body")
	m.created(t, key, body, m.handle(t).PutBlob(m.s.ctx, key, store.BytesSource([]byte(body))))
}

func (m *mapModel) created(t *rapid.T, key, body string, err error) {
	var want error
	if _, taken := m.keys[key]; taken {
		want = store.ErrExists
	} else {
		m.keys[key] = body
	}
	if !errors.Is(err, want) {
		t.Fatalf("put %s: %v, want %v", key, err, want)
	}
}

func (m *mapModel) get(t *rapid.T) {
	key := m.key(t)
	got, err := m.handle(t).Get(m.s.ctx, key)
	m.same(t, "get "+key, key, string(got), err)
}

func (m *mapModel) same(t *rapid.T, what, key, got string, err error) {
	want, there := m.keys[key]
	if there && (err != nil || got != want) || !there && !errors.Is(err, store.ErrNotExist) {
		t.Fatalf("%s: %q, %v, want %q, there: %t", what, got, err, want, there)
	}
}

func (m *mapModel) read(t *rapid.T) {
	key := m.key(t)
	b, err := m.handle(t).OpenBlob(m.s.ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	off, p := rapid.IntRange(0, 25).Draw(t, "off"), make([]byte, rapid.IntRange(0, 25).Draw(t, "n"))
	n, err := b.ReadRange(m.s.ctx, p, int64(off))
	want, there := m.keys[key]
	want = want[min(off, len(want)):]
	want = want[:min(len(p), len(want))]
	var wantErr error
	switch {
	case !there:
		wantErr = store.ErrNotExist
	case len(want) < len(p):
		wantErr = io.EOF
	}
	if string(p[:n]) != want || !errors.Is(err, wantErr) {
		t.Fatalf("read %d bytes at %d of %s: %q, %v, want %q, %v", len(p), off, key, p[:n], err, want, wantErr)
	}
}

func (m *mapModel) delete(t *rapid.T) {
	key := m.key(t)
	if err := m.handle(t).Delete(m.s.ctx, key); err != nil {
		t.Fatal(err)
	}
	delete(m.keys, key)
}

func (m *mapModel) list(t *rapid.T) {
	prefix := m.prefix + modelDirs.Draw(t, "prefix")
	after := rapid.SampledFrom([]string{"", "a", prefix, prefix + "a", prefix + "a-b/", m.key(t)}).Draw(t, "after")
	limit := rapid.IntRange(0, 4).Draw(t, "limit")
	var want, got []store.Entry
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		if strings.HasPrefix(key, prefix) && key > after && (limit == 0 || len(want) < limit) {
			want = append(want, store.Entry{Key: key, Size: int64(len(m.keys[key]))})
		}
	}
	for e, err := range m.handle(t).List(m.s.ctx, prefix, after, limit) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, store.Entry{Key: e.Key, Size: e.Size})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("List(%q, %q, %d) (-want +got):\n%s", prefix, after, limit, diff)
	}
}

func (m *mapModel) dirs(t *rapid.T) {
	prefix := m.prefix + modelDirs.Draw(t, "prefix")
	after := rapid.SampledFrom([]string{"", "a-b", "a", "a-", "c", "z"}).Draw(t, "after")
	limit := rapid.IntRange(0, 3).Draw(t, "limit")
	var want []string
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		rest, below := strings.CutPrefix(key, prefix)
		name, _, isDir := strings.Cut(rest, "/")
		if below && isDir && (after == "" || name+"/" > after+"/") && !slices.Contains(want, name) &&
			(limit == 0 || len(want) < limit) {
			want = append(want, name)
		}
	}
	got, err := Collect(m.handle(t).Dirs(m.s.ctx, prefix, after, limit))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("Dirs(%q, %q, %d) (-want +got):\n%s", prefix, after, limit, diff)
	}
}
