package overlaybd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// tb is what *testing.T, *testing.B and *rapid.T have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// repo is a repository in memory. Its sources are read beside the caller, as a store's are.
type repo struct {
	mu    sync.Mutex
	blobs map[string][]byte
	opens map[string]int // by key
}

func newRepo() *repo { return &repo{blobs: map[string][]byte{}, opens: map[string]int{}} }

func (r *repo) open(_ context.Context, l Layer) (Source, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.blobs[l.Key]
	if !ok {
		return nil, fmt.Errorf("no layer %q", l.Key)
	}
	r.opens[l.Key]++
	return memSource{bytes.NewReader(b)}, nil
}

type memSource struct{ *bytes.Reader }

func (memSource) Close() error { return nil }

// put stores a layer under a key that names its uuid and content.
func (r *repo) put(b []byte) Layer {
	l, err := lsmt.OpenLayer(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprintf("%s-%d", l.UUID, len(r.blobs))
	codec := ""
	if len(r.blobs)%2 == 1 { // stacks mix layers with and without
		b, codec = pack(b), CodecZFile
	}
	r.blobs[key] = b
	return Layer{Key: key, Size: int64(len(b)), UUID: l.UUID.String(), Codec: codec}
}

func pack(b []byte) []byte {
	var out bytes.Buffer
	w, err := NewZFileWriter(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err)
	}
	return out.Bytes()
}

// publish compacts a sealed layer into the repository.
func (r *repo) publish(t tb, s SealedLayer) Layer {
	t.Helper()
	var b bytes.Buffer
	if err := s.Compact(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return r.put(b.Bytes())
}

// merge replaces layers [from, to) of a stack by one, as a compaction does. One layer alone is what it was.
func (r *repo) merge(t tb, s Stack, from, to int) Stack {
	t.Helper()
	if to-from < 2 {
		return s
	}
	var out bytes.Buffer
	id, err := newEngine(t, r).Merge(context.Background(), s.Layers[from:to], &out)
	if err != nil {
		t.Fatal(err)
	}
	merged := r.put(out.Bytes())
	if merged.UUID != id {
		t.Fatalf("merged layer has uuid %s, Merge says %s", merged.UUID, id)
	}
	layers := append(append([]Layer(nil), s.Layers[:from]...), merged)
	return Stack{VirtualSize: s.VirtualSize, Layers: append(layers, s.Layers[to:]...)}
}

func newEngine(t tb, r *repo, opts ...Option) *Engine {
	t.Helper()
	e, err := New(Config{Open: r.open}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func openDevice(t tb, e *Engine, dir string, s Stack) *Writable {
	t.Helper()
	w, err := e.OpenWritable(context.Background(), dir, s)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func seal(t tb, w *Writable, o SealOptions) []SealedLayer {
	t.Helper()
	layers, err := w.Seal(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return layers
}

// kill stops a device as a SIGKILL of its process would: nothing is flushed, the lock is gone.
func kill(t tb, w *Writable) {
	t.Helper()
	close(w.done)
	w.background.Wait()
	w.closed.Store(true)
	w.close.Do(func() {})
	if err := w.abandon(); err != nil {
		t.Fatal(err)
	}
}

// content reads a whole device.
func content(t tb, d Device) []byte {
	t.Helper()
	p := make([]byte, d.Size())
	if n, err := d.ReadAt(p, 0); n != len(p) || err != nil {
		t.Fatalf("read whole device: %d of %d bytes, %v", n, len(p), err)
	}
	return p
}

// sameContent fails with the first sector that differs.
func wantContent(t tb, d Device, want []byte) {
	t.Helper()
	got := content(t, d)
	if len(got) != len(want) {
		t.Fatalf("size is %d, want %d", len(got), len(want))
	}
	if i := firstDifference(got, want); i >= 0 {
		t.Fatalf("sector %d differs: %x..., want %x...", i/SectorSize, got[i:i+8], want[i:i+8])
	}
}

func firstDifference(a, b []byte) int {
	for i := 0; i < len(a); i += SectorSize {
		if !bytes.Equal(a[i:i+SectorSize], b[i:i+SectorSize]) {
			return i
		}
	}
	return -1
}

// writeSector fills n sectors from sector lba on with a byte.
func writeSectors(t tb, d Device, lba, n int, fill byte) {
	t.Helper()
	p := bytes.Repeat([]byte{fill}, n*SectorSize)
	if _, err := d.WriteAt(p, int64(lba)*SectorSize); err != nil {
		t.Fatal(err)
	}
}

func mustFlush(t tb, d Device) {
	t.Helper()
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
}

func wantIs(t *testing.T, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("error is %v, want one that is %v", err, class)
	}
}

func dirNames(t tb, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// recordedEnd returns the end of the data that the records of an index file point to, in bytes.
func recordedEnd(index []byte) int64 {
	end := int64(lsmt.HeaderSize)
	for b := index[lsmt.HeaderSize:]; len(b) >= 16; b = b[16:] {
		addr, stored := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		if addr&(1<<50-1) == 1<<50-1 {
			continue // padding
		}
		at := int64(stored & (1<<55 - 1))
		if stored&(1<<55) == 0 {
			at += int64(addr >> 50)
		}
		end = max(end, at*SectorSize)
	}
	return end
}

// memoryDir is a directory in memory where the machine has one: what is tested there does not depend on a disk, and
// random tests sync thousands of times.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "overlaybd-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
