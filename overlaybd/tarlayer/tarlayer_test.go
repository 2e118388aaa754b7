package tarlayer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// golden returns a file that the reference tools wrote.
func golden(t testing.TB, parts ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{".."}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func goldenTar(t testing.TB, name string) []byte { return golden(t, "testdata", "golden", "tar", name) }

func open(b []byte) (Payload, error) { return Open(bytes.NewReader(b), int64(len(b))) }

func mustOpen(t *testing.T, b []byte) Payload {
	t.Helper()
	p, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// write makes an envelope around a layer, written in pieces.
func write(t testing.TB, layer []byte) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "layer.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := NewWriter(f)
	for rest := layer; err == nil && len(rest) > 0; rest = rest[min(1000, len(rest)):] {
		_, err = w.Write(rest[:min(1000, len(rest))])
	}
	if err == nil {
		err = errors.Join(w.Close(), w.WriteHeader(f))
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenEnvelopeIsWrittenAgain(t *testing.T) {
	want := goldenTar(t, "commit1-z-t.tar")
	got := write(t, golden(t, "zfile", "testdata", "golden", "tar", "commit1.zf"))
	if !bytes.Equal(got, want) {
		t.Errorf("other bytes than the reference wrote:\n%s", cmp.Diff(want[:HeaderSize], got[:HeaderSize]))
	}
}

// Those that the reference does not open are whole files of their formats.
func TestGoldenEnvelopesOpen(t *testing.T) {
	zf := golden(t, "zfile", "testdata", "golden", "tar", "commit1.zf")
	bare := golden(t, "lsmt", "testdata", "golden", "lsmt", "commit1.lsmt")
	for name, layer := range map[string][]byte{
		"commit1-z-t.tar": zf, "ustar-zf.tar": zf, "ustar-lsmt.tar": bare,
		"ustar-zf.GNU-not-recognised.tar": zf, "ustar-zf.longpax-ref-fails.tar": zf,
	} {
		b := goldenTar(t, name)
		p := mustOpen(t, b)
		if !bytes.Equal(b[p.Offset:p.Offset+p.Size], layer) {
			t.Errorf("%s: other bytes than the layer at %+v", name, p)
		}
	}
}

// The standard library's reader judges what is written, and its writer's files are read in each of its formats.
func TestEnvelopesAreOrdinaryTarFiles(t *testing.T) {
	for _, n := range []int{0, 1, 511, 512, 513, 70000} {
		layer := bytes.Repeat([]byte{'l'}, n)
		b := write(t, layer)
		if int64(len(b)) != int64(n)+Overhead(int64(n)) {
			t.Errorf("%d bytes in %d, Overhead says %d", n, len(b), Overhead(int64(n)))
		}
		r := tar.NewReader(bytes.NewReader(b))
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if h.Name != "overlaybd.commit" || err != nil || !bytes.Equal(got, layer) {
			t.Errorf("%d bytes come back as %d in %q, %v", n, len(got), h.Name, err)
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("the archive does not end: %v", err)
		}
		if p := mustOpen(t, b); n > 0 && p != (Payload{HeaderSize, int64(n)}) {
			t.Errorf("%d bytes are found at %+v", n, p)
		}
	}
	for _, format := range []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU} {
		name := "layer"
		if format != tar.FormatUSTAR {
			name = strings.Repeat("long/", 60) + name
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: 3, Format: format, Typeflag: tar.TypeReg})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("abc")); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		p := mustOpen(t, b.Bytes())
		if got := b.Bytes()[p.Offset : p.Offset+p.Size]; string(got) != "abc" {
			t.Errorf("%v: layer is %q", format, got)
		}
	}
}

// Octal has no room for 8 GiB: a pax record or base 256 says it. The file is not really there.
func TestLayersAboveEightGiBAreFound(t *testing.T) {
	const n = 9 << 30
	gnu := bytes.NewBuffer(nil)
	if err := tar.NewWriter(gnu).WriteHeader(&tar.Header{Name: "l", Size: n, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	for _, head := range [][]byte{Header(n), gnu.Bytes()} {
		p, err := Open(bytes.NewReader(head), int64(len(head))+n)
		if err != nil || p.Size != n || p.Offset != int64(len(head)) {
			t.Errorf("found at %+v, %v", p, err)
		}
	}
}

func TestDamageInFrontOfTheLayerIsCorruptAndNamed(t *testing.T) {
	whole := goldenTar(t, "commit1-z-t.tar")
	for name, damage := range map[string]func(b []byte) []byte{
		"name":             func(b []byte) []byte { b[3] ^= 1; return b },
		"checksum":         func(b []byte) []byte { b[offChecksum+3] ^= 1; return b },
		"second header":    func(b []byte) []byte { b[1024+offMode+4] ^= 1; return b },
		"pax length":       func(b []byte) []byte { b[512] = '9'; return b },
		"pax end":          func(b []byte) []byte { b[512+13] = 'x'; return b },
		"pax size":         func(b []byte) []byte { b[512+9] = '-'; return b },
		"pax size, longer": func(b []byte) []byte { b[512+8] = '9'; return b },
		"cut in layer":     func(b []byte) []byte { return b[:40000] },
		"cut in headers":   func(b []byte) []byte { return b[:1100] },
		"cut in pax":       func(b []byte) []byte { return b[:515] },
		"empty":            func([]byte) []byte { return nil },
	} {
		_, err := open(damage(bytes.Clone(whole)))
		var c *lsmt.CorruptError
		if !errors.Is(err, lsmt.ErrCorrupt) || !errors.As(err, &c) || c.Part != "tar envelope" {
			t.Errorf("%s: %v", name, err)
		}
	}
	endless := bytes.Repeat(append(write(t, nil)[:512], make([]byte, 512)...), 1)
	if _, err := open(bytes.Repeat(endless, 100)); !errors.Is(err, lsmt.ErrCorrupt) {
		t.Errorf("headers without end: %v", err)
	}
}

func TestAnUnfinishedEnvelopeIsNoTarFile(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("layer")); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteHeader(nil); err == nil {
		t.Error("a header was written before Close")
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if IsTar(b.Bytes()) {
		t.Error("it is taken for a tar file")
	}
	if _, err := w.Write([]byte("more")); err == nil {
		t.Error("a write after Close was taken")
	}
}

func FuzzOpen(f *testing.F) {
	for _, name := range []string{"commit1-z-t.tar", "ustar-zf.longpax-ref-fails.tar", "ustar-zf.GNU-not-recognised.tar"} {
		b := goldenTar(f, name)
		f.Add(b[:min(len(b), 14000)], int64(len(b)))
	}
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		// The checksums keep most changes from being tried; they are made right.
		for at := 0; at+BlockSize <= len(b); at += BlockSize {
			if head := b[at : at+BlockSize]; hasMagic(head) {
				sum, _ := sums(head)
				putNumber(head[offChecksum:offChecksum+8], sum)
			}
		}
		p, err := Open(bytes.NewReader(b), size)
		if err != nil {
			return
		}
		if p.Offset < BlockSize || p.Size < 0 || p.Size > size-p.Offset {
			t.Errorf("%+v in %d bytes", p, size)
		}
	})
}
