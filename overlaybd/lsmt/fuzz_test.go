package lsmt

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

func FuzzHeader(f *testing.F) {
	f.Add(Header{Flags: flagsTrailer, IndexOffset: 4096, IndexSize: 3, UserTag: "tag"}.encode()[:headerBytes])
	f.Add(golden(f, "lsmt/rw1.index")[:headerBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(b, make([]byte, HeaderSize)...)[:HeaderSize]
		h, err := decodeHeader("header", b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		again, err := decodeHeader("header", h.encode())
		if err != nil || again != h {
			t.Fatalf("%+v becomes %+v, %v", h, again, err)
		}
	})
}

// FuzzLayer puts a file together of a header, sectors of data, an index and the fields of a trailer. Whatever is
// accepted can be read and compacted.
func FuzzLayer(f *testing.F) {
	for _, name := range []string{"commit1", "sealed1", "L1", "merged012", "empty"} {
		b := golden(f, "lsmt/"+name+".lsmt")
		t, err := decodeHeader("trailer", b[len(b)-HeaderSize:])
		if err != nil {
			f.Fatal(err)
		}
		index := b[t.IndexOffset : t.IndexOffset+min(t.IndexSize, 16)*entrySize]
		f.Add(b[len(b)-HeaderSize:][:offTag], index, uint8(t.IndexOffset/SectorSize))
	}
	head := Header{Flags: flagsLayer}.encode()
	f.Fuzz(func(t *testing.T, trailer, index []byte, end uint8) {
		b := append(bytes.Clone(head), make([]byte, int(end)*SectorSize)...)[:max(HeaderSize, int(end)*SectorSize)]
		b = append(b, index...)
		b = append(b, append(bytes.Clone(trailer), make([]byte, HeaderSize)...)[:HeaderSize]...)
		l, err := OpenLayer(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		v := View{Base: NewIndex(l.Segments), Files: []io.ReaderAt{bytes.NewReader(b)}}
		p := make([]byte, 64*SectorSize)
		for _, s := range l.Segments {
			if err := v.ReadAt(p, int64(s.LBA())*SectorSize); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
		}
		if err := Compact(t.Context(), io.Discard, l.Segments, v.Files, CompactOptions{}); err != nil {
			t.Fatalf("an accepted layer cannot be compacted: %v", err)
		}
	})
}

// rewrittenEntries are entries of a rewritten index file, as they are and with records behind them.
func rewrittenEntries(f *testing.F) [][]byte {
	l := newTestLog(f, LogOptions{VirtualSize: goldenSize})
	runScript(f, l, "s1")
	reclaim(f, l)
	alone := readAll(f, l.paths.Index)[HeaderSize:]
	must(f, l.Append(make([]byte, 4096), 100))
	must(f, l.Sync())
	return [][]byte{alone, readAll(f, l.paths.Index)[HeaderSize:]}
}

// FuzzLogRecovery gives an index file and a data length to OpenLog. What it accepts it must accept again, unchanged, also
// after its index was rewritten.
func FuzzLogRecovery(f *testing.F) {
	f.Add(golden(f, "lsmt/rw1.index")[HeaderSize:], uint32(79872-HeaderSize), []byte{})
	f.Add(golden(f, "torn/partial.index")[HeaderSize:], uint32(79872-HeaderSize), []byte("pending"))
	f.Add(golden(f, "torn/datalost.index")[HeaderSize:], uint32(79360-HeaderSize), []byte(pendingMagic))
	f.Add(golden(f, "torn/unaligned.index")[HeaderSize:], uint32(79972-HeaderSize), []byte{})
	for _, entries := range rewrittenEntries(f) {
		f.Add(entries, uint32(99999), []byte{})
		f.Add(entries[:len(entries)-entrySize], uint32(99999), []byte{})
	}
	heads := Header{Flags: flagsData, VirtualSize: goldenSize}
	indexHead := Header{Flags: flagsIndex, IndexOffset: HeaderSize, VirtualSize: goldenSize}
	dir := memoryDir(f)
	f.Fuzz(func(t *testing.T, index []byte, size uint32, pending []byte) {
		p := logPaths(dir)
		must(t, os.WriteFile(p.Data, heads.encode(), 0o600))
		must(t, os.Truncate(p.Data, HeaderSize+int64(size%(1<<20))))
		must(t, os.WriteFile(p.Index, append(indexHead.encode(), index...), 0o600))
		must(t, os.WriteFile(p.Pending, pending, 0o600))
		l, _, err := OpenLog(p, LogOptions{BootID: "boot"})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		segs := logSegments(l)
		if i := disorder(segs); i >= 0 {
			t.Fatalf("segment %d overlaps", i)
		}
		readLog(t, l, 0, 4096)
		must(t, l.Append(make([]byte, 4096), 8))
		must(t, l.Sync())
		if size%2 == 1 {
			reclaim(t, l)
		}
		want := logSegments(l)
		must(t, l.Close())
		again, r, err := OpenLog(p, LogOptions{BootID: "boot"})
		must(t, err)
		defer again.Close()
		if got := logSegments(again); r != (Recovery{}) || !bytes.Equal(encodeAll(got), encodeAll(want)) {
			t.Fatalf("opened again: %v, want %v (%+v)", got, want, r)
		}
	})
}

func disorder(segs []Segment) int {
	for i := 1; i < len(segs); i++ {
		if segs[i-1].End() > segs[i].LBA() {
			return i
		}
	}
	return -1
}

func encodeAll(segs []Segment) []byte {
	var b bytes.Buffer
	_ = writeEntries(&b, segs)
	return b.Bytes()
}
