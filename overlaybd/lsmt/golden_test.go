package lsmt

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// The golden files were made by the reference tools; see their entries in golden.json.
const goldenDir = "testdata/golden"

const goldenSize = 1 << 20 // virtual size unless said otherwise

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenContent maps each file to the sha256 of the disk's content.
func goldenContent(t testing.TB) map[string]string {
	t.Helper()
	var entries []struct {
		File string
		Flat string `json:"flat_sha256"`
	}
	if err := json.Unmarshal(golden(t, "golden.json"), &entries); err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range entries {
		m[e.File] = e.Flat
	}
	return m
}

// goldenUUID is the uuid with number n of the golden files.
func goldenUUID(n int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("1000%04x-0000-4000-8000-0000000%05x", n, n))
}

// pattern fills p with P(seed, off) of the golden files' description.
func pattern(p []byte, off, seed uint64) {
	var word [8]byte
	for i := range p {
		pos := off + uint64(i)
		if i == 0 || pos%8 == 0 {
			w := pos / 8
			binary.LittleEndian.PutUint64(word[:], splitmix64(seed<<48^w>>(seed%4)))
		}
		p[i] = word[pos%8]
	}
}

func splitmix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// scriptOp is one line of a script: write a pattern, write zeroes, or trim.
type scriptOp struct {
	kind           string
	off, len, seed uint64
}

func (o scriptOp) bytes() []byte {
	p := make([]byte, o.len)
	if o.kind == "w" {
		pattern(p, o.off, o.seed)
	}
	return p
}

func script(t testing.TB, name string) (ops []scriptOp) {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(golden(t, "scripts/"+name+".txt")))
	for sc.Scan() {
		line := sc.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var o scriptOp
		if _, err := fmt.Sscan(line, &o.kind, &o.off, &o.len); err != nil {
			t.Fatalf("%s: %q: %v", name, line, err)
		}
		if o.kind == "w" {
			fmt.Sscan(line, &o.kind, &o.off, &o.len, &o.seed)
		}
		ops = append(ops, o)
	}
	return ops
}

// apply runs one operation on a log.
func (o scriptOp) apply(l *Log) error {
	if o.kind != "t" {
		return l.Append(o.bytes(), o.off/SectorSize)
	}
	for lba, end := o.off/SectorSize, (o.off+o.len)/SectorSize; lba < end; lba += MaxSegment {
		if err := l.Discard(lba, min(end-lba, MaxSegment)); err != nil {
			return err
		}
	}
	return nil
}

func runScript(t testing.TB, l *Log, name string) {
	t.Helper()
	for _, o := range script(t, name) {
		if err := o.apply(l); err != nil {
			t.Fatal(err)
		}
	}
}

func logPaths(dir string) LogPaths {
	return LogPaths{
		Data: filepath.Join(dir, "data"), Index: filepath.Join(dir, "index"), Pending: filepath.Join(dir, "pending"),
	}
}

func newTestLog(t testing.TB, o LogOptions) *Log {
	t.Helper()
	if o.BootID == "" {
		o.BootID = "boot"
	}
	l, err := CreateLog(logPaths(t.TempDir()), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// openGoldenLog opens a copy of a golden data and index file.
func openGoldenLog(t testing.TB, name string, tag uint8) (*Log, Recovery, error) {
	t.Helper()
	p := logPaths(t.TempDir())
	for path, ext := range map[string]string{p.Data: ".data", p.Index: ".index"} {
		if err := os.WriteFile(path, golden(t, name+ext), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, r, err := OpenLog(p, LogOptions{Tag: tag, BootID: "boot"})
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, r, err
}

// layerFile is a sealed layer with its bytes.
type layerFile struct {
	*Layer
	bytes []byte
}

func openLayerBytes(t testing.TB, b []byte) layerFile {
	t.Helper()
	l, err := OpenLayer(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return layerFile{l, b}
}

// viewOf makes a view of layers, bottom first, with at most one log on top.
func viewOf(t testing.TB, log *Log, layers ...layerFile) *View {
	t.Helper()
	v := &View{}
	var lists [][]Segment
	for i, l := range layers {
		v.Files = append(v.Files, bytes.NewReader(l.bytes))
		lists = append(lists, tagged(l.Segments, uint8(i)))
	}
	merged, err := Merge(lists)
	if err != nil {
		t.Fatal(err)
	}
	v.Base = NewIndex(merged)
	if log != nil {
		v.Logs = []*Log{log}
		v.Files = append(v.Files, log.Data())
	}
	return v
}

func tagged(segs []Segment, tag uint8) []Segment {
	out := make([]Segment, len(segs))
	for i, s := range segs {
		out[i] = s.WithTag(tag)
	}
	return out
}

func contentSum(t testing.TB, v *View, size int64) string {
	t.Helper()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), size-off)]
		if err := v.ReadAt(p, off); err != nil {
			t.Fatal(err)
		}
		h.Write(p)
	}
	return sum(h)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func wantSum(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("content has sha256 %s, want %s", got, want)
	}
}

func TestGoldenLayersOpen(t *testing.T) {
	want := goldenContent(t)
	read := func(name string) layerFile { return openLayerBytes(t, golden(t, "lsmt/"+name+".lsmt")) }
	l0, l1, l2 := read("L0"), read("L1"), read("L2")
	up, _, err := openGoldenLog(t, "lsmt/up", 3)
	if err != nil {
		t.Fatal(err)
	}
	stacks := map[string]*View{"L1": viewOf(t, nil, l0, l1), "L2": viewOf(t, nil, l0, l1, l2)}
	for _, name := range []string{
		"sealed1", "commit-of-sealed1", "commit1", "commit1-nouuid", "empty", "L0", "merged012", "flat-up",
	} {
		stacks[name] = viewOf(t, nil, read(name))
	}
	for name, v := range stacks {
		t.Run(name, func(t *testing.T) {
			wantSum(t, contentSum(t, v, goldenSize), want["lsmt/"+name+".lsmt"])
		})
	}
	t.Run("up", func(t *testing.T) {
		wantSum(t, contentSum(t, viewOf(t, up, l0, l1, l2), goldenSize), want["lsmt/up.data"])
	})
	if l1.Parent != l0.UUID || l2.Parent != l1.UUID || up.Parent() != l2.UUID {
		t.Error("uuids do not chain")
	}
	if c := read("commit1"); c.UserTag != "commit message" || c.UUID != goldenUUID(1) || c.VirtualSize != goldenSize {
		t.Errorf("commit1: tag %q, uuid %s, size %d", c.UserTag, c.UUID, c.VirtualSize)
	}
}

func TestGoldenLogsOpenAndRecover(t *testing.T) {
	const withoutLastLine = "5fbe07cffbc229e330de15ff27863a2180356614bd098ab9b93a93760364e5fd"
	want := goldenContent(t)
	for _, c := range []struct {
		name string
		sum  string
		r    Recovery
	}{
		{"lsmt/rw1", want["lsmt/rw1.data"], Recovery{}},
		{"torn/headeronly", want["torn/headeronly.data"], Recovery{}},
		{"torn/partial", withoutLastLine, Recovery{Torn: 7}},
		{"torn/datalost", withoutLastLine, Recovery{Dropped: 1}},
		{"torn/unaligned", want["torn/unaligned.data"], Recovery{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, r, err := openGoldenLog(t, c.name, 0)
			if err != nil {
				t.Fatal(err)
			}
			if r != c.r {
				t.Errorf("recovery %+v, want %+v", r, c.r)
			}
			wantSum(t, contentSum(t, viewOf(t, l), goldenSize), c.sum)
			// The next write must land on a sector of its own.
			p := bytes.Repeat([]byte{0xa5}, 4096)
			if err := l.Append(p, 3); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4096)
			if err := viewOf(t, l).ReadAt(got, 3*SectorSize); err != nil || !bytes.Equal(got, p) {
				t.Errorf("read after recovery and write: %v", err)
			}
		})
	}
}

func TestGoldenBigOffsets(t *testing.T) {
	v := viewOf(t, nil, openLayerBytes(t, golden(t, "lsmt/big.lsmt")))
	for _, o := range script(t, "big") {
		want := o.bytes()
		got := make([]byte, o.len)
		if err := v.ReadAt(got, int64(o.off)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("wrong content at %d", o.off)
		}
	}
}

// compacted returns what Compact writes for one sealed or live set of segments.
func compacted(t testing.TB, segs []Segment, files []io.ReaderAt, o CompactOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Compact(t.Context(), &b, segs, files, o); err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != CompactSize(segs) {
		t.Errorf("CompactSize says %d, Compact wrote %d bytes", CompactSize(segs), b.Len())
	}
	return b.Bytes()
}

func logSegments(l *Log) []Segment { return l.live.appendTo(nil) }

func wantBytes(t *testing.T, got []byte, name string) {
	t.Helper()
	want := golden(t, name)
	if bytes.Equal(got, want) {
		return
	}
	for i := 0; i < min(len(got), len(want)); i++ {
		if got[i] != want[i] {
			t.Errorf("%s: first difference at byte %d of %d: %#x, want %#x", name, i, len(want), got[i], want[i])
			return
		}
	}
	t.Errorf("%s: %d bytes, want %d", name, len(got), len(want))
}

// wantFile compares a file on disk with a golden one.
func wantFile(t *testing.T, path, name string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantBytes(t, got, name)
}

func TestGoldenLogBytes(t *testing.T) {
	l := newTestLog(t, LogOptions{UUID: goldenUUID(1), VirtualSize: goldenSize})
	runScript(t, l, "s1")
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	wantFile(t, l.paths.Data, "lsmt/rw1.data")
	wantFile(t, l.paths.Index, "lsmt/rw1.index")

	up := newTestLog(t, LogOptions{UUID: goldenUUID(0x13), Parent: goldenUUID(0x12), VirtualSize: goldenSize, Tag: 3})
	runScript(t, up, "s4")
	if err := up.Sync(); err != nil {
		t.Fatal(err)
	}
	wantFile(t, up.paths.Data, "lsmt/up.data")
	wantFile(t, up.paths.Index, "lsmt/up.index")

	if _, err := l.Seal(); err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(l.paths.Data)
	if err != nil {
		t.Fatal(err)
	}
	// The reference leaves uninitialised memory between the index and the trailer; we write zeroes.
	const indexEnd, trailer = 79872 + 13*16, 84480 - HeaderSize
	copy(sealed[indexEnd:trailer], golden(t, "lsmt/sealed1.lsmt")[indexEnd:trailer])
	wantBytes(t, sealed, "lsmt/sealed1.lsmt")
}

func TestGoldenCompactedBytes(t *testing.T) {
	for _, c := range []struct {
		name, script string
		size         int64
		o            CompactOptions
	}{
		{"commit1", "s1", goldenSize, CompactOptions{UUID: goldenUUID(1), UserTag: "commit message"}},
		{"commit1-nouuid", "s1", goldenSize, CompactOptions{}},
		{"empty", "", goldenSize, CompactOptions{UUID: goldenUUID(3)}},
		{"L0", "s1", goldenSize, CompactOptions{UUID: goldenUUID(1)}},
		{"L1", "s2", goldenSize, CompactOptions{UUID: goldenUUID(0x11), Parent: goldenUUID(1)}},
		{"L2", "s3", goldenSize, CompactOptions{UUID: goldenUUID(0x12), Parent: goldenUUID(0x11)}},
		{"big", "big", 4 << 40, CompactOptions{UUID: goldenUUID(0x21)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newTestLog(t, LogOptions{VirtualSize: c.size})
			if c.script != "" {
				runScript(t, l, c.script)
			}
			c.o.VirtualSize = c.size
			wantBytes(t, compacted(t, logSegments(l), []io.ReaderAt{l.Data()}, c.o), "lsmt/"+c.name+".lsmt")
		})
	}
}

func TestGoldenLongRuns(t *testing.T) {
	const size = 64 << 20
	l := newTestLog(t, LogOptions{VirtualSize: size})
	runScript(t, l, "long")
	b := compacted(t, logSegments(l), []io.ReaderAt{l.Data()},
		CompactOptions{UUID: goldenUUID(0x20), VirtualSize: size})
	h := sha256.New()
	h.Write(b)
	wantSum(t, sum(h), strings.Fields(string(golden(t, "lsmt/long.lsmt.sha256")))[0])
	wantSum(t, contentSum(t, viewOf(t, nil, openLayerBytes(t, b)), size), goldenContent(t)["lsmt/long.lsmt.zf"])
}

// The tags of merged layers stay on disk and keep neighbours apart: 0 is the topmost source.
func TestGoldenMergedBytes(t *testing.T) {
	var lists [][]Segment
	var files []io.ReaderAt // topmost first
	for i, name := range []string{"L2", "L1", "L0"} {
		l := openLayerBytes(t, golden(t, "lsmt/"+name+".lsmt"))
		lists = append([][]Segment{tagged(l.Segments, uint8(i))}, lists...)
		files = append(files, bytes.NewReader(l.bytes))
	}
	merged, err := Merge(lists)
	if err != nil {
		t.Fatal(err)
	}
	wantBytes(t, compacted(t, merged, files, CompactOptions{VirtualSize: goldenSize}), "lsmt/merged012.lsmt")

	up, _, err := openGoldenLog(t, "lsmt/up", 3)
	if err != nil {
		t.Fatal(err)
	}
	flat := Overlay(logSegments(up), merged)
	wantBytes(t, compacted(t, flat, append(files, up.Data()),
		CompactOptions{VirtualSize: goldenSize, Parent: up.Parent()}), "lsmt/flat-up.lsmt")
}

func TestGoldenCompactOfSealed(t *testing.T) {
	sealed := openLayerBytes(t, golden(t, "lsmt/sealed1.lsmt"))
	wantBytes(t, compacted(t, sealed.Segments, []io.ReaderAt{bytes.NewReader(sealed.bytes)},
		CompactOptions{VirtualSize: sealed.VirtualSize}), "lsmt/commit-of-sealed1.lsmt")
}
