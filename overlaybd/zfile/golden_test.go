package zfile

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What the reference says of its files that are not to be opened, and what is said here.
var goldenFailures = map[string]struct {
	part  Part
	block int64
	read  bool // opens, and fails when read
}{
	"zfile/bad-block.zf":          {part: PartBlock, block: 0, read: true},
	"zfile/bad-header-digest.zf":  {part: PartHeader, block: -1},
	"zfile/bad-trailer-digest.zf": {part: PartTrailer, block: -1}, // the reference does not look at it
	"zfile/truncated.zf":          {part: PartTrailer, block: -1},
}

// The content of two of the files is a layer, of which the golden description gives the content.
var goldenLayers = map[string]string{
	"lsmt/long.lsmt.zf": "",
	"tar/commit1.zf":    "8ff412ee1fe6b230d280757db05cf65433e3faa1a78fe46d9b2dd315656751da", // of lsmt/L0.lsmt
}

func TestGoldenFilesOpenToTheRecordedContent(t *testing.T) {
	for _, g := range goldenFiles(t) {
		if _, bad := goldenFailures[g.File]; bad {
			continue
		}
		t.Run(g.File, func(t *testing.T) {
			f := goldenBytes(t, g.File)
			content, err := unpack(f)
			if err != nil {
				t.Fatal(err)
			}
			want, layer := goldenLayers[g.File]
			switch {
			case layer && want == "":
				want = strings.TrimSpace(string(goldenBytes(t, "lsmt/long.lsmt.sha256")))[:64]
			case !layer:
				want = g.Flat
			}
			if got := sha(content); got != want {
				t.Errorf("content has sha256 %s, want %s", got, want)
			}
			if err := open(t, f).Verify(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGoldenDamageIsNamed(t *testing.T) {
	for name, want := range goldenFailures {
		t.Run(name, func(t *testing.T) {
			f := goldenBytes(t, name)
			r, err := Open(bytes.NewReader(f), int64(len(f)))
			if want.read {
				if err != nil {
					t.Fatal(err)
				}
				err = r.Verify(t.Context())
				if _, readErr := unpack(f); readErr == nil {
					t.Error("the content was read")
				}
			}
			var c *CorruptError
			if !errors.Is(err, ErrCorrupt) || !errors.As(err, &c) {
				t.Fatalf("%v is not a CorruptError", err)
			}
			if c.Part != want.part || c.Block != want.block {
				t.Errorf("%v, want part %s block %d", c, want.part, want.block)
			}
		})
	}
}

// goldenContent returns what the sound golden files under zfile/ were made from.
func goldenContent(t *testing.T, g goldenFile) []byte {
	t.Helper()
	seed := uint64(7)
	if strings.Contains(g.File, "/inc-") {
		seed = 20
	}
	content := pattern(seed, int(g.Size))
	if sha(content) != g.Flat {
		t.Fatalf("%s: pattern is not the recorded content", g.File)
	}
	return content
}

func goldenOptions(t *testing.T, f []byte) Options {
	t.Helper()
	i := open(t, f).Info()
	return Options{Codec: i.Codec, BlockSize: i.BlockSize, NoChecksums: !i.Checksums, Oversize: true}
}

// Files with LZ4 are made again byte for byte. With zstd the compressed bytes differ with the encoder, and all else is
// compared: header, number of blocks, place and form of index and trailer.
func TestGoldenFilesAreWrittenAgain(t *testing.T) {
	for _, g := range goldenFiles(t) {
		if _, bad := goldenFailures[g.File]; bad {
			continue
		}
		t.Run(g.File, func(t *testing.T) {
			f := goldenBytes(t, g.File)
			o := goldenOptions(t, f)
			content, err := unpack(f)
			if strings.HasPrefix(g.File, "zfile/") {
				content = goldenContent(t, g)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := pack(t, o, content)
			if open(t, f).Info().FinalHeader {
				got = finalHeader(t, got)
			}
			if o.Codec == LZ4 {
				if !bytes.Equal(got, f) {
					t.Error("other bytes than the reference wrote")
				}
				return
			}
			compareStructure(t, got, f)
		})
	}
}

// compareStructure compares what does not depend on the encoder.
func compareStructure(t *testing.T, got, want []byte) {
	t.Helper()
	g, w := open(t, got), open(t, want)
	gi, wi := g.Info(), w.Info()
	gi.Stored, wi.Stored = 0, 0
	if d := cmp.Diff(wi, gi); d != "" {
		t.Error(d)
	}
	if !wi.FinalHeader && !bytes.Equal(got[:HeaderSize], want[:HeaderSize]) {
		t.Error("headers differ")
	}
	for _, f := range [][]byte{got, want} {
		if r := open(t, f); int64(len(f)) != r.layout.indexOffset+r.layout.blocks*entrySize+HeaderSize {
			t.Error("the index does not end where the trailer begins")
		}
	}
	// The trailers agree once the fields that tell of compressed bytes are those of the other.
	gh, wh := g.header, w.header
	gh.indexOffset, gh.indexCRC = wh.indexOffset, wh.indexCRC
	if !bytes.Equal(gh.encode(), wh.encode()) {
		t.Errorf("%+v, want %+v", gh, wh)
	}
	content, err := unpack(got)
	if err != nil {
		t.Fatal(err)
	}
	if flat, err := unpack(want); err != nil || !bytes.Equal(content, flat) {
		t.Error("other content", err)
	}
}

// A header from before digests has garbage wherever nothing is defined, and so has its trailer. The layer below most
// images is such a file.
func TestGoldenFileWithGarbageInReservedBytes(t *testing.T) {
	f := goldenBytes(t, "zfile/n70000-lz4-4k-crc.zf")
	want, err := unpack(f)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range pattern(4, HeaderSize) {
		if garbageAllowed(i) {
			f[i] = b
			f[len(f)-HeaderSize+i] = b
		}
		if i >= offIndexOffset && i < offBlockSize {
			f[i] = b // the trailer's are used
		}
	}
	for _, at := range []int{0, len(f) - HeaderSize} {
		f[at+offFlags] = f[at+offFlags]&0x0f | 0xc0
		copy(f[at+offFlags+1:], "garbage")
	}
	got, err := unpack(f)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("other content")
	}
}

// garbageAllowed reports whether a byte of a header without digests has no meaning.
func garbageAllowed(i int) bool {
	switch {
	case i >= offDigest && i < offFlags, i >= offIndexCRC && i < offBlockSize:
		return true
	case i == offCodec+1, i >= offUseDict+1 && i < offDictSize, i > offChecksums:
		return true
	}
	return i >= offStructSize && i < offDigest
}

// raw(seed, "123456789"), which the description of the golden files gives.
func TestGoldenChecksums(t *testing.T) {
	for _, c := range []struct {
		seed uint32
		data string
		want uint32
	}{
		{0, "123456789", 0x58E3FA20},
		{blockSeed, "123456789", 0x3C9BD4E0},
		{0, strings.Repeat("a", 32), 0x3311C7A1},
		{0, "\x00\x00\x00\x00", 0},
	} {
		if got := rawCRC(c.seed, []byte(c.data)); got != c.want {
			t.Errorf("raw(%d, %q) = %08x, want %08x", c.seed, c.data, got, c.want)
		}
	}
}
