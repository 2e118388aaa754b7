package posixstore_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandvol/sandvol/volume/store"
)

// age makes a file look as if it was last written some time ago.
func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	then := time.Now().Add(-d)
	must(t, os.Chtimes(path, then, then))
}

func TestCleanTempRemovesWhatDeadWritersLeft(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	must(t, s.PutIfAbsent(t.Context(), "d/record", []byte("record")))
	tmp := func(name string) string { return filepath.Join(root, ".tmp", name) }
	for _, name := range []string{"OLD", "YOUNG", "CLAIMED.stale"} {
		must(t, os.WriteFile(tmp(name), nil, 0o600))
	}
	// One whose writer died after the link.
	must(t, os.Link(filepath.Join(root, "d/record"), tmp("LINKED")))
	age(t, tmp("OLD"), 2*time.Hour)
	age(t, tmp("LINKED"), 2*time.Hour)
	n, err := s.CleanTemp(t.Context(), time.Hour)
	must(t, err)
	left, err := os.ReadDir(tmp(""))
	must(t, err)
	if n != 3 || len(left) != 1 || left[0].Name() != "YOUNG" {
		t.Errorf("%d removed, left: %v, want 3 and YOUNG", n, left)
	}
	body, err := s.Get(t.Context(), "d/record")
	if err != nil || string(body) != "record" {
		t.Errorf("record: %q, %v", body, err)
	}
	age(t, tmp("YOUNG"), 25*time.Hour)
	open(t, root)
	if _, err := os.Stat(tmp("YOUNG")); err == nil {
		t.Error("New left a temporary file that is more than a day old")
	}
}

// cleaningSource lets the cleaner pass while a writer is at work.
type cleaningSource struct {
	data  []byte
	clean func()
}

func (c cleaningSource) Size() int64 { return int64(len(c.data)) }

func (c cleaningSource) Open() (io.ReadCloser, error) {
	c.clean()
	return io.NopCloser(bytes.NewReader(c.data)), nil
}

func TestCleanedWriterFailsAndMayTryAgain(t *testing.T) {
	s := open(t, t.TempDir())
	src := cleaningSource{[]byte("blob"), func() {
		if n, err := s.CleanTemp(t.Context(), -time.Hour); n != 1 || err != nil {
			t.Errorf("%d cleaned, %v", n, err)
		}
	}}
	for range 2 {
		if err := s.PutBlob(t.Context(), "d/blob", src); err == nil || errors.Is(err, store.ErrSource) {
			t.Errorf("put of a blob whose temporary file was removed: %v", err)
		}
		if _, err := s.Get(t.Context(), "d/blob"); !errors.Is(err, store.ErrNotExist) {
			t.Errorf("get: %v", err)
		}
	}
	must(t, s.PutBlob(t.Context(), "d/blob", store.BytesSource(src.data)))
}
