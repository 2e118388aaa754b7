package blockcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// damages are what may happen to the files of layer "a", while it is open or not.
var damages = map[string]func(t *testing.T, dir string){
	"a byte of data flips":     func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "a.data"), ChunkSize+5000) },
	"a byte of the map flips":  func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "a.map"), entryAt(1)+40) },
	"the map's header flips":   func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "a.map"), 25) },
	"data is cut":              func(t *testing.T, dir string) { ok(t, os.Truncate(filepath.Join(dir, "a.data"), ChunkSize+77)) },
	"the map is cut":           func(t *testing.T, dir string) { ok(t, os.Truncate(filepath.Join(dir, "a.map"), entryAt(2)-1)) },
	"data is removed":          func(t *testing.T, dir string) { ok(t, os.Remove(filepath.Join(dir, "a.data"))) },
	"the map is removed":       func(t *testing.T, dir string) { ok(t, os.Remove(filepath.Join(dir, "a.map"))) },
	"the directory is removed": func(t *testing.T, dir string) { ok(t, os.RemoveAll(dir)) },
	"data is longer": func(t *testing.T, dir string) {
		ok(t, os.Truncate(filepath.Join(dir, "a.data"), 9*ChunkSize))
	},
	"a power cut lost data and not the map": func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.data")
		info, err := os.Stat(path)
		ok(t, err)
		ok(t, os.Truncate(path, 0))
		ok(t, os.Truncate(path, info.Size()))
	},
	"an entry stands in another's place": func(t *testing.T, dir string) {
		f, err := os.OpenFile(filepath.Join(dir, "a.map"), os.O_RDWR, 0)
		ok(t, err)
		defer f.Close()
		b := make([]byte, entrySize)
		_, err = f.ReadAt(b, entryAt(0))
		ok(t, err)
		_, err = f.WriteAt(b, entryAt(1))
		ok(t, err)
	},
	"the files are of another layer": func(t *testing.T, dir string) {
		other := bytes.Repeat([]byte("x"), 3*ChunkSize+9)
		ok(t, os.WriteFile(filepath.Join(dir, "a.data"), other, 0o600))
	},
}

// whatever happens to the directory, a read gives the layer's bytes.
func TestDamageNeverGivesOtherBytes(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			dir, s := filepath.Join(t.TempDir(), "cache"), newStore(3*ChunkSize+9)
			c := openCache(t, dir)
			l := openLayer(t, c, "a", s)
			check(t, l, s, 0, len(s.content))
			damage(t, dir)
			check(t, l, s, 0, len(s.content))
			check(t, l, s, ChunkSize+4000, 5000)
			ok(t, l.Close())
			l = openLayer(t, c, "a", s)
			check(t, l, s, 0, len(s.content))
			if _, err := os.Stat(dir); err == nil && l.Close() == nil {
				if _, err := os.Stat(filepath.Join(dir, "a.data")); err == nil {
					damage(t, dir)
				}
			}
			check(t, openLayer(t, c, "a", s), s, 0, len(s.content))
		})
	}
}

func TestDamagedChunkAloneIsFetchedAgain(t *testing.T) {
	dir, s := t.TempDir(), newStore(4*ChunkSize)
	c := openCache(t, dir)
	l := openLayer(t, c, "a", s)
	check(t, l, s, 0, len(s.content))
	flip(t, filepath.Join(dir, "a.data"), 2*ChunkSize+9)
	for range 2 {
		check(t, l, s, 0, len(s.content))
	}
	if diff := cmp.Diff([][2]int64{{2 * ChunkSize, ChunkSize}}, s.requests()[1:]); diff != "" {
		t.Error(diff)
	}
	if got := c.Stats(); got.Damaged != 1 || got.Used != 4*ChunkSize {
		t.Errorf("%+v", got)
	}
}

func TestLeftoversAreRemovedAtOpen(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, tempPrefix+"1"), []byte("half"), 0o600))
	c := openCache(t, dir)
	if left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); len(left) > 0 || c.Stats().Used != 0 {
		t.Error(left, c.Stats())
	}
}

func TestLayerOfWhichNothingIsKeptLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	l := openLayer(t, openCache(t, dir), "a", newStore(10))
	ok(t, l.Close())
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Error(left)
	}
}

func digestCheck(s *fakeStore) func(io.Reader) error {
	want := sha256.Sum256(s.content)
	return func(r io.Reader) error {
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			return err
		}
		if got := sum.Sum(nil); !bytes.Equal(got, want[:]) {
			return errors.New("digest is " + hex.EncodeToString(got))
		}
		return nil
	}
}

func TestVerifyFetchesOnceMoreAndThenFails(t *testing.T) {
	c := openCache(t, t.TempDir())
	s := newStore(2*ChunkSize + 5)
	s.mangle = func(p []byte, _, call int64) {
		if call == 1 {
			p[0] ^= 1
		}
	}
	l := openLayer(t, c, "a", s)
	ok(t, l.Verify(t.Context(), digestCheck(s)))
	check(t, l, s, 0, len(s.content))
	wantRequests(t, s, 2)
	bad := newStore(2 * ChunkSize)
	bad.mangle = func(p []byte, _, _ int64) { p[0] ^= 1 }
	err := openLayer(t, c, "b", bad).Verify(t.Context(), digestCheck(bad))
	if err == nil {
		t.Error("no error")
	}
	wantRequests(t, bad, 2)
}

func TestVerifiedLayerIsReplacedByTheSameBytesOnly(t *testing.T) {
	dir, s := t.TempDir(), newStore(3*ChunkSize)
	c := openCache(t, dir)
	l := openLayer(t, c, "a", s)
	ok(t, l.Verify(t.Context(), digestCheck(s)))
	// Checked once: not by the next handle, nor by the next process.
	never := func(io.Reader) error { t.Error("checked again"); return nil }
	ok(t, openLayer(t, c, "a", s).Verify(t.Context(), never))
	flip(t, filepath.Join(dir, "a.data"), ChunkSize+1)
	s.set(func() { s.mangle = func(p []byte, _, _ int64) { p[9] ^= 1 } })
	_, err := l.ReadAt(make([]byte, 10), ChunkSize)
	wantErr(t, err, ErrFinal)
	s.set(func() { s.mangle = nil })
	check(t, l, s, 0, len(s.content))
	ok(t, l.Verify(t.Context(), never))
}

func TestVerifiedIsRememberedUntilAPartIsDropped(t *testing.T) {
	dir, s := t.TempDir(), newStore(3*ChunkSize)
	reopen := func() (*Cache, *Layer) {
		c := openCache(t, dir)
		return c, openLayer(t, c, "a", s)
	}
	c, l := reopen()
	ok(t, l.Verify(t.Context(), digestCheck(s)))
	ok(t, l.Close())
	ok(t, c.Close())
	c, l = reopen()
	ok(t, l.Verify(t.Context(), func(io.Reader) error { t.Error("checked again"); return nil }))
	l.Refetch(0, 1)
	check(t, l, s, 0, len(s.content))
	ok(t, l.Close())
	ok(t, c.Close())
	_, l = reopen()
	checked := false
	ok(t, l.Verify(t.Context(), func(io.Reader) error { checked = true; return nil }))
	if !checked {
		t.Error("a layer with a part that was fetched later was not checked")
	}
}

func TestVerifyNeedsRoomForTheWhole(t *testing.T) {
	s := newStore(4 * ChunkSize)
	c := openCache(t, t.TempDir(), WithBudget(4*ChunkSize))
	other := newStore(2 * ChunkSize)
	o := openLayer(t, c, "other", other)
	check(t, o, other, 0, len(other.content))
	l := openLayer(t, c, "a", s)
	ok(t, l.Verify(t.Context(), digestCheck(s)))
	check(t, o, other, 0, len(other.content)) // there is no room for it: nothing of "a" may go
	check(t, l, s, 0, len(s.content))
	wantRequests(t, s, 1)
	big := newStore(5 * ChunkSize)
	wantErr(t, openLayer(t, c, "big", big).Verify(t.Context(), digestCheck(big)), ErrNoRoom)
	wantRequests(t, big, 0)
}

// mapGolden is the sha256 of a header and an entry, as version 1 writes them.
const mapGolden = "ad2a239c3897d0fbe01daf88859212b2748d2ed6d5c0596046932a85e96657d2"

// The format is read by later versions, and by this one after a restart.
func TestMapGolden(t *testing.T) {
	h := encodeHeader(3*ChunkSize+9, true)
	if diff := cmp.Diff("73616e64766f6c6301000000000004000010000001000000"+"09000c0000000000", hex.EncodeToString(h[:32])); diff != "" {
		t.Error(diff)
	}
	s := sumsOf([]byte("123456789")) // the check value of CRC-32C is e3069283
	b := make([]byte, entrySize)
	encodeEntry(b, 1, &s)
	sum := sha256.Sum256(append(h, b...))
	if diff := cmp.Diff(mapGolden, hex.EncodeToString(sum[:])); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("839206e300000000", hex.EncodeToString(b[4:12])); diff != "" {
		t.Error(diff)
	}
	if _, ok := decodeEntry(b, 2); ok {
		t.Error("an entry is taken for that of another chunk")
	}
}

// Any bytes as map and data: no panic, and the layer's bytes.
func FuzzFilesOfAnyContent(f *testing.F) {
	s := newStore(ChunkSize + 100)
	good := encodeHeader(int64(len(s.content)), true)
	good = append(good, make([]byte, entriesFrom-len(good)+2*entrySize)...)
	for i, sum := range sumsOfChunks(s.content) {
		encodeEntry(good[entryAt(int64(i)):], int64(i), &sum)
	}
	f.Add(good, s.content)
	f.Add(good[:200], s.content[:5000])
	f.Add([]byte{}, []byte("x"))
	f.Fuzz(func(t *testing.T, m, data []byte) {
		dir := t.TempDir()
		ok(t, os.WriteFile(filepath.Join(dir, "a.map"), m, 0o600))
		ok(t, os.WriteFile(filepath.Join(dir, "a.data"), data, 0o600))
		check(t, openLayer(t, openCache(t, dir), "a", s), s, 0, len(s.content))
	})
}
