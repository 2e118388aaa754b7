package overlaybd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/turbo"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// The golden files were made by the reference tools. Each is kept with the package that it is about.
var goldenDirs = []string{"testdata/golden", "lsmt/testdata/golden", "zfile/testdata/golden"}

// goldenEntry is what the manifest says of a file.
type goldenEntry struct {
	File string     `json:"file"`
	Sum  string     `json:"sha256"`
	Size goldenSize `json:"logical_size"`
	Flat string     `json:"flat_sha256"` // of the content
}

func (g goldenEntry) size() int64 { return int64(g.Size) }

// goldenSize is a size in bytes, or "-" for a file without one, which is 0.
type goldenSize int64

// UnmarshalJSON reads a number or a dash.
func (s *goldenSize) UnmarshalJSON(b []byte) error {
	if string(b) == `"-"` {
		return nil
	}
	return json.Unmarshal(b, (*int64)(s))
}

func goldenManifest(t testing.TB) (entries []goldenEntry) {
	t.Helper()
	if err := json.Unmarshal(goldenBytes(t, "golden.json"), &entries); err != nil {
		t.Fatal(err)
	}
	return entries
}

// sameGolden are files that are kept once, under the other name.
var sameGolden = map[string]string{"turbo/layer1.tar.gz": "ext4/layer1.tar.gz"}

func goldenBytes(t testing.TB, name string) []byte {
	t.Helper()
	if other, ok := sameGolden[name]; ok {
		name = other
	}
	for _, dir := range goldenDirs {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			return b
		}
		if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Fatalf("no golden file %s", name)
	return nil
}

// goldenLayers are the layers that a file's content needs, bottom first, where it is more than the file.
var goldenLayers = map[string][]string{
	"lsmt/L1.lsmt":         {"lsmt/L0.lsmt", "lsmt/L1.lsmt"},
	"lsmt/L2.lsmt":         {"lsmt/L0.lsmt", "lsmt/L1.lsmt", "lsmt/L2.lsmt"},
	"lsmt/up.data":         {"lsmt/L0.lsmt", "lsmt/L1.lsmt", "lsmt/L2.lsmt"},
	"ext4/ext4-layer2.tar": {"ext4/ext4-layer1.tar", "ext4/ext4-layer2.tar"},
}

// goldenStack is a stack of golden files whose codecs are detected.
func goldenStack(t testing.TB, r *repo, size int64, names ...string) Stack {
	t.Helper()
	s := Stack{VirtualSize: size}
	for _, name := range names {
		b := goldenBytes(t, name)
		if path.Ext(name) == ".tar" && strings.HasPrefix(name, "sparse/") {
			b = extract(t, b)
		}
		codec, err := Detect(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r.blobs[name] = b
		s.Layers = append(s.Layers, Layer{Key: name, Size: int64(len(b)), Digest: digestOf(b), Codec: codec})
	}
	return s
}

func digestOf(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// extract returns the file in a tar file, its holes as zeroes.
func extract(t testing.TB, b []byte) []byte {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(b))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func contentSum(t testing.TB, r io.ReaderAt, size int64) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, size)); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Every file of the manifest opens to its recorded content, or fails with the recorded kind of error.
func TestGoldenFilesOpenToTheirRecordedContent(t *testing.T) {
	covered := map[string]bool{}
	for _, g := range goldenManifest(t) {
		covered[g.File] = true
		t.Run(g.File, func(t *testing.T) { checkGolden(t, g) })
	}
	// Nothing lies about that the manifest does not know.
	for _, dir := range goldenDirs {
		err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
			rel := strings.TrimPrefix(filepath.ToSlash(name), dir+"/")
			if err == nil && !d.IsDir() && strings.Contains(rel, "/") && !covered[rel] && !goldenNotes(rel) {
				t.Errorf("%s is in no manifest", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// goldenNotes are files that say something about others.
func goldenNotes(name string) bool {
	switch path.Ext(name) {
	case ".sha256", ".seekdata":
		return true
	}
	return strings.HasPrefix(name, "scripts/")
}

func checkGolden(t *testing.T, g goldenEntry) {
	dir, name := path.Split(g.File)
	switch {
	case path.Ext(name) == ".tsv", path.Ext(name) == ".index", name == "layer2.tar.gz":
		return // what a mounted file system shows; goes with .data; input of the reference's tools
	case path.Ext(name) == ".data":
		checkGoldenLog(t, g)
	case dir == "zfile/":
		checkGoldenZFile(t, g)
	case dir == "turbo/" || strings.HasSuffix(name, ".gz"):
		checkGoldenTurbo(t, g)
	case g.File == "sparse/sparse1.tar":
		checkGoldenSparse(t, g)
	default:
		checkGoldenStack(t, g)
	}
}

func checkGoldenStack(t *testing.T, g goldenEntry) {
	names := goldenLayers[g.File]
	if names == nil {
		names = []string{g.File}
	}
	r := newRepo()
	s := goldenStack(t, r, g.size(), names...)
	e := newEngine(t, r)
	dev, err := e.OpenReadOnly(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if g.Flat != "-" {
		if got := contentSum(t, dev, g.size()); got != g.Flat {
			t.Errorf("content has sha256 %s, want %s", got, g.Flat)
		}
	}
	for _, l := range s.Layers {
		if _, err := e.Verify(t.Context(), l, nil); err != nil {
			t.Error(err)
		}
	}
}

// badZFiles fail: when they are opened, or only when the damaged part is read.
var badZFiles = map[string]struct{ open bool }{
	"zfile/bad-block.zf":          {false},
	"zfile/bad-header-digest.zf":  {true},
	"zfile/bad-trailer-digest.zf": {true}, // the reference does not look
	"zfile/truncated.zf":          {true},
}

func checkGoldenZFile(t *testing.T, g goldenEntry) {
	b := goldenBytes(t, g.File)
	bad, isBad := badZFiles[g.File]
	z, err := zfile.Open(bytes.NewReader(b), int64(len(b)))
	if isBad && bad.open {
		if !errors.Is(err, zfile.ErrCorrupt) {
			t.Errorf("opened: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if isBad {
		if _, err := z.ReadAt(make([]byte, g.size()), 0); !errors.Is(err, zfile.ErrCorrupt) {
			t.Errorf("read: %v", err)
		}
		return
	}
	if got := contentSum(t, z, z.Size()); z.Size() != g.size() || got != g.Flat {
		t.Errorf("%d bytes with sha256 %s, want %d with %s", z.Size(), got, g.size(), g.Flat)
	}
}

// withoutLastLine is the content of a log whose last record was lost.
const withoutLastLine = "5fbe07cffbc229e330de15ff27863a2180356614bd098ab9b93a93760364e5fd"

func checkGoldenLog(t *testing.T, g goldenEntry) {
	base := strings.TrimSuffix(g.File, ".data")
	dir := t.TempDir()
	paths := lsmt.LogPaths{
		Data: filepath.Join(dir, "data"), Index: filepath.Join(dir, "index"), Pending: filepath.Join(dir, "pending"),
	}
	for file, golden := range map[string]string{paths.Data: base + ".data", paths.Index: base + ".index"} {
		if err := os.WriteFile(file, goldenBytes(t, golden), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := newRepo()
	below := goldenStack(t, r, g.size(), goldenLayers[g.File]...)
	base0, err := newEngine(t, r).OpenReadOnly(t.Context(), below)
	if err != nil {
		t.Fatal(err)
	}
	defer base0.Close()
	log, recovery, err := lsmt.OpenLog(paths, lsmt.LogOptions{Tag: uint8(len(below.Layers)), BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	want := g.Flat
	if g.File == "torn/datalost.data" { // the reference refuses it; what is lost is the last record
		want = withoutLastLine
		if recovery.Dropped != 1 {
			t.Errorf("recovery %+v, want one record dropped", recovery)
		}
	}
	view := &lsmt.View{Logs: []*lsmt.Log{log}, Base: base0.base.index, Files: append(base0.base.files(), log.Data())}
	if got := contentSum(t, viewReader{view, g.size()}, g.size()); got != want {
		t.Errorf("content has sha256 %s, want %s", got, want)
	}
}

// viewReader reads a view as a file.
type viewReader struct {
	v    *lsmt.View
	size int64
}

func (r viewReader) ReadAt(p []byte, off int64) (int, error) { return readView(r.v, r.size, p, off) }

// A sparse upper has no index: what it maps is where its file has data.
func checkGoldenSparse(t *testing.T, g goldenEntry) {
	b := extract(t, goldenBytes(t, g.File))
	f, err := os.Create(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(len(b))); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(goldenBytes(t, "sparse/sparse1.seekdata"))) {
		var from, to int64
		if _, err := fmt.Sscan(line, &from, &to); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b[from:to], from); err != nil {
			t.Fatal(err)
		}
	}
	l, err := lsmt.OpenSparse(f)
	if err != nil {
		t.Fatal(err)
	}
	view := &lsmt.View{Base: lsmt.NewIndex(l.Segments), Files: []io.ReaderAt{f}}
	if got := contentSum(t, viewReader{view, g.size()}, g.size()); got != g.Flat {
		t.Errorf("content has sha256 %s, want %s", got, g.Flat)
	}
}

type memBlob = memSource

func goldenTarget(t testing.TB) *turbo.Reader {
	t.Helper()
	return targetOf(t, goldenBytes(t, "turbo/layer1.tar.gz"))
}

func targetOf(t testing.TB, gz []byte) *turbo.Reader {
	t.Helper()
	meta := goldenBytes(t, "turbo/gzip.meta")
	x, err := turbo.OpenIndex(bytes.NewReader(meta), int64(len(meta)))
	if err != nil {
		t.Fatal(err)
	}
	target, err := x.Open(memBlob{bytes.NewReader(gz)})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// turboSource is the golden TurboOCI layer, as a host's Config.Open returns one.
func turboSource(t testing.TB) Source { return turboSourceOn(t, goldenTarget(t)) }

func turboSourceOn(t testing.TB, target *turbo.Reader) Source {
	t.Helper()
	meta, err := Unwrap(memSource{bytes.NewReader(goldenBytes(t, "turbo/ext4.fs.meta"))}, CodecAuto)
	if err != nil {
		t.Fatal(err)
	}
	l, err := turbo.Open(meta, target)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func checkGoldenTurbo(t *testing.T, g goldenEntry) {
	if g.File != "turbo/ext4.fs.meta" {
		target := goldenTarget(t)
		if got := contentSum(t, target, target.Size()); g.Flat != "-" && got != g.Flat {
			t.Errorf("content has sha256 %s, want %s", got, g.Flat)
		}
		return
	}
	e, err := New(Config{Open: func(context.Context, Layer) (Source, error) { return turboSource(t), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Verify(t.Context(), Layer{}, nil); err != nil {
		t.Error(err)
	}
	dev, err := e.OpenReadOnly(t.Context(), Stack{VirtualSize: g.size(), Layers: []Layer{{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	wantExt4(t, dev)
}

// wantExt4 looks for the magic of an ext4 superblock.
func wantExt4(t *testing.T, d Device) {
	t.Helper()
	p := make([]byte, 1024)
	if _, err := d.ReadAt(p, 1024); err != nil || p[56] != 0x53 || p[57] != 0xef {
		t.Errorf("no ext4 superblock: %x, %v", p[56:58], err)
	}
}
