package crashfs

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const modelSize = 5 * pageSize

// The model of a file: its bytes as programs see them, and as they were at the last sync.
type fileModel struct {
	c           *content
	now, synced []byte
}

func (m *fileModel) write(t *rapid.T) {
	off := rapid.IntRange(0, modelSize-1).Draw(t, "off")
	p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, rapid.IntRange(0, modelSize-off).Draw(t, "n"))
	m.c.writeAt(p, int64(off))
	m.resize(max(len(m.now), off+len(p)))
	copy(m.now[off:], p)
}

func (m *fileModel) truncate(t *rapid.T) {
	n := rapid.IntRange(0, modelSize).Draw(t, "size")
	m.c.truncate(int64(n))
	m.resize(n)
}

func (m *fileModel) resize(n int) {
	old := m.now
	m.now = make([]byte, n)
	copy(m.now, old)
}

func (m *fileModel) zero(t *rapid.T) {
	off := rapid.IntRange(0, len(m.now)).Draw(t, "off")
	n := rapid.IntRange(0, len(m.now)-off).Draw(t, "n")
	m.c.zero(int64(off), int64(n))
	clear(m.now[off : off+n])
}

func (m *fileModel) sync(*rapid.T) {
	m.c.sync()
	m.synced = bytes.Clone(m.now)
}

func (m *fileModel) cut(*rapid.T) {
	m.c = m.c.afterCut(nil)
	m.now = bytes.Clone(m.synced)
}

func (m *fileModel) check(t *rapid.T) {
	if got := m.c.all(); !bytes.Equal(got, m.now) {
		t.Fatalf("%d bytes differ from the %d of the model", len(got), len(m.now))
	}
}

// A torn file is made of old and new bytes; behind the end of either, a byte may be zero.
func (m *fileModel) tear(t *rapid.T) {
	seed := rapid.Uint64Min(1).Draw(t, "seed")
	f := m.c.afterCut(rand.New(rand.NewPCG(seed, 0)))
	got := f.all()
	if low, high := min(len(m.now), len(m.synced)), max(len(m.now), len(m.synced)); len(got) < low || len(got) > high {
		t.Fatalf("size %d after a cut, want %d to %d", len(got), low, high)
	}
	for i, b := range got {
		if b != at(m.now, i) && b != at(m.synced, i) {
			t.Fatalf("byte %d is %d after a cut, want %d or %d", i, b, at(m.now, i), at(m.synced, i))
		}
	}
}

func (c *content) all() []byte {
	p := make([]byte, c.size)
	_, _ = c.readAt(p, 0)
	return p
}

func at(p []byte, i int) byte {
	if i < len(p) {
		return p[i]
	}
	return 0
}

func TestFileAgainstByteSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &fileModel{c: newContent()}
		t.Repeat(map[string]func(*rapid.T){
			"write": m.write, "truncate": m.truncate, "zero": m.zero, "sync": m.sync, "cut": m.cut,
			"tear": m.tear, "": m.check,
		})
	})
}

// The model of the names: every state of the directory since its last sync.
type namesModel struct {
	d       *disk
	history []map[string]uint64
}

func (m *namesModel) state() map[string]uint64 {
	s := map[string]uint64{}
	for name, n := range m.d.root.entries {
		s[name] = n.id
	}
	return s
}

func (m *namesModel) change(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"})
	x, y := name.Draw(t, "x"), name.Draw(t, "y")
	root := m.d.root
	// Refusals leave the state as it is.
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		_, _ = m.d.create(root, x, unix.S_IFREG|0o644, 0, 0)
	case 1:
		_ = m.d.remove(root, x, false)
	case 2:
		_ = m.d.rename(root, x, root, y, false)
	case 3:
		if n := root.entries[x]; n != nil {
			_ = m.d.link(n, root, y)
		}
	}
	m.history = append(m.history, m.state())
}

func (m *namesModel) sync(t *rapid.T) {
	if err := m.d.sync(m.d.root); err != nil {
		t.Fatal(err)
	}
	m.history = []map[string]uint64{m.state()}
}

func (m *namesModel) cut(t *rapid.T) {
	strict := rapid.Bool().Draw(t, "strict")
	seed := rapid.Int64Min(1).Draw(t, "seed")
	if strict {
		seed = 0
	}
	m.d = m.d.afterCut(seed)
	got := m.state()
	if diff := cmp.Diff(m.history[0], got); strict && diff != "" {
		t.Fatalf("seed 0 (-synced +found):\n%s", diff)
	}
	for _, name := range []string{"a", "b", "c"} {
		was := map[uint64]bool{}
		for _, s := range m.history {
			was[s[name]] = true
		}
		if !was[got[name]] {
			t.Fatalf("%s is node %d after a cut, was one of %v", name, got[name], was)
		}
	}
	m.checkLinks(t)
	m.history = []map[string]uint64{got}
}

func (m *namesModel) checkLinks(t *rapid.T) {
	links := map[uint64]int{}
	for _, n := range m.d.root.entries {
		links[n.id]++
	}
	for _, n := range m.d.root.entries {
		if n.links != links[n.id] {
			t.Fatalf("node %d counts %d links, has %d names", n.id, n.links, links[n.id])
		}
	}
}

func TestNamesAgainstTheirHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &namesModel{d: newDisk(), history: []map[string]uint64{{}}}
		t.Repeat(map[string]func(*rapid.T){
			"change": m.change, "more": m.change, "sync": m.sync, "cut": m.cut, "": m.checkLinks,
		})
	})
}

func TestEqualSeedsGiveEqualDisks(t *testing.T) {
	for seed := range int64(50) {
		if !maps.EqualFunc(scene(seed), scene(seed), bytes.Equal) {
			t.Errorf("seed %d gave two different disks", seed)
		}
	}
}

// scene makes some files, cuts the power and returns what is left.
func scene(seed int64) map[string][]byte {
	d := newDisk()
	for i := range 8 {
		n, _ := d.create(d.root, fmt.Sprint("f", i), unix.S_IFREG, 0, 0)
		_ = d.write(n, bytes.Repeat([]byte{1}, 3*pageSize), 0)
		if i%2 == 0 {
			_ = d.sync(n)
		}
		_ = d.write(n, bytes.Repeat([]byte{2}, 3*pageSize), 100)
		if i == 4 {
			_ = d.sync(d.root)
		}
	}
	left := map[string][]byte{}
	for name, n := range d.afterCut(seed).root.entries {
		left[name] = n.data.all()
	}
	return left
}
