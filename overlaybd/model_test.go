package overlaybd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is a device, the repository its layers go to, and the model: the content as a byte slice after each change
// since the last flush. The last state is what the device must read; after a power cut any of them may be what is
// left.
type world struct {
	engine *Engine
	repo   *repo
	dir    string
	stack  Stack
	w      *Writable
	boots  int
	states [][]byte
	final  bool
}

const modelSectors = 96

func newWorld(t *rapid.T, dir string) *world {
	r := newRepo()
	sealAt := rapid.SampledFrom([]int{6, 20, DefaultSealAt}).Draw(t, "sealAt")
	m := &world{engine: newEngine(t, r, WithSealAt(sealAt)), repo: r, dir: dir}
	m.engine.boot = "boot-0"
	m.stack.VirtualSize = modelSectors / 2 * SectorSize
	m.states = [][]byte{make([]byte, m.stack.VirtualSize)}
	m.open(t)
	return m
}

func (m *world) open(t *rapid.T) {
	m.w = openDevice(t, m.engine, m.dir, m.stack)
	m.final = false
}

func (m *world) now() []byte { return m.states[len(m.states)-1] }

// flushed forgets the states from which no power cut leads back any more.
func (m *world) flushed() { m.states = m.states[len(m.states)-1:] }

func (m *world) change(off, n int64, fill func(p []byte)) {
	next := slices.Clone(m.now())
	fill(next[off : off+n])
	m.states = append(m.states, next)
}

// drawRange picks a run of sectors, at times beyond the end.
func (m *world) drawRange(t *rapid.T) (off, n int64) {
	sectors := int(m.w.Size() / SectorSize)
	from := rapid.IntRange(0, sectors-1).Draw(t, "from")
	count := rapid.IntRange(1, min(12, sectors-from)).Draw(t, "count")
	return int64(from) * SectorSize, int64(count) * SectorSize
}

func (m *world) write(t *rapid.T) {
	off, n := m.drawRange(t)
	p := make([]byte, n)
	seed := rapid.Byte().Draw(t, "fill")
	for i := range p {
		p[i] = seed + byte(i/SectorSize)*7
	}
	_, err := m.w.WriteAt(p, off)
	if m.refused(t, err) {
		return
	}
	m.change(off, n, func(q []byte) { copy(q, p) })
}

func (m *world) discard(t *rapid.T) {
	off, n := m.drawRange(t)
	if m.refused(t, m.w.Discard(off, n)) {
		return
	}
	m.change(off, n, func(q []byte) { clear(q) })
}

// refused checks the result of a write against whether the device was sealed for good.
func (m *world) refused(t *rapid.T, err error) bool {
	if m.final != errors.Is(err, ErrFinal) || !m.final && err != nil {
		t.Fatalf("final: %v, write: %v", m.final, err)
	}
	return m.final
}

func (m *world) flush(t *rapid.T) {
	mustFlush(t, m.w)
	m.flushed()
}

func (m *world) reclaim(t *rapid.T) {
	if _, err := m.w.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.flushed()
}

func (m *world) grow(t *rapid.T) {
	size := m.w.Size() + int64(rapid.IntRange(0, 8).Draw(t, "more"))*SectorSize
	if size > modelSectors*SectorSize || m.final {
		return
	}
	if err := m.w.Grow(size); err != nil {
		t.Fatal(err)
	}
	// Sizes are durable at once and only grow: every state there may be after a power cut has the new one.
	for i, s := range m.states {
		m.states[i] = append(slices.Clone(s), make([]byte, size-int64(len(s)))...)
	}
}

// seal seals, publishes some of the layers, and checks that the published stack has what the device had.
func (m *world) seal(t *rapid.T) {
	final := rapid.Bool().Draw(t, "final")
	layers := seal(t, m.w, SealOptions{Final: final})
	m.flushed()
	m.final = m.final || final
	n := rapid.IntRange(0, len(layers)).Draw(t, "publish")
	for _, l := range layers[:n] {
		published := m.repo.publish(t, l)
		m.stack.Layers = append(slices.Clip(m.stack.Layers), published)
		m.w.Published(l.UUID, published)
	}
	m.stack.VirtualSize = m.w.Size()
	if n == len(layers) {
		m.checkPublished(t)
	}
}

func (m *world) checkPublished(t *rapid.T) {
	r, err := m.engine.OpenReadOnly(t.Context(), m.stack)
	if err != nil {
		t.Fatal(err)
	}
	wantContent(t, r, m.now())
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func (m *world) thaw(t *rapid.T) {
	if err := m.w.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.final = false
}

// compact merges a run of the published stack and moves the device to it.
func (m *world) compact(t *rapid.T) {
	if len(m.stack.Layers) < 2 {
		return
	}
	from := rapid.IntRange(0, len(m.stack.Layers)-2).Draw(t, "from")
	to := rapid.IntRange(from+2, len(m.stack.Layers)).Draw(t, "to")
	m.stack = m.repo.merge(t, m.stack, from, to)
	m.reopen(t)
}

// replace merges a run of the published stack below the running device.
func (m *world) replace(t *rapid.T) {
	if len(m.stack.Layers) < 2 {
		return
	}
	from := rapid.IntRange(0, len(m.stack.Layers)-2).Draw(t, "from")
	to := rapid.IntRange(from+2, len(m.stack.Layers)).Draw(t, "to")
	run := m.stack.Layers[from:to]
	merged, by := m.repo.mergeParts(t, m.engine, run)
	if err := m.w.ReplaceLayers(t.Context(), run, by, merged.Content); err != nil {
		t.Fatal(err)
	}
	// The record may or may not follow.
	if rapid.Bool().Draw(t, "recorded") {
		m.stack.Layers = m.w.Stack().Layers
	} else {
		m.reopen(t)
	}
}

func (m *world) reopen(t *rapid.T) {
	if err := m.w.Close(); err != nil {
		t.Fatal(err)
	}
	m.flushed()
	m.open(t)
}

// kill loses nothing: what was acknowledged is there.
func (m *world) kill(t *rapid.T) {
	kill(t, m.w)
	m.open(t)
	m.flushed() // the open made durable what it found
}

// powerCut keeps what was synced, and of the rest what a disk may or may not have got.
func (m *world) powerCut(t *rapid.T) {
	logs := m.w.view.Load().Logs
	if len(logs) > 0 {
		m.cutLog(t)
	} else {
		kill(t, m.w)
	}
	m.boots++
	m.engine.boot = fmt.Sprintf("boot-%d", m.boots)
	m.open(t)
	got := content(t, m.w)
	if !slices.ContainsFunc(m.states, func(s []byte) bool { return bytes.Equal(s, got) }) {
		t.Fatalf("content after a power cut is none of the %d states since the last flush", len(m.states))
	}
	m.states = [][]byte{got}
}

// cutLog kills the device and cuts its upper's files: the index anywhere behind what was synced of it, and the data too
// unless records of it had begun to be written, which needs the data to be durable.
func (m *world) cutLog(t *rapid.T) {
	l := m.w.upper
	if l == nil {
		l = m.w.view.Load().Logs[0]
	}
	data, index := l.Path(), m.w.dir.logPaths(l.UUID()).Index
	indexSize, dataSize := fileSize(t, index), int64(0)
	recordsBegan := rapid.Bool().Draw(t, "in the middle of a flush")
	if recordsBegan {
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		dataSize = fileSize(t, data)
	} else {
		dataSize = m.durableData(t, index)
	}
	kill(t, m.w)
	// Some file systems leave zeroes where the length was written and the bytes were not. A disk writes sectors whole, so
	// that never begins inside a record.
	zeroes, unit := rapid.Bool().Draw(t, "zero tail"), int64(1)
	if zeroes {
		unit = 16
	}
	truncateBetween(t, index, indexSize, fileSize(t, index), unit, "index")
	truncateBetween(t, data, dataSize, fileSize(t, data), 1, "data")
	if zeroes {
		f, err := os.OpenFile(index, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(make([]byte, rapid.IntRange(1, 100).Draw(t, "zeroes")))
		f.Close()
	}
}

// durableData is the end of the data that records of the index file point to.
func (m *world) durableData(t *rapid.T, index string) int64 {
	b, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	return recordedEnd(b)
}

func fileSize(t *rapid.T, path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func truncateBetween(t *rapid.T, path string, from, to, unit int64, what string) {
	at := from
	if to > from {
		at = rapid.Int64Range(from/unit, to/unit).Draw(t, what) * unit
	}
	if err := os.Truncate(path, at); err != nil {
		t.Fatal(err)
	}
}

func (m *world) check(t *rapid.T) {
	wantContent(t, m.w, m.now())
	off, n := m.drawRange(t)
	p := make([]byte, n)
	if _, err := m.w.ReadAt(p, off); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	if !bytes.Equal(p, m.now()[off:off+n]) {
		t.Fatalf("read of %d bytes at %d differs", n, off)
	}
}

// whatever happens to the process or the machine, each acknowledged flush is there afterwards, each
// acknowledged write after a kill, and layers that were published serve as they are below a reopened upper.
func TestDeviceAgainstByteSlice(t *testing.T) {
	parent := memoryDir(t)
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(parent, "")
		if err != nil {
			rt.Fatal(err)
		}
		m := newWorld(rt, dir)
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "write again": m.write, "write more": m.write, "discard": m.discard, "flush": m.flush,
			"reclaim": m.reclaim, "seal": m.seal, "thaw": m.thaw, "grow": m.grow, "compact": m.compact,
			"replace": m.replace, "reopen": m.reopen,
			"kill": m.kill, "power cut": m.powerCut, "": m.check,
		})
		if err := m.w.Close(); err != nil {
			rt.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			rt.Fatal(err)
		}
	})
}
