package lsmt

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// goldenSparse unpacks a golden sparse file with its holes where its maker had them. What lies behind tail is one
// extent.
func goldenSparse(t testing.TB, name string, tail int64) *os.File {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(golden(t, "sparse/"+name+".tar")))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r) // holes as zeroes
	must(t, err)
	f, err := os.Create(filepath.Join(memoryDir(t), name))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(int64(len(b))))
	for line := range strings.Lines(string(golden(t, "sparse/sparse1.seekdata"))) {
		var from, to int64
		if _, err := fmt.Sscan(line, &from, &to); err != nil {
			t.Fatal(err)
		}
		_, err := f.WriteAt(b[from:to], from)
		must(t, err)
	}
	if tail < int64(len(b)) {
		_, err := f.WriteAt(b[tail:], tail)
		must(t, err)
	}
	return f
}

func flatSum(t testing.TB, l *Layer, f io.ReaderAt) string {
	t.Helper()
	p := make([]byte, l.VirtualSize)
	v := View{Base: NewIndex(l.Segments), Files: files(f)}
	must(t, v.ReadAt(p, 0))
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

func TestGoldenSparse(t *testing.T) {
	want := goldenContent(t)["sparse/sparse1.tar"]
	f := goldenSparse(t, "sparse1", goldenSize+HeaderSize)
	l, err := OpenSparse(f)
	must(t, err)
	if l.UUID != goldenUUID(0x30) || l.VirtualSize != goldenSize || flatSum(t, l, f) != want {
		t.Errorf("sparse upper %s of %d bytes has another content", l.UUID, l.VirtualSize)
	}
	var out bytes.Buffer
	must(t, Compact(t.Context(), &out, l.Segments, files(f),
		CompactOptions{VirtualSize: l.VirtualSize, UUID: l.UUID, Parent: l.Parent}))
	compacted := openLayerBytes(t, out.Bytes())
	if flatSum(t, compacted.Layer, bytes.NewReader(out.Bytes())) != want {
		t.Error("content differs after compaction")
	}
}

// Sealed in place, a sparse upper is byte for byte what the reference makes of it, but for the padding that it leaves
// as it happens to be.
func TestGoldenSparseSealed(t *testing.T) {
	const end = HeaderSize + goldenSize
	theirs := goldenSparse(t, "sparse1-sealed", end)
	want := readAll(t, theirs.Name())
	layer := openLayerBytes(t, want).Layer
	sum := goldenContent(t)["sparse/sparse1-sealed.tar"]
	if flatSum(t, layer, theirs) != sum {
		t.Error("the sealed golden file has another content")
	}
	f := goldenSparse(t, "sparse1", end)
	for range 2 { // a seal can be repeated
		sealed, err := SealSparse(f)
		must(t, err)
		if flatSum(t, sealed, f) != sum {
			t.Error("content differs after a seal")
		}
	}
	got := readAll(t, f.Name())
	index := end + len(layer.Segments)*entrySize
	trailer := len(want) - HeaderSize
	if len(got) != len(want) || !bytes.Equal(got[:index], want[:index]) || !bytes.Equal(got[trailer:], want[trailer:]) {
		t.Error("sealed files differ")
	}
	if h, err := decodeHeader("trailer", got[trailer:]); err != nil || h.Flags != flagsTrailer|flagSparse {
		t.Errorf("flags of the trailer: %#x, %v", h.Flags, err)
	}
	info, err := f.Stat()
	must(t, err)
	if n := allocated(info); n > 200<<10 {
		t.Errorf("%d bytes on the disk: the holes are gone", n)
	}
	if _, _, err := OpenLog(LogPaths{Data: f.Name(), Index: os.DevNull}, LogOptions{}); err == nil {
		t.Error("a sparse upper opens as a log")
	}
}

func TestSparseRefusesWhatItIsNot(t *testing.T) {
	head := func(flags uint32, size int64) []byte {
		return Header{Flags: flags, VirtualSize: size}.encode()
	}
	sparse := uint32(flagsData | flagSparse)
	for name, b := range map[string][]byte{
		"an append log":       head(flagsData, 4096),
		"no magic":            make([]byte, HeaderSize),
		"short header":        head(sparse, 0)[:HeaderSize-1],
		"shorter than a disk": head(sparse, 4096),
		"an endless disk":     head(sparse, 1<<62),
		"an index file":       head(flagsIndex|flagSparse, 0),
	} {
		path := filepath.Join(t.TempDir(), "f")
		must(t, os.WriteFile(path, b, 0o600))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		if _, err := OpenSparse(f); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
		if _, err := SealSparse(f); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s sealed: %v, want ErrCorrupt", name, err)
		}
		must(t, f.Close())
		if !bytes.Equal(readAll(t, path), b) {
			t.Errorf("%s was changed", name)
		}
	}
}

// FuzzSparse gives OpenSparse the fields of a header, and data at some blocks. What it accepts can be sealed, and is
// the same layer then.
func FuzzSparse(f *testing.F) {
	sparse := Header{Flags: flagsData | flagSparse, VirtualSize: 64 << 10}.encode()[:headerBytes]
	f.Add(sparse, []byte{0, 1, 5, 15}, uint32(64<<10))
	f.Add(sparse, []byte{}, uint32(64<<10+17))
	f.Add(Header{Flags: flagsData | flagSparse, VirtualSize: 5000}.encode()[:headerBytes], []byte{1}, uint32(5000))
	path := filepath.Join(memoryDir(f), "sparse")
	f.Fuzz(func(t *testing.T, head, blocks []byte, room uint32) {
		file, err := os.Create(path)
		must(t, err)
		defer file.Close()
		_, err = file.WriteAt(append(bytes.Clone(head), make([]byte, HeaderSize)...)[:HeaderSize], 0)
		must(t, err)
		for _, i := range blocks {
			_, err := file.WriteAt([]byte{i | 1}, HeaderSize+int64(i)*holeUnit)
			must(t, err)
		}
		must(t, file.Truncate(HeaderSize+int64(room%(1<<20))))
		l, err := OpenSparse(file)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		sealed, err := SealSparse(file)
		must(t, err)
		info, err := file.Stat()
		must(t, err)
		again, err := OpenLayer(file, info.Size())
		must(t, err)
		if a, b := encodeAll(l.Segments), encodeAll(again.Segments); !bytes.Equal(a, b) || sealed.UUID != again.UUID {
			t.Fatalf("sealed as %v, was %v", again.Segments, l.Segments)
		}
	})
}
