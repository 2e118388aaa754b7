package zfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pattern returns P(seed, 0, n) of the golden files' description: words that are repeated 1, 2, 4 or 8 times.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, 0, n+8)
	for w := uint64(0); len(p) < n; w++ {
		p = binary.LittleEndian.AppendUint64(p, splitmix64(seed<<48^w>>(seed%4)))
	}
	return p[:n]
}

func splitmix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// pack returns content as a ZFile.
func pack(t testing.TB, o Options, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// finalHeader returns f with the header that has the trailer's values.
func finalHeader(t testing.TB, f []byte) []byte {
	t.Helper()
	h, err := decodeHeader(PartTrailer, f[len(f)-HeaderSize:], 0)
	if err != nil {
		t.Fatal(err)
	}
	h.flags = flagHeader | flagData | flagFinal | flagDigest
	return append(h.encode(), f[HeaderSize:]...)
}

func open(t testing.TB, f []byte) *Reader {
	t.Helper()
	r, err := Open(bytes.NewReader(f), int64(len(f)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// unpack returns the content of f.
func unpack(f []byte) ([]byte, error) {
	r, err := Open(bytes.NewReader(f), int64(len(f)))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
}

// golden files were made by the reference tools; golden.json says how and what they hold.
type goldenFile struct {
	File string
	Size int64  `json:"logical_size"`
	Flat string `json:"flat_sha256"`
}

func goldenBytes(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func goldenFiles(t testing.TB) (files []goldenFile) {
	t.Helper()
	if err := json.Unmarshal(goldenBytes(t, "golden.json"), &files); err != nil {
		t.Fatal(err)
	}
	return files
}

func sha(p []byte) string {
	h := sha256.Sum256(p)
	return hex.EncodeToString(h[:])
}
