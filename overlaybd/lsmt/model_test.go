package lsmt

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sectorMap is the model of an index: what each sector is mapped to, as a segment of one sector.
type sectorMap map[uint64]Segment

func (m sectorMap) insert(s Segment) {
	for lba := s.LBA(); lba < s.End(); lba++ {
		m[lba] = s.Clip(lba, lba+1)
	}
}

func sectorsOf(segs []Segment) sectorMap {
	m := sectorMap{}
	for _, s := range segs {
		m.insert(s)
	}
	return m
}

func equalMaps(t *rapid.T, got, want sectorMap) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d sectors mapped, want %d", len(got), len(want))
	}
	for lba, s := range want {
		if got[lba] != s {
			t.Fatalf("sector %d is %v, want %v", lba, got[lba], s)
		}
	}
}

func drawSegment(t *rapid.T, space, longest, at int) Segment {
	lba := uint64(rapid.IntRange(0, space-1).Draw(t, "lba"))
	n := uint64(rapid.IntRange(1, longest).Draw(t, "len"))
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		return ZeroSegment(lba, n, uint64(at), 0)
	}
	return DataSegment(lba, n, uint64(at), 0)
}

func checkDisjoint(t *rapid.T, segs []Segment) {
	t.Helper()
	for i := 1; i < len(segs); i++ {
		if segs[i-1].End() > segs[i].LBA() {
			t.Fatalf("%v overlaps %v", segs[i-1], segs[i])
		}
	}
}

func TestLiveIndexAgainstSectors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.SampledFrom([]int{64, 1200, 1 << 20}).Draw(t, "space")
		longest := rapid.SampledFrom([]int{1, 9, 600}).Draw(t, "longest")
		var x liveIndex
		m := sectorMap{}
		at := 8
		for range rapid.IntRange(1, 40).Draw(t, "rounds") {
			// Bursts of drawn stride fill and split chunks, which single draws would take too long to do.
			s := drawSegment(t, space, longest, at)
			stride := uint64(rapid.IntRange(1, 5).Draw(t, "stride"))
			for i := range uint64(rapid.SampledFrom([]int{1, 1, 50, 300}).Draw(t, "burst")) {
				b := DataSegment(s.LBA()+i*stride, min(s.Len(), 3), uint64(at), 0)
				if i == 0 {
					b = s
				}
				x.insert(b)
				m.insert(b)
				at += int(b.Len())
			}
			lba := uint64(rapid.IntRange(0, space+longest).Draw(t, "look"))
			checkNext(t, &x, m, lba)
			checkChunks(t, &x)
		}
		segs := x.appendTo(nil)
		checkDisjoint(t, segs)
		equalMaps(t, sectorsOf(segs), m)
		data := uint64(0)
		for _, s := range m {
			if !s.Zeroed() {
				data++
			}
		}
		if x.len() != len(segs) || x.data != data {
			t.Fatalf("counts %d segments and %d sectors, want %d and %d", x.len(), x.data, len(segs), data)
		}
	})
}

func checkNext(t *rapid.T, x *liveIndex, m sectorMap, lba uint64) {
	t.Helper()
	s, ok := x.next(lba)
	want, mapped := m[lba]
	switch {
	case mapped && (!ok || s.LBA() > lba || s.Clip(lba, lba+1) != want):
		t.Fatalf("next(%d) is %v, want %v", lba, s, want)
	case !mapped && ok && s.LBA() <= lba:
		t.Fatalf("next(%d) is %v, but nothing is there", lba, s)
	case !ok:
		for at := range m {
			if at >= lba {
				t.Fatalf("next(%d) finds nothing, but %d is mapped", lba, at)
			}
		}
	}
}

// checkChunks checks what lookups and the bound on memory rest on.
func checkChunks(t *rapid.T, x *liveIndex) {
	t.Helper()
	for i, c := range x.chunks {
		if len(c) == 0 || cap(c) != chunkCap || x.first[i] != c[0].LBA() {
			t.Fatalf("chunk %d of %d: %d segments, room for %d, first is %d", i, len(x.chunks), len(c), cap(c), x.first[i])
		}
		if i > 0 && len(x.chunks[i-1])+len(c) < joinBelow {
			t.Fatalf("chunks %d and %d hold %d and %d segments only", i-1, i, len(x.chunks[i-1]), len(c))
		}
	}
}

func drawLayer(t *rapid.T, space int, tag uint8) []Segment {
	var x liveIndex
	for i := range rapid.IntRange(0, 60).Draw(t, "segments") {
		x.insert(drawSegment(t, space, 24, 8+i).WithTag(tag))
	}
	return x.appendTo(nil)
}

// merged is the definition of a merge: the segments of a layer as they are, and in each gap between them what the
// layers below have there.
func mergedByDefinition(layers [][]Segment, from, to uint64) (out []Segment) {
	if len(layers) == 0 || from >= to {
		return nil
	}
	top, below := layers[len(layers)-1], layers[:len(layers)-1]
	pos := from
	for _, s := range top {
		if s.End() <= from || s.LBA() >= to {
			continue
		}
		s = s.Clip(from, to)
		out = append(out, mergedByDefinition(below, pos, s.LBA())...)
		out = append(out, s)
		pos = s.End()
	}
	return append(out, mergedByDefinition(below, pos, to)...)
}

func TestMergeFollowsItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var layers [][]Segment
		for i := range rapid.IntRange(0, 7).Draw(t, "layers") {
			layers = append(layers, drawLayer(t, 400, uint8(i)))
		}
		got, err := Merge(layers)
		if err != nil {
			t.Fatal(err)
		}
		if want := mergedByDefinition(layers, 0, invalidLBA); !slices.Equal(got, want) {
			t.Fatalf("merged:\n%v\nwant:\n%v", got, want)
		}
	})
}

// A compacted layer holds what its source held, and compacting it again changes nothing.
func TestCompactKeepsContentAndIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x liveIndex
		stored := make([]byte, HeaderSize)
		for range rapid.IntRange(0, 20).Draw(t, "writes") {
			s := drawSegment(t, 400, 100, len(stored)/SectorSize)
			x.insert(s)
			if !s.Zeroed() {
				stored = append(stored, bytes.Repeat([]byte{byte(s.LBA()), byte(len(stored) >> 9)}, int(s.Len())*256)...)
			}
		}
		segs := x.appendTo(nil)
		o := CompactOptions{VirtualSize: 1000 * SectorSize}
		once := compactBytes(t, segs, stored, o)
		l, err := OpenLayer(bytes.NewReader(once), int64(len(once)))
		if err != nil {
			t.Fatal(err)
		}
		if twice := compactBytes(t, l.Segments, once, o); !bytes.Equal(once, twice) {
			t.Fatal("compacting a compacted layer changes it")
		}
		if !bytes.Equal(flat(t, segs, stored), flat(t, l.Segments, once)) {
			t.Fatal("content differs")
		}
	})
}

func compactBytes(t *rapid.T, segs []Segment, stored []byte, o CompactOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Compact(t.Context(), &b, segs, []io.ReaderAt{bytes.NewReader(stored)}, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func flat(t *rapid.T, segs []Segment, stored []byte) []byte {
	t.Helper()
	v := View{Base: NewIndex(segs), Files: []io.ReaderAt{bytes.NewReader(stored)}}
	p := make([]byte, 500*SectorSize)
	if err := v.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}
