package blockcache

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// The cache against what is stored: reads, evictions, damage, restarts and failures of the store in any order. A read gives
// the layer's bytes or, of what is not kept while the store fails, an error.
func TestModelOfCacheAndContent(t *testing.T) {
	dirs := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(dirs, "")
		if err != nil {
			t.Fatal(err)
		}
		m := &model{dir: dir, stores: []*fakeStore{newStore(5*ChunkSize + 123), newStore(2 * ChunkSize)}}
		m.open(t)
		defer m.close(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.invariant,
			"read":    m.read,
			"damage":  m.damage,
			"restart": func(t *rapid.T) { m.close(t); m.open(t) },
			"budget":  func(t *rapid.T) { m.cache.SetBudget(rapid.Int64Range(0, 8).Draw(t, "budget") * ChunkSize) },
			"store":   func(t *rapid.T) { m.fail(rapid.Bool().Draw(t, "fails")) },
			"refetch": func(t *rapid.T) {
				m.layers[0].Refetch(rapid.Int64Range(0, 5*ChunkSize).Draw(t, "off"), rapid.Int64Range(0, 2*ChunkSize).Draw(t, "n"))
			},
		})
	})
}

type model struct {
	dir    string
	stores []*fakeStore
	down   bool
	cache  *Cache
	layers []*Layer
}

func (m *model) open(t *rapid.T) {
	var err error
	if m.cache, err = Open(m.dir); err != nil {
		t.Fatal(err)
	}
	m.layers = nil
	for i, s := range m.stores {
		l, err := m.cache.Layer(string(rune('a'+i)), int64(len(s.content)), s)
		if err != nil {
			t.Fatal(err)
		}
		m.layers = append(m.layers, l)
	}
}

func (m *model) close(t *rapid.T) {
	for _, l := range m.layers {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.cache.Close(); err != nil {
		t.Fatal(err)
	}
}

func (m *model) fail(down bool) {
	m.down = down
	for _, s := range m.stores {
		s.set(func() {
			s.err = nil
			if down {
				s.err = ErrFinal
			}
		})
	}
}

func (m *model) read(t *rapid.T) {
	i := rapid.IntRange(0, len(m.layers)-1).Draw(t, "layer")
	want := m.stores[i].content
	off := rapid.IntRange(0, len(want)).Draw(t, "off")
	p := make([]byte, rapid.IntRange(0, 2*ChunkSize).Draw(t, "n"))
	n, err := m.layers[i].ReadAt(p, int64(off))
	if !bytes.Equal(p[:n], want[off:off+n]) {
		t.Fatalf("%d bytes at %d are not the layer's", n, off)
	}
	if err != nil && err != io.EOF && !m.down || err == nil && n < len(p) {
		t.Fatalf("%d of %d bytes at %d: %v", n, len(p), off, err)
	}
}

func (m *model) damage(t *rapid.T) {
	files, _ := filepath.Glob(filepath.Join(m.dir, "*.*"))
	if len(files) == 0 {
		return
	}
	f, err := os.OpenFile(rapid.SampledFrom(files).Draw(t, "file"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	at := rapid.Int64Range(0, info.Size()).Draw(t, "at")
	if rapid.Bool().Draw(t, "cut") {
		err = f.Truncate(at)
	} else {
		_, err = f.WriteAt(rapid.SliceOfN(rapid.Byte(), 1, 5000).Draw(t, "bytes"), at)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// invariant: the account is that of the chunks that are kept, and within the budget.
func (m *model) invariant(t *rapid.T) {
	c := m.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int64(0)
	for i, ch := range c.ring {
		if ch.slot != i || ch.e.chunks[ch.index].Load() != ch {
			t.Fatalf("slot %d holds another chunk", i)
		}
		n += ch.length()
	}
	if c.used != n || c.budget > 0 && n > c.budget || c.idle.Len() > 0 {
		t.Fatalf("%d bytes used, %d in chunks, budget %d, %d idle", c.used, n, c.budget, c.idle.Len())
	}
	for _, l := range m.layers {
		kept := int64(0)
		for i := range l.e.chunks {
			if ch := l.e.chunks[i].Load(); ch != nil {
				kept += ch.length()
			}
		}
		if kept != l.e.kept {
			t.Fatalf("%d bytes kept, %d in chunks", l.e.kept, kept)
		}
	}
}
