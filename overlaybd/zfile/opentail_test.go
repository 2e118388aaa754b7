package zfile

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// What is at the end says all that opening needs: the same content as by the header, and nothing in front of the blocks is
// read.
func TestOpenTailReadsGoldenFilesWithoutTheirHeader(t *testing.T) {
	for _, g := range goldenFiles(t) {
		if _, bad := goldenFailures[g.File]; bad {
			continue
		}
		f := goldenBytes(t, g.File)
		want, err := unpack(f)
		if err != nil {
			t.Fatal(err)
		}
		clear(f[:HeaderSize])
		r, err := OpenTail(bytes.NewReader(f), int64(len(f)))
		if err != nil {
			t.Errorf("%s: %v", g.File, err)
			continue
		}
		got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other content, %v", g.File, err)
		}
		if err := r.Verify(t.Context()); err != nil {
			t.Errorf("%s: %v", g.File, err)
		}
	}
}

func TestOpenTailOfDamageIsCorrupt(t *testing.T) {
	good := pack(t, Options{}, pattern(7, 100_000))
	for at := len(good) - HeaderSize - 25*entrySize; at < len(good)-HeaderSize+structSize; at++ {
		if at == len(good)-HeaderSize+offFlags {
			continue // this bit says that there are digests: without it the file is one of before 2023
		}
		f := bytes.Clone(good)
		f[at] ^= 0x10
		if _, err := OpenTail(bytes.NewReader(f), int64(len(f))); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("byte %d of %d: %v", at, len(f), err)
		}
	}
	for n := range len(good) - 1 {
		if n%97 > 2 {
			continue
		}
		if _, err := OpenTail(bytes.NewReader(good[:n]), int64(n)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func FuzzOpenTail(f *testing.F) {
	good := pack(f, Options{}, pattern(7, 10_000))
	f.Add(good)
	f.Add(good[HeaderSize:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := OpenTail(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.NewSectionReader(r, 0, min(r.Size(), 1<<20))) // no panic
	})
}
