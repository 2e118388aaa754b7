package overlaybd

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// storedLayer is a layer in a repository, with its bytes.
type storedLayer struct {
	Layer
	repo   *repo
	engine *Engine
}

func goldenLayer(t testing.TB, name string) storedLayer {
	t.Helper()
	r := newRepo()
	s := goldenStack(t, r, 1<<20, name)
	b := r.blobs[name]
	l := s.Layers[0]
	src, err := Unwrap(memSource{bytes.NewReader(b)}, l.Codec)
	if err != nil {
		t.Fatal(err)
	}
	h, err := lsmt.ReadTrailer(src, src.Size())
	if err != nil {
		t.Fatal(err)
	}
	l.UUID = h.UUID.String()
	return storedLayer{l, r, newEngine(t, r)}
}

func (s *storedLayer) bytes() []byte { return s.repo.blobs[s.Key] }

// damage flips bits of one byte until undo is called.
func (s *storedLayer) damage(at int) (undo func()) {
	s.bytes()[at] ^= 0x24
	return func() { s.bytes()[at] ^= 0x24 }
}

// read returns the content of the disk that the layer alone makes.
func (s *storedLayer) read(t *testing.T) ([]byte, error) {
	t.Helper()
	dev, err := s.engine.OpenReadOnly(t.Context(), Stack{VirtualSize: 1 << 20, Layers: []Layer{s.Layer}})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	p := make([]byte, dev.Size())
	_, err = dev.ReadAt(p, 0)
	return p, err
}

// byteClasses returns places in a file of n bytes: each of the first and last bytes, where headers, trailers and
// indexes are, and some of all others.
func byteClasses(n int) (at []int) {
	const edge, stride = 1700, 701
	for i := 0; i < n; i++ {
		near := i < edge || i >= n-edge
		if near && i%13 == 0 || i%stride == 0 {
			at = append(at, i)
		}
	}
	return at
}

// Damage anywhere is found before anything reads it as data. In a ZFile each block has a checksum,
// so every read gives what was written, or an error; in a bare layer the digest is all there is, and Verify compares it.
func TestGoldenLayersNeverGiveWrongData(t *testing.T) {
	for _, name := range []string{
		"tar/commit1-z-t.tar", "tar/ustar-zf.tar", "tar/ustar-zf.longpax-ref-fails.tar", "tar/commit1.zf",
	} {
		t.Run(name, func(t *testing.T) {
			s := goldenLayer(t, name)
			want, err := s.read(t)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range byteClasses(len(s.bytes())) {
				undo := s.damage(at)
				got, err := s.read(t)
				undo()
				switch {
				case err == nil && !bytes.Equal(got, want):
					t.Errorf("byte %d: wrong data", at)
				case err != nil && !errors.Is(err, ErrCorrupt):
					t.Errorf("byte %d: %v is not ErrCorrupt", at, err)
				case err != nil && !strings.Contains(err.Error(), s.UUID):
					t.Errorf("byte %d: %v does not name the layer", at, err)
				}
			}
		})
	}
}

// A file that was cut off is corrupt, unless only the end of its archive is gone.
func TestGoldenLayersThatWereCutOffAreCorrupt(t *testing.T) {
	for _, name := range []string{
		"tar/commit1-z-t.tar", "tar/ustar-lsmt.tar", "tar/commit1.zf", "lsmt/commit1.lsmt", "lsmt/sealed1.lsmt",
	} {
		s := goldenLayer(t, name)
		whole := s.bytes()
		want, err := s.read(t)
		if err != nil {
			t.Fatal(err)
		}
		s.Size = 0 // not even the size is known
		for _, n := range byteClasses(len(whole)) {
			s.repo.blobs[s.Key] = whole[:n]
			got, err := s.read(t)
			if err == nil && !bytes.Equal(got, want) || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s cut to %d bytes: %v", name, n, err)
			}
		}
	}
}

func TestVerifyFindsDamageAnywhere(t *testing.T) {
	for _, name := range []string{"lsmt/sealed1.lsmt", "lsmt/commit1.lsmt", "tar/ustar-lsmt.tar", "tar/commit1-z-t.tar"} {
		t.Run(name, func(t *testing.T) {
			s := goldenLayer(t, name)
			if _, err := s.engine.Verify(t.Context(), s.Layer, nil); err != nil {
				t.Fatal(err)
			}
			for i, at := range byteClasses(len(s.bytes())) {
				if i%3 != 0 {
					continue
				}
				undo := s.damage(at)
				_, err := s.engine.Verify(t.Context(), s.Layer, nil)
				undo()
				var d *DamageError
				if !errors.As(err, &d) || !errors.Is(err, ErrCorrupt) || d.Layer != s.UUID || len(d.Damage) == 0 {
					t.Fatalf("byte %d: %v", at, err)
				}
			}
		})
	}
}

// damageOf verifies a layer without its digest, and returns the parts that are wrong.
func damageOf(t *testing.T, s storedLayer) []Damage {
	t.Helper()
	s.Digest = ""
	_, err := s.engine.Verify(t.Context(), s.Layer, nil)
	var d *DamageError
	if !errors.As(err, &d) {
		t.Fatalf("%v is no DamageError", err)
	}
	return d.Damage
}

func TestVerifyNamesPartAndPlace(t *testing.T) {
	const payload = 1536 // of the envelope that the reference writes
	for _, c := range []struct {
		name  string
		at    []int
		parts []string
		first int64 // offset of the first finding
	}{
		{"tar/commit1-z-t.tar", []int{1030}, []string{"tar envelope"}, 1024},
		{"tar/commit1-z-t.tar", []int{payload + 80}, []string{"header"}, payload},
		{"tar/commit1-z-t.tar", []int{payload + 520, payload + 20000}, []string{"block 0", "block 10"}, payload + 512},
		{"tar/commit1.zf", []int{48330}, []string{"index"}, 0},
		{"tar/commit1.zf", []int{48600}, []string{"trailer"}, 0},
		{"lsmt/commit1.lsmt", []int{77824 - 4096 + 3}, []string{"trailer"}, 77824 - 4096},
		{"lsmt/commit1.lsmt", []int{60}, []string{"header"}, 0},
		{"lsmt/commit1.lsmt", []int{77824 - 8192 + 5}, []string{"index"}, 77824 - 8192 + 16},
		{"tar/ustar-lsmt.tar", []int{512 + 77824 - 4096 + 3}, []string{"trailer"}, 512 + 77824 - 4096},
	} {
		s := goldenLayer(t, c.name)
		for _, at := range c.at {
			s.damage(at)
		}
		found := damageOf(t, s)
		var parts []string
		for _, d := range found {
			parts = append(parts, d.Part)
		}
		if diff := cmp.Diff(c.parts, parts); diff != "" {
			t.Errorf("%s at %d: %s\n%v", c.name, c.at, diff, found)
		} else if c.first != 0 && found[0].Offset != c.first {
			t.Errorf("%s at %d: first is at %d, want %d", c.name, c.at, found[0].Offset, c.first)
		}
	}
}

func TestVerifyComparesTheLayerWithItsRecord(t *testing.T) {
	s := goldenLayer(t, "tar/commit1-z-t.tar")
	for part, change := range map[string]func(*Layer){
		"size":    func(l *Layer) { l.Size++ },
		"digest":  func(l *Layer) { l.Digest = digestOf(nil) },
		"trailer": func(l *Layer) { l.UUID = "00000000-0000-4000-8000-000000000001" },
		"tar envelope": func(l *Layer) {
			s.repo.blobs["zf"] = goldenBytes(t, "tar/commit1.zf")
			*l = Layer{Key: "zf", Codec: CodecTar}
		},
	} {
		l := s.Layer
		change(&l)
		_, err := s.engine.Verify(t.Context(), l, nil)
		var d *DamageError
		if !errors.As(err, &d) || d.Damage[0].Part != part {
			t.Errorf("%s: %v", part, err)
		}
	}
}

func TestGoldenTurboTargetIsVerifiedToo(t *testing.T) {
	gz := goldenBytes(t, "turbo/layer1.tar.gz")
	gz[len(gz)-6] ^= 1 // its checksum: all content is right, and nothing says so any more
	e, err := New(Config{Open: func(context.Context, Layer) (Source, error) { return turboSourceOn(t, targetOf(t, gz)), nil }})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Verify(t.Context(), Layer{Key: "turbo"}, nil)
	var d *DamageError
	if !errors.As(err, &d) || len(d.Damage) != 1 || d.Damage[0].Part != "gzip" {
		t.Errorf("%v", err)
	}
}

func TestVerifyReportsProgressAndEndsWithItsContext(t *testing.T) {
	s := goldenLayer(t, "tar/commit1-z-t.tar")
	var last, total int64
	v, err := s.engine.Verify(t.Context(), s.Layer, func(done, all int64) {
		if done < last || done > all {
			t.Errorf("%d of %d bytes after %d", done, all, last)
		}
		last, total = done, all
	})
	if err != nil || v.Blocks == 0 || !v.Checksums || v.Segments != 8 || v.Digest != s.Digest {
		t.Errorf("%+v, %v", v, err)
	}
	if total != 2*s.Size || last < total*9/10 {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.engine.Verify(ctx, s.Layer, func(int64, int64) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled verification: %v", err)
	}
}

func TestDetectLooksForTarThenZFileThenLSMT(t *testing.T) {
	for name, want := range map[string]string{
		"lsmt/commit1.lsmt": "", "tar/commit1.zf": CodecZFile, "tar/ustar-lsmt.tar": CodecTar,
		"tar/ustar-zf.tar": CodecTarZFile, "tar/commit1-z-t.tar": CodecTarZFile,
	} {
		b := goldenBytes(t, name)
		got, err := Detect(bytes.NewReader(b), int64(len(b)))
		if got != want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		// A codec that the record names is all that the bytes are taken for.
		for _, codec := range []string{"", CodecZFile, CodecTar, CodecTarZFile} {
			_, err := newRepoWith(t, name, b).OpenReadOnly(t.Context(),
				Stack{VirtualSize: 1 << 20, Layers: []Layer{{Key: name, Codec: codec}}})
			if codec == want && err != nil || codec != want && !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s as %q: %v", name, codec, err)
			}
		}
	}
	for _, b := range [][]byte{nil, []byte("LSMT"), make([]byte, 1024)} {
		_, err := Detect(bytes.NewReader(b), int64(len(b)))
		wantIs(t, err, ErrCorrupt)
	}
	_, err := Unwrap(memSource{bytes.NewReader(nil)}, "brotli")
	wantIs(t, err, ErrInvalid)
}

func newRepoWith(t *testing.T, key string, b []byte) *Engine {
	t.Helper()
	r := newRepo()
	r.blobs[key] = b
	return newEngine(t, r)
}
