package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/sandvol/sandvol/volume/store"
)

// source says one size and delivers what its reader has.
type source struct {
	size int64
	open func() (io.ReadCloser, error)
}

func (s source) Size() int64                  { return s.size }
func (s source) Open() (io.ReadCloser, error) { return s.open() }

func from(r io.Reader) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
}

var errMedium = errors.New("medium failed")

func TestCopySourceDeliversExactlyItsSize(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	path := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := store.FileSource(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range map[string]store.Source{
		"bytes": store.BytesSource(data), "file": file,
		"one byte a read": source{100, from(iotest.OneByteReader(bytes.NewReader(data[:100])))},
		"empty":           store.BytesSource(nil),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // it can be read again
				var got bytes.Buffer
				if err := store.CopySource(t.Context(), &got, src); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Bytes(), data[:src.Size()]) {
					t.Errorf("%d bytes, not those of the source", got.Len())
				}
				if name == "one byte a read" {
					break
				}
			}
		})
	}
}

func TestCopySourceNamesWhoFailed(t *testing.T) {
	data := make([]byte, 100)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		w    io.Writer
		src  store.Source
		want []error
	}{
		{"short", t.Context(), io.Discard, source{101, from(bytes.NewReader(data))}, []error{store.ErrSource}},
		{"long", t.Context(), io.Discard, source{99, from(bytes.NewReader(data))}, []error{store.ErrSource}},
		{"read fails", t.Context(), io.Discard, source{100, from(iotest.ErrReader(errMedium))},
			[]error{store.ErrSource, errMedium}},
		{"open fails", t.Context(), io.Discard, source{100, func() (io.ReadCloser, error) { return nil, errMedium }},
			[]error{store.ErrSource, errMedium}},
		{"close fails", t.Context(), io.Discard, source{100, func() (io.ReadCloser, error) {
			return badClose{bytes.NewReader(data)}, nil
		}}, []error{store.ErrSource, errMedium}},
		{"write fails", t.Context(), badWriter{}, store.BytesSource(data), []error{errMedium}},
		{"cancelled", ended, io.Discard, store.BytesSource(data), []error{context.Canceled}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := store.CopySource(c.ctx, c.w, c.src)
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			if len(c.want) == 1 && c.want[0] != store.ErrSource && errors.Is(err, store.ErrSource) {
				t.Errorf("%v blames the source", err)
			}
		})
	}
}

type badClose struct{ io.Reader }

func (badClose) Close() error { return errMedium }

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, errMedium }

func TestFileSourceRefusesWhatIsNoFile(t *testing.T) {
	if _, err := store.FileSource(t.TempDir()); err == nil {
		t.Error("a directory was taken for a source")
	}
	if _, err := store.FileSource(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}
