package lsmt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

const historySectors = 8

// history is a log with what the disk held after each change, and how far it was flushed.
type history struct {
	states  [][]byte
	flushed int // states[flushed:] may be what a power cut leaves
	// What the files must keep for that: the lengths at the last flush.
	dataSize, indexSize int64
	data, index         []byte // the files in the end
}

// record makes a log of one change per byte of plan: w write, t trim, f flush. Its last records reach the index file,
// as in the middle of a flush.
func record(t *testing.T, plan string) history {
	t.Helper()
	l := newTestLog(t, LogOptions{VirtualSize: historySectors * SectorSize})
	h := history{states: [][]byte{make([]byte, historySectors*SectorSize)}, dataSize: HeaderSize, indexSize: HeaderSize}
	for i, op := range plan {
		lba := uint64(i*7) % 5 // overlaps often
		next := slices.Clone(h.states[len(h.states)-1])
		sectors := next[lba*SectorSize : (lba+1)*SectorSize]
		var err error
		switch op {
		case 'w':
			copy(sectors, bytes.Repeat([]byte{byte(i + 1)}, len(sectors)))
			err = l.Append(sectors, lba)
		case 't':
			clear(sectors)
			err = l.Discard(lba, 1)
		case 'f':
			err = l.Sync()
			h.flushed = len(h.states) - 1
			h.dataSize, h.indexSize = l.end.Load(), l.indexEnd()
		}
		if err != nil {
			t.Fatal(err)
		}
		if op != 'f' {
			h.states = append(h.states, next)
		}
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	h.data, h.index = readFile(t, l.paths.Data), readFile(t, l.paths.Index)
	return h
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reopen opens a log of the given files after a power cut and returns the content, or the error.
func (h history) reopen(t *testing.T, dir string, data, index []byte) ([]byte, Recovery, error) {
	t.Helper()
	p := logPaths(dir)
	for path, b := range map[string][]byte{p.Data: data, p.Index: index} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, r, err := OpenLog(p, LogOptions{BootID: "another boot"})
	if err != nil {
		return nil, r, err
	}
	defer l.Close()
	v := View{Logs: []*Log{l}, Base: NewIndex(nil), Files: files(l.Data())}
	got := make([]byte, historySectors*SectorSize)
	if err := v.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	return got, r, nil
}

// stateOf returns which state of the history got is, the newest if several are equal, or -1.
func (h history) stateOf(got []byte) int {
	for i := len(h.states) - 1; i >= 0; i-- {
		if bytes.Equal(h.states[i], got) {
			return i
		}
	}
	return -1
}

// check wants a state of the history, one at or after the last flush if the files still have what that flush synced. If
// they do not, a power cut cannot have done it, and an error is right too.
func (h history) check(t *testing.T, dir string, data, index []byte, kept bool) {
	t.Helper()
	got, _, err := h.reopen(t, dir, data, index)
	if err != nil {
		if kept || !errors.Is(err, ErrCorrupt) {
			t.Fatalf("data cut to %d, index to %d: %v", len(data), len(index), err)
		}
		return
	}
	if i := h.stateOf(got); i < 0 || kept && i < h.flushed {
		t.Fatalf("data cut to %d, index to %d: content is state %d, flushed was %d of %d",
			len(data), len(index), i, h.flushed, len(h.states))
	}
}

// cut anywhere, a log opens with a prefix of its history that has everything flushed, or says that it is
// corrupt.
func TestLogCutAtEveryByte(t *testing.T) {
	dir := memoryDir(t)
	for _, plan := range []string{"wwtw", "wtfwtfwtw", "wwfftwf"} {
		h := record(t, plan)
		for n := HeaderSize; n <= len(h.index); n++ {
			h.check(t, dir, h.data, h.index[:n], int64(n) >= h.indexSize)
		}
		for n := HeaderSize; n <= len(h.data); n++ {
			// In the middle of the last flush the data is durable before a record of it is written.
			index := h.index
			if int64(n) < int64(len(h.data)) {
				index = h.index[:h.indexSize]
			}
			h.check(t, dir, h.data[:n], index, int64(n) >= h.dataSize)
		}
	}
}

// A length that was written before its bytes leaves zeroes.
func TestLogZeroedTail(t *testing.T) {
	dir := memoryDir(t)
	h := record(t, "wtwfwtwfwwtw")
	for n := h.indexSize; n <= int64(len(h.index)); n += entrySize {
		index := slices.Clone(h.index)
		clear(index[n:])
		h.check(t, dir, h.data, index, true)
	}
}

// Dropping a record that a flush had covered would take the disk back in time.
func TestLogDamageUnderAFlushIsCorrupt(t *testing.T) {
	dir := memoryDir(t)
	h := record(t, "wwfww")
	for _, n := range []int{0, 1} {
		index := slices.Clone(h.index)
		clear(index[HeaderSize+n*entrySize:][:entrySize])
		_, _, err := h.reopen(t, dir, h.data, index)
		var c *CorruptError
		if !errors.As(err, &c) || c.Part != "index" || c.Offset != int64(HeaderSize+n*entrySize) {
			t.Errorf("record %d zeroed: %v", n, err)
		}
	}
	// The same behind the last flush mark is what an interrupted flush leaves.
	index := slices.Clone(h.index)
	clear(index[HeaderSize+3*entrySize:][:entrySize])
	got, r, err := h.reopen(t, dir, h.data, index)
	if err != nil || h.stateOf(got) != 2 || r.Dropped != 2 {
		t.Errorf("state %d, %+v, %v; want state 2 and 2 dropped records", h.stateOf(got), r, err)
	}
}

// A log that was repaired must not be taken for damaged the next time, whatever is appended.
func TestLogRecoversAgainAndAgain(t *testing.T) {
	p := logPaths(memoryDir(t))
	l, err := CreateLog(p, LogOptions{BootID: "0", VirtualSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 64*SectorSize)
	for i := range 40 {
		s := want[i%60*SectorSize:][:SectorSize]
		copy(s, bytes.Repeat([]byte{byte(i + 1)}, SectorSize))
		if err := l.Append(s, uint64(i%60)); err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		// A write that is lost, with half a record of it.
		if err := l.Append(make([]byte, SectorSize), uint64(i%60)); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		appendBytes(t, p.Index, make([]byte, 3+i%40))
		appendBytes(t, p.Data, make([]byte, i%700))
		if l, _, err = OpenLog(p, LogOptions{BootID: fmt.Sprint(i + 1)}); err != nil {
			t.Fatalf("power cut %d: %v", i, err)
		}
	}
	got := make([]byte, len(want))
	v := View{Logs: []*Log{l}, Base: NewIndex(nil), Files: files(l.Data())}
	if err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("content differs, %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func appendBytes(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

// unsynced makes a log with three writes, the first of them synced, and closes it as a kill would.
func unsynced(t *testing.T, p LogPaths) {
	t.Helper()
	l, err := CreateLog(p, LogOptions{BootID: "this boot", VirtualSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := l.Append(bytes.Repeat([]byte{byte(i + 1)}, SectorSize), uint64(i)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLogKeepsUnflushedWritesUnderTheSameBootOnly(t *testing.T) {
	for boot, want := range map[string]int{"this boot": 3, "another boot": 1} {
		p := logPaths(memoryDir(t))
		unsynced(t, p)
		for range 2 { // the second time everything is in the index file
			l, r, err := OpenLog(p, LogOptions{BootID: boot})
			if err != nil {
				t.Fatal(err)
			}
			if l.Segments() != want {
				t.Errorf("%s: %d writes, want %d (%+v)", boot, l.Segments(), want, r)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Under one boot the index file cannot lose a record, so a gap before the queue is damage and not an older state.
func TestLogGapBeforeTheQueueIsCorrupt(t *testing.T) {
	p := logPaths(memoryDir(t))
	unsynced(t, p)
	if l, _, err := OpenLog(p, LogOptions{BootID: "this boot"}); err != nil {
		t.Fatal(err)
	} else if err := errors.Join(l.Append(make([]byte, SectorSize), 9), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p.Index, HeaderSize); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenLog(p, LogOptions{BootID: "this boot"}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("error is %v, want ErrCorrupt", err)
	}
}

func TestLogRefusesForeignHeaders(t *testing.T) {
	h := record(t, "w")
	flags := func(b []byte, v byte) []byte {
		b = slices.Clone(b)
		b[offFlags] = v
		return b
	}
	for name, c := range map[string]struct {
		data, index []byte
		class       error
	}{
		"no magic":          {make([]byte, HeaderSize), h.index, ErrCorrupt},
		"short data":        {h.data[:100], h.index, ErrCorrupt},
		"short index":       {h.data, h.index[:HeaderSize-1], ErrCorrupt},
		"sealed index":      {h.data, flags(h.index, flagsIndex|flagSealed), ErrCorrupt},
		"data as index":     {h.data, h.data, ErrCorrupt},
		"sparse":            {flags(h.data, flagsData|flagSparse), h.index, ErrInvalid},
		"uuids that differ": {h.data, otherUUID(h.index), ErrCorrupt},
	} {
		if _, _, err := h.reopen(t, t.TempDir(), c.data, c.index); !errors.Is(err, c.class) {
			t.Errorf("%s: error is %v, want %v", name, err, c.class)
		}
	}
}

func otherUUID(b []byte) []byte {
	b = slices.Clone(b)
	copy(b[offUUID:], formatUUID(goldenUUID(77)))
	return b
}
