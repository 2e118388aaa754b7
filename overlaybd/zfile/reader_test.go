package zfile

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"
)

func TestEveryFlippedByteIsAnErrorOrChangesNothing(t *testing.T) {
	content := pattern(7, 9000)
	for name, f := range map[string][]byte{
		"lz4":          pack(t, Options{}, content),
		"zstd":         pack(t, Options{Codec: Zstd}, content),
		"final header": finalHeader(t, pack(t, Options{BlockSize: 8 << 10}, content)),
	} {
		t.Run(name, func(t *testing.T) {
			for i := range f {
				for _, flip := range []byte{0x01, 0x80, 0xff} {
					bad := bytes.Clone(f)
					bad[i] ^= flip
					got, err := unpack(bad)
					if err == nil && !bytes.Equal(got, content) {
						t.Fatalf("byte %d ^ %#x: other content", i, flip)
					}
					if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotZFile) && !errors.Is(err, ErrUnsupported) {
						t.Fatalf("byte %d ^ %#x: %v", i, flip, err)
					}
				}
			}
		})
	}
}

func TestEveryTruncationIsAnError(t *testing.T) {
	content := pattern(7, 9000)
	f := pack(t, Options{}, content)
	for name, f := range map[string][]byte{"trailer": f, "final header": finalHeader(t, f)} {
		for n := range f {
			_, err := unpack(f[:n])
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotZFile) {
				t.Fatalf("%s, %d of %d bytes: %v", name, n, len(f), err)
			}
			// The same with a size that the bytes do not reach, as when a store has lost the end.
			if _, err := Open(bytes.NewReader(f[:n]), int64(len(f))); err == nil && name == "trailer" {
				t.Fatalf("%d of %d bytes opened with the full size", n, len(f))
			}
		}
	}
}

func TestABadBlockIsNamedAndItsNeighboursAreRead(t *testing.T) {
	content := pattern(7, 40<<10)
	f := pack(t, Options{}, content)
	r := open(t, f)
	at := r.index.at(3)
	f[at] ^= 1
	p := make([]byte, len(content))
	n, err := r.ReadAt(p, 0)
	var c *CorruptError
	if !errors.As(err, &c) {
		t.Fatal(err)
	}
	if c.Part != PartBlock || c.Block != 3 || c.Offset != at || c.Offset+c.Length != r.index.at(4) {
		t.Errorf("%+v", c)
	}
	if n != 3*4096 || !bytes.Equal(p[:n], content[:n]) {
		t.Errorf("%d bytes in front of the bad block", n)
	}
	for _, off := range []int64{4 * 4096, 4*4096 + 512, 9 * 4096} {
		if n, err := r.ReadAt(p[:1024], off); n != 1024 || err != nil || !bytes.Equal(p[:n], content[off:off+1024]) {
			t.Errorf("read at %d: %d, %v", off, n, err)
		}
	}
	if n, err := r.ReadAt(p[:512], 3*4096+512); n != 0 || !errors.Is(err, ErrCorrupt) {
		t.Errorf("part of the bad block: %d, %v", n, err)
	}
}

func TestVerifyNamesEveryBadBlock(t *testing.T) {
	f := pack(t, Options{Codec: Zstd}, pattern(7, 400<<10))
	r := open(t, f)
	for _, block := range []int64{0, 17, 18, 99} {
		f[r.index.at(block)+9] ^= 4
	}
	err := r.Verify(t.Context())
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Fatalf("%v, want four errors", err)
	}
	for i, want := range []int64{0, 17, 18, 99} {
		var c *CorruptError
		if !errors.As(joined.Unwrap()[i], &c) || c.Block != want {
			t.Errorf("%v, want block %d", joined.Unwrap()[i], want)
		}
	}
}

func TestVerifyChecksATrailerThatOpenDidNotNeed(t *testing.T) {
	f := finalHeader(t, pack(t, Options{}, pattern(7, 9000)))
	if err := open(t, f).Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := pack(t, Options{}, pattern(7, 9001))
	for name, trailer := range map[string][]byte{
		"other":  other[len(other)-HeaderSize:],
		"zeroes": make([]byte, HeaderSize),
	} {
		bad := append(bytes.Clone(f[:len(f)-HeaderSize]), trailer...)
		var c *CorruptError
		if err := open(t, bad).Verify(t.Context()); !errors.As(err, &c) || c.Part != PartTrailer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFileThatShrankIsReadUpToTheLoss(t *testing.T) {
	content := pattern(7, 40<<10)
	f := pack(t, Options{}, content)
	r := open(t, f)
	r.src = bytes.NewReader(f[:r.index.at(6)-1])
	p := make([]byte, len(content))
	n, err := r.ReadAt(p, 0)
	var c *CorruptError
	if !errors.As(err, &c) || c.Block != 5 || c.Offset != r.index.at(5) {
		t.Errorf("%v, want block 5", err)
	}
	if n != 5*4096 || !bytes.Equal(p[:n], content[:n]) {
		t.Errorf("%d bytes in front of the loss", n)
	}
}

func TestAFailingSourceIsNotCorruption(t *testing.T) {
	f := pack(t, Options{}, pattern(7, 9000))
	r := open(t, f)
	r.src = failing{}
	for _, n := range []int{512, 4096, 9000} {
		if _, err := r.ReadAt(make([]byte, n), 0); !errors.Is(err, iotest.ErrTimeout) || errors.Is(err, ErrCorrupt) {
			t.Errorf("read %d bytes: %v", n, err)
		}
	}
	if err := r.Verify(t.Context()); !errors.Is(err, iotest.ErrTimeout) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if _, err := Open(failing{}, 4096); !errors.Is(err, iotest.ErrTimeout) {
		t.Error(err)
	}
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, iotest.ErrTimeout }

func TestWhatIsNoZFileIsSaidToBeNone(t *testing.T) {
	for name, f := range map[string][]byte{
		"empty": nil, "short": []byte("ZFile"), "plain": pattern(7, 9000), "zeroes": make([]byte, 4096),
	} {
		if _, err := unpack(f); !errors.Is(err, ErrNotZFile) {
			t.Errorf("%s: %v", name, err)
		}
		if IsZFile(f) {
			t.Errorf("%s is a ZFile", name)
		}
	}
	if f := pack(t, Options{}, nil); !IsZFile(f[:24]) || IsZFile(f[:23]) {
		t.Error("a ZFile is none")
	}
}

// reseal changes the trailer of f and gives it the right digest again.
func reseal(t *testing.T, f []byte, change func(*header)) []byte {
	t.Helper()
	at := len(f) - HeaderSize
	h, err := decodeHeader(PartTrailer, f[at:], int64(at))
	if err != nil {
		t.Fatal(err)
	}
	change(&h)
	return append(bytes.Clone(f[:at]), h.encode()...)
}

func TestNumbersThatContradictEachOtherAreRefused(t *testing.T) {
	f := pack(t, Options{}, pattern(7, 40_000))
	for name, c := range map[string]struct {
		change func(*header)
		want   error
	}{
		"more content than blocks": {func(h *header) { h.size += 4096 }, ErrCorrupt},
		"a block too many":         {func(h *header) { h.blocks++ }, ErrCorrupt},
		"huge size":                {func(h *header) { h.size = 1<<64 - 1 }, ErrCorrupt},
		"huge size and blocks":     {func(h *header) { h.size = 1<<64 - 1; h.blocks = 1 << 52 }, ErrUnsupported},
		"blocks beyond the file":   {func(h *header) { h.size = 1 << 40; h.blocks = 1 << 28 }, ErrCorrupt},
		"index in the header":      {func(h *header) { h.indexOffset = 8 }, ErrCorrupt},
		"index behind the file":    {func(h *header) { h.indexOffset = 1<<64 - 4 }, ErrCorrupt},
		"index a little late":      {func(h *header) { h.indexOffset += 4 }, ErrCorrupt},
		"a gap for a dictionary":   {func(h *header) { h.dictSize = 16 }, ErrCorrupt},
		"index checksum":           {func(h *header) { h.indexCRC++ }, ErrCorrupt},
		"a dictionary":             {func(h *header) { h.useDict = true }, ErrUnsupported},
		"codec 0":                  {func(h *header) { h.codec = 0 }, ErrUnsupported},
		"codec 9":                  {func(h *header) { h.codec = 9 }, ErrUnsupported},
		"other codec":              {func(h *header) { h.codec = Zstd }, ErrCorrupt},
		"block size 0":             {func(h *header) { h.blockSize = 0 }, ErrUnsupported},
		"block size 12 KiB":        {func(h *header) { h.blockSize = 12 << 10 }, ErrUnsupported},
		"block size 128 KiB":       {func(h *header) { h.blockSize = 128 << 10 }, ErrUnsupported},
		"no checksums after all":   {func(h *header) { h.checksums = false }, ErrCorrupt},
		"header in its place":      {func(h *header) { h.flags |= flagHeader }, ErrCorrupt},
		"not sealed":               {func(h *header) { h.flags &^= flagSealed }, ErrCorrupt},
	} {
		if _, err := unpack(reseal(t, f, c.change)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Files from before digests are read as they are.
func TestWithoutDigestsOnlyTheRestIsChecked(t *testing.T) {
	content := pattern(7, 40_000)
	f := pack(t, Options{}, content)
	old := reseal(t, f, func(h *header) { h.flags &^= flagDigest; h.indexCRC = 0xdeadbeef })
	old[offFlags] &^= flagDigest
	old[len(old)-HeaderSize+offDigest]++
	if got, err := unpack(old); err != nil || !bytes.Equal(got, content) {
		t.Fatal("other content", err)
	}
	old[len(old)-HeaderSize-4]++ // the last block's size
	if _, err := unpack(old); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestAGapInFrontOfTheBlocksIsSkipped(t *testing.T) {
	content := pattern(7, 9000)
	f := pack(t, Options{}, content)
	f = reseal(t, f, func(h *header) { h.dictSize = 100; h.indexOffset += 100 })
	f = append(append(bytes.Clone(f[:HeaderSize]), make([]byte, 100)...), f[HeaderSize:]...)
	if got, err := unpack(f); err != nil || !bytes.Equal(got, content) {
		t.Fatal("other content", err)
	}
}

func TestReadAtRefusesANegativeOffset(t *testing.T) {
	r := open(t, pack(t, Options{}, pattern(7, 9000)))
	if _, err := r.ReadAt(make([]byte, 1), -1); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if n, err := r.ReadAt(make([]byte, 1), 9000); n != 0 || err != io.EOF {
		t.Error(n, err)
	}
}

func TestManyReadersAtOnce(t *testing.T) {
	content := pattern(7, 3<<20)
	for _, o := range []Options{{}, {BlockSize: 64 << 10}, {Codec: Zstd, BlockSize: 16 << 10}} {
		r := open(t, pack(t, o, content))
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(g)))
				p := make([]byte, 100<<10)
				for range 200 {
					p := p[:1+rnd.IntN(len(p))]
					if rnd.IntN(2) == 0 {
						p = p[:min(len(p), 4096)]
					}
					off := rnd.IntN(len(content) - len(p))
					if n, err := r.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p[:n], content[off:off+n]) {
						t.Errorf("%v: read %d bytes at %d: %d, %v", o.Codec, len(p), off, n, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestReadsDoNotAllocate(t *testing.T) {
	content := pattern(7, 2<<20)
	for _, o := range []Options{{}, {Codec: Zstd}, {BlockSize: 64 << 10}, {Codec: Zstd, BlockSize: 64 << 10}} {
		r := open(t, pack(t, o, content))
		p := make([]byte, 128<<10)
		rnd := rand.New(rand.NewPCG(1, 2))
		for off := int64(0); off < r.Size(); off += 4096 { // fills the cache, whose memory is taken as it grows
			if _, err := r.ReadAt(p[:512], off); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{512, 4096, 128 << 10} {
			got := testing.AllocsPerRun(200, func() {
				if _, err := r.ReadAt(p[:n], int64(rnd.IntN(len(content)/4096-32))*4096); err != nil {
					t.Fatal(err)
				}
			})
			// The race detector drops what is given to a sync.Pool at random.
			if got != 0 && !raceEnabled {
				t.Errorf("%v, blocks of %d, reads of %d: %v allocations a read", o.Codec, o.BlockSize, n, got)
			}
		}
	}
}

// One read of a part of a block decodes it, and its neighbours are then copies.
func TestNeighboursOfAReadComeFromTheCache(t *testing.T) {
	content := pattern(7, 8<<20)
	f := pack(t, Options{BlockSize: 64 << 10}, content)
	src := &counting{ReaderAt: bytes.NewReader(f)}
	r, err := Open(src, int64(len(f)))
	if err != nil {
		t.Fatal(err)
	}
	src.reads = 0
	p := make([]byte, 4096)
	for off := 0; off < len(content); off += len(p) {
		if _, err := r.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, content[off:off+len(p)]) {
			t.Fatal(off, err)
		}
	}
	if want := len(content) / (64 << 10); src.reads != want {
		t.Errorf("%d reads of the source, want %d", src.reads, want)
	}
	held := 0
	for i := range r.cache.sets {
		for _, w := range r.cache.sets[i].ways {
			if w.used != 0 {
				held += len(w.buf.b)
			}
		}
	}
	if held == 0 || held > cacheBytes {
		t.Errorf("%d bytes in the cache, at most %d are allowed", held, cacheBytes)
	}
}

type counting struct {
	io.ReaderAt
	reads int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	return c.ReaderAt.ReadAt(p, off)
}
