package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd"
)

// A device that was killed has records that are in no index yet. They belong to its upper; while it is open, nobody else
// may touch that.
func TestUppersOfDevicesAreReadWithTheirPendingRecords(t *testing.T) {
	e, err := overlaybd.New(overlaybd.Config{Open: func(context.Context, overlaybd.Layer) (overlaybd.Source, error) {
		return nil, errors.New("no layers")
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := e.OpenWritable(t.Context(), dir, overlaybd.Stack{VirtualSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	want := bytes.Repeat([]byte("p"), 4096)
	if _, err := w.WriteAt(want, 8192); err != nil {
		t.Fatal(err)
	}
	data := oneFile(t, dir, "*.data")
	if _, err := openUpper(data, oneFile(t, dir, "*.index")); !errors.Is(err, overlaybd.ErrInUse) {
		t.Errorf("the upper of an open device was read: %v", err)
	}
	// What a kill leaves: the files as they are, and no lock.
	killed := t.TempDir()
	for _, pattern := range []string{"*.data", "*.index", "*.pending"} {
		from := oneFile(t, dir, pattern)
		if err := copyFile(filepath.Join(killed, filepath.Base(from)), from); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	upper := oneFile(t, killed, "*.data") + "," + oneFile(t, killed, "*.index")
	if status := run(t.Context(), []string{"cat", "-off", "8K", "-len", "4K", upper}, &out, os.Stderr); status != exitDone {
		t.Fatalf("status %d", status)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Error("a write that was acknowledged is missing")
	}
}

func oneFile(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func TestThePictureFitsTheTerminal(t *testing.T) {
	m := &mapFacts{VirtualSize: 4096 * 512, Pieces: []piece{
		{0, 1024 * 512, "data", 0}, {1024 * 512, 512, "data", 1}, {2048 * 512, 100 * 512, "zeroes", 1},
	}}
	for _, columns := range []int{1, 20, 80, 300} {
		var out bytes.Buffer
		palette{ascii: true}.draw(&out, m, columns, 4)
		for _, line := range strings.Split(out.String(), "\n")[:4] {
			if len(line) > max(columns, 18) {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
	}
	var out bytes.Buffer
	palette{ascii: true}.draw(&out, m, 8+8, 4)
	want := "000000  ########\n080000  +.......\n100000  0.......\n180000  ........\n"
	if diff := cmp.Diff(want, out.String()[:len(want)]); diff != "" {
		t.Error(diff)
	}
	all := []cell{{size: 512, data: 512}, {size: 512, data: 1}, {size: 512}}
	if colored := (palette{color: true}).line(all); colored != "\x1b[32m█▒\x1b[0m\x1b[90m·\x1b[0m" {
		t.Errorf("colored cells are %q", colored)
	}
}

func TestSizesHaveUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "512": 512, "4K": 4096, "4KiB": 4096, "1m": 1 << 20, "64G": 64 << 30, "2TiB": 2 << 40,
	} {
		var s sizeFlag
		if err := s.Set(text); err != nil || int64(s) != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "-1", "G", "1.5G", "9999999T", "1X"} {
		if err := new(sizeFlag).Set(text); !errors.Is(err, overlaybd.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// brokenWriter fails at once, as a full disk or a reader that went away does.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	image := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(image, bytes.Repeat([]byte{1}, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "layer")
	if status := run(t.Context(), []string{"convert", "-from", "raw", "-o", layer, image}, io.Discard, os.Stderr); status != 0 {
		t.Fatalf("status %d", status)
	}
	for _, args := range [][]string{{"cat", layer}, {"inspect", layer}, {"inspect", "-json", layer}, {"map", layer}} {
		if status := run(t.Context(), args, brokenWriter{}, io.Discard); status != exitFailed {
			t.Errorf("%v: status %d", args, status)
		}
	}
}
