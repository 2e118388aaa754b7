package turbo

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

const contentSum = "47c01519ff33fca65a9c3f0becfc7f35ca6bd8ecfd03158be2014c335d48fd90"

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }

func blobOf(b []byte) Blob { return blob{bytes.NewReader(b)} }

func openIndex(b []byte) (*Index, error) { return OpenIndex(bytes.NewReader(b), int64(len(b))) }

func goldenReader(t testing.TB) *Reader {
	t.Helper()
	x, err := openIndex(golden(t, "turbo/gzip.meta"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.Open(blobOf(golden(t, "ext4/layer1.tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// goldenContent is the tar file in the target, decompressed from its beginning.
func goldenContent(t testing.TB) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(golden(t, "ext4/layer1.tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenMeta is the LSMT file in ext4.fs.meta.
func goldenMeta(t testing.TB) []byte {
	t.Helper()
	b := golden(t, "turbo/ext4.fs.meta")
	z, err := zfile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(io.NewSectionReader(z, 0, z.Size())); err != nil {
		t.Fatal(err)
	}
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func TestGoldenGzipIndexReadsTheTarFile(t *testing.T) {
	r, want := goldenReader(t), goldenContent(t)
	got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil || sum(got) != contentSum {
		t.Errorf("content has sha256 %s, %v", sum(got), err)
	}
	if err := r.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	// Nothing is left of the sequential read: each of these starts at an entry.
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		r.idle = nil
		off, n := rng.IntN(len(want)), 1+rng.IntN(5000)
		p := make([]byte, n)
		m, err := r.ReadAt(p, int64(off))
		if m != min(n, len(want)-off) || (err != nil) != (m < n) || !bytes.Equal(p[:m], want[off:off+m]) {
			t.Fatalf("%d bytes at %d: %d, %v", n, off, m, err)
		}
	}
}

// Whatever bit the entry is at, a decoder is brought to it: here at each of the blocks of a stream, uncompressed ones
// among them, with both kinds of filling.
func TestDecompressionStartsAtAnyBit(t *testing.T) {
	for bits := uint8(1); bits < 8; bits++ {
		// A block in the fixed code that begins at that bit, then an uncompressed one, which is aligned to a byte.
		var w bitWriter
		w.put(0, 8-int(bits))
		w.put(0, 1)
		w.put(1, 2)
		for _, c := range "ab" { // codes of 8 bits, 0x30 above the letter, from the top
			for i := 7; i >= 0; i-- {
				w.put(uint(c+0x30)>>i, 1)
			}
		}
		w.put(0, 7)
		w.put(1, 3)
		stream := append(w.b, 2, 0, 0xfd, 0xff, 'c', 'd')
		r, err := startInflate(bytes.NewReader(stream), int64(len(stream)), entry{stored: 1, bits: bits}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != "abcd" || err != nil {
			t.Errorf("%d bits: %q, %v", bits, got, err)
		}
	}
}

func goldenLayer(t testing.TB) *Layer {
	t.Helper()
	l, err := Open(blobOf(goldenMeta(t)), goldenReader(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// What the reference reads from an index of its own kind is what the plain layer says: each segment of the target is
// content of the tar file at the sector that the index names, and each other one is the layer's own.
func TestGoldenTurboLayerIsAPlainLayer(t *testing.T) {
	l, meta, content := goldenLayer(t), goldenMeta(t), goldenContent(t)
	plain, err := lsmt.OpenLayer(l, l.Size())
	if err != nil {
		t.Fatal(err)
	}
	trailer, err := lsmt.ReadTrailer(bytes.NewReader(meta), int64(len(meta)))
	if err != nil {
		t.Fatal(err)
	}
	remote, err := lsmt.ReadRemoteIndex(bytes.NewReader(meta), trailer)
	if err != nil {
		t.Fatal(err)
	}
	if plain.VirtualSize != 1<<30 || plain.UUID != trailer.UUID || len(plain.Segments) != len(remote) {
		t.Errorf("%d segments, %d bytes, uuid %s", len(plain.Segments), plain.VirtualSize, plain.UUID)
	}
	view := lsmt.View{Base: lsmt.NewIndex(plain.Segments), Files: []io.ReaderAt{l}}
	inTarget := 0
	for _, s := range remote {
		want := make([]byte, s.Len()*lsmt.SectorSize)
		from := meta
		if s.Tag() == lsmt.TagTarget {
			from = content
			inTarget++
		}
		if !s.Zeroed() {
			copy(want, from[s.MOffset()*lsmt.SectorSize:])
		}
		got := make([]byte, len(want))
		if err := view.ReadAt(got, int64(s.LBA())*lsmt.SectorSize); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("segment %v: %v", s, err)
		}
	}
	if inTarget == 0 {
		t.Error("no segment is in the target")
	}
}

// remoteLayer is metadata of one sector whose second sector is at a sector of the target.
func remoteLayer(t testing.TB, moffset, n uint64, tags [2]uint8) []byte {
	t.Helper()
	var b bytes.Buffer
	own := bytes.NewReader(bytes.Repeat([]byte{'m'}, 512))
	err := lsmt.Compact(t.Context(), &b, []lsmt.Segment{lsmt.DataSegment(0, 1, 0, 0)}, []io.ReaderAt{own},
		lsmt.CompactOptions{VirtualSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	head := b.Bytes()[:lsmt.HeaderSize+512]
	return append(head, lsmt.Tail(lsmt.Header{IndexOffset: int64(len(head)), VirtualSize: 1 << 20}, []lsmt.Segment{
		lsmt.DataSegment(0, 1, 8, tags[0]), lsmt.DataSegment(1, n, moffset, tags[1]),
	})...)
}

func TestASegmentOverTheTargetsEndReadsZeroesBehindIt(t *testing.T) {
	target := bytes.Repeat([]byte{'t'}, 700)
	l, err := Open(blobOf(remoteLayer(t, 1, 3, [2]uint8{5, 6})), blobOf(target))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plain, err := lsmt.OpenLayer(l, l.Size())
	if err != nil {
		t.Fatal(err)
	}
	view := lsmt.View{Base: lsmt.NewIndex(plain.Segments), Files: []io.ReaderAt{l}}
	got := make([]byte, 4*512)
	want := append(bytes.Repeat([]byte{'m'}, 512), target[512:]...)
	want = append(want, make([]byte, len(got)-len(want))...)
	if err := view.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other content, %v", err)
	}
}

func TestBadRemoteIndexesAreCorrupt(t *testing.T) {
	target := blobOf(make([]byte, 700))
	for name, meta := range map[string][]byte{
		"behind the target": remoteLayer(t, 2, 1, [2]uint8{0, 1}),
		"three tags":        remoteLayer(t, 0, 1, [2]uint8{0, 2}),
		"no length":         remoteLayer(t, 0, 0, [2]uint8{0, 1}),
		"far away":          remoteLayer(t, 1<<55-1, 1, [2]uint8{0, 1}),
		"outside own data":  remoteLayer(t, 9, 1, [2]uint8{0, 0}),
		"cut":               remoteLayer(t, 0, 1, [2]uint8{0, 1})[:5000],
	} {
		if _, err := Open(blobOf(meta), target); !errors.Is(err, lsmt.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDamageInTheGzipIndexNeverGivesOtherContent(t *testing.T) {
	b, want := golden(t, "turbo/gzip.meta"), goldenContent(t)
	gz := golden(t, "ext4/layer1.tar.gz")
	for i := range b {
		if i > 400 && i < 5140 && i%97 != 0 {
			continue // one window
		}
		damaged := bytes.Clone(b)
		damaged[i] ^= 0x10
		x, err := openIndex(damaged)
		if err == nil {
			err = readBehindLastEntry(x, gz, want)
		}
		// Some bits of a window say nothing: zeroes may be copied from anywhere among zeroes. Other content never passes.
		if err != nil && !errors.Is(err, lsmt.ErrCorrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
		if err == nil && (i < indexHeader || i >= 5188) {
			t.Errorf("byte %d passes for another", i)
		}
	}
}

// readBehindLastEntry reads both of an index's halves; other content than want is no error of the class it returns.
func readBehindLastEntry(x *Index, gz, want []byte) error {
	r, err := x.Open(blobOf(gz))
	if err != nil {
		return err
	}
	for _, off := range []int64{0, 1_100_000} {
		p := make([]byte, 100)
		if _, err := r.ReadAt(p, off); err != nil {
			return err
		}
		if !bytes.Equal(p, want[off:off+100]) {
			return fmt.Errorf("other content at %d", off)
		}
	}
	return nil
}

func TestADamagedTargetIsFoundByVerify(t *testing.T) {
	x, err := openIndex(golden(t, "turbo/gzip.meta"))
	if err != nil {
		t.Fatal(err)
	}
	gz := golden(t, "ext4/layer1.tar.gz")
	for _, at := range []int{0, 11, 5000, len(gz) / 2, len(gz) - 6, len(gz) - 2} {
		damaged := bytes.Clone(gz)
		damaged[at] ^= 0x04
		r, err := x.Open(blobOf(damaged))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Verify(t.Context()); !errors.Is(err, lsmt.ErrCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if _, err := x.Open(blobOf(gz[1:])); !errors.Is(err, lsmt.ErrCorrupt) {
		t.Errorf("a file of another size: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := goldenReader(t).Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzGzipIndex(f *testing.F) {
	gz := golden(f, "ext4/layer1.tar.gz")
	f.Add(golden(f, "turbo/gzip.meta"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum keeps most changes from being tried; it is made right.
		if len(b) >= indexHeader {
			fixHeader(b, len(gz))
		}
		x, err := openIndex(b)
		if err != nil {
			if !errors.Is(err, lsmt.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		r, err := x.Open(blobOf(gz))
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 512)
		for _, off := range []int64{0, x.Size() / 2, x.Size() - 1} {
			_, err := r.ReadAt(p, off)
			var damage flate.CorruptInputError
			if errors.As(err, &damage) && !errors.Is(err, lsmt.ErrCorrupt) {
				t.Fatal(err)
			}
		}
	})
}

// Whatever an index of a layer with remote data says, what comes of it is a plain layer that reads, or corrupt.
func FuzzRemoteLayer(f *testing.F) {
	target := make([]byte, 3*512+100)
	f.Add(remoteLayer(f, 1, 3, [2]uint8{5, 6}))
	f.Add(remoteLayer(f, 0, 1, [2]uint8{0, 0}))
	f.Fuzz(func(t *testing.T, meta []byte) {
		l, err := Open(blobOf(meta), blobOf(target))
		if err != nil {
			if !errors.Is(err, lsmt.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		plain, err := lsmt.OpenLayer(l, l.Size())
		if err != nil {
			t.Fatalf("no plain layer: %v", err)
		}
		view := lsmt.View{Base: lsmt.NewIndex(plain.Segments), Files: []io.ReaderAt{l}}
		for _, s := range plain.Segments {
			if err := view.ReadAt(make([]byte, 512), int64(s.LBA())*lsmt.SectorSize); err != nil {
				t.Fatalf("segment %v: %v", s, err)
			}
		}
	})
}
