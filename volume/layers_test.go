package volume_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/blockcache"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// scattered makes a volume of n published layers, each with segs segments of one sector of noise.
func scattered(t *testing.T, m *volume.Manager, n, segs int) volume.Volume {
	t.Helper()
	v := create(t, m, volume.CreateOptions{Size: volume.GiB})
	s := attach(t, m, v.ID, "writer")
	for i := range n {
		for j := range segs {
			_, err := s.Device().WriteAt(noise(i, j), scatteredAt(i, j))
			ok(t, err)
		}
		publish(t, s)
	}
	release(t, s)
	return get(t, m, v.ID)
}

func scatteredAt(i, j int) int64 { return int64(i)<<26 + int64(j)*2*overlaybd.SectorSize }

func noise(i, j int) []byte {
	p := make([]byte, overlaybd.SectorSize)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(j), byte(j >> 8)}).Read(p)
	return p
}

func readScattered(t *testing.T, dev overlaybd.Device, i, j int) {
	t.Helper()
	p := make([]byte, overlaybd.SectorSize)
	if _, err := dev.ReadAt(p, scatteredAt(i, j)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, noise(i, j)) {
		t.Fatalf("segment %d of layer %d holds something else", j, i)
	}
}

// a node that has nothing of a volume mounts it with the records' requests and one a layer, all of them at
// once, and reads little more than the indexes. Data comes when it is read, and once.
func TestColdMountReadsIndexesOnly(t *testing.T) { coldMount(t, newWorld(t)) }

func coldMount(t *testing.T, w *world) {
	t.Helper()
	const layers, segs = 3, 12_000
	v := scattered(t, w.node("a"), layers, segs)
	b, trace := w.traced("b")
	trace.Reset()
	s := attach(t, b, v.ID, "sb")
	ranges, want := trace.Count(storetest.OpReadRange), len(v.Stack.Layers)
	if ranges != want || trace.Count()-ranges != 4 {
		t.Errorf("%d ranges of %d layers, and %d other requests: %v", ranges, want, trace.Count()-ranges, trace.Calls())
	}
	tails := int64(0)
	for _, l := range v.Stack.Layers {
		if l.Tail == 0 {
			t.Errorf("layer %s does not say how long its tail is", l.Key)
		}
		tails += l.Tail
	}
	local := b.Repository().LocalCache()
	if slack := int64(len(v.Stack.Layers)) * blockcache.ChunkSize; local.Fetched > tails+slack {
		t.Errorf("%d bytes read, the indexes have %d", local.Fetched, tails)
	}
	trace.Reset()
	for range 2 {
		readScattered(t, s.Device(), 0, 100)
		readScattered(t, s.Device(), 0, 101)
	}
	if n := trace.Count(); n != 1 {
		t.Errorf("%d requests to read a range twice: %v", n, trace.Calls())
	}
	release(t, s)
}

// together is a store whose ranged reads wait for each other: none goes on before as many as there are layers have begun.
type together struct {
	store.Store
	all sync.WaitGroup
}

func (s *together) OpenBlob(ctx context.Context, key string) (store.Blob, error) {
	b, err := s.Store.OpenBlob(ctx, key)
	return togetherBlob{b, s}, err
}

type togetherBlob struct {
	store.Blob
	s *together
}

func (b togetherBlob) ReadRange(ctx context.Context, p []byte, off int64) (int, error) {
	b.s.all.Done()
	b.s.all.Wait()
	return b.Blob.ReadRange(ctx, p, off)
}

// An attach that finds nothing on its node takes one round more than the records do: layers do not wait for each other.
func TestLayersAreOpenedAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v := written(t, a, "", 'x')
	for i := range 4 {
		s := attach(t, a, v.ID, "sb")
		write(t, s.Device(), int64(i+10)*8192, 'y')
		release(t, s)
	}
	st := &together{Store: w.st}
	st.all.Add(len(get(t, a, v.ID).Stack.Layers))
	s := attach(t, w.on(st, "b"), v.ID, "sb")
	if at(t, s.Device(), 13*8192) != 'y' {
		t.Error("the drive reads something else")
	}
	release(t, s)
}

// while the store is down, drives read what the node has, and the rest again when it is back.
func TestDriveReadsWhatIsHereWhileTheStoreIsDown(t *testing.T) {
	w := newWorld(t)
	w.opts = append(w.opts, volume.WithEngine(overlaybd.WithReadTimeout(100*time.Millisecond)))
	v := scattered(t, w.node("a"), 1, 30_000)
	b, f := w.faulty("b")
	s := attach(t, b, v.ID, "sb")
	readScattered(t, s.Device(), 0, 5)
	f.plan = storetest.Match("", "", storetest.ErrorBefore)
	readScattered(t, s.Device(), 0, 6)
	_, err := s.Device().ReadAt(make([]byte, overlaybd.SectorSize), scatteredAt(0, 15_000))
	wantErr(t, err, volume.ErrUnavailable)
	f.plan = nil
	for deadline := time.Now().Add(20 * time.Second); ; {
		_, err := s.Device().ReadAt(make([]byte, overlaybd.SectorSize), scatteredAt(0, 15_000))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	readScattered(t, s.Device(), 0, 15_001)
	release(t, s)
}

// a child reads its own references on a node that has nothing, after its parent was deleted and collected.
func TestChildReadsByRangeAfterItsParentIsCollected(t *testing.T) {
	childOfACollectedParent(t, newWorld(t))
}

func childOfACollectedParent(t *testing.T, w *world) {
	t.Helper()
	a := w.node("a")
	v := scattered(t, a, 2, 3000)
	child := fork(t, a, v.ID)
	ok(t, a.Delete(t.Context(), v.ID))
	for range 3 {
		collect(t, a, volume.CollectOptions{})
	}
	s := attach(t, w.node("b"), child.ID, "sb")
	for i := range 2 {
		for j := 0; j < 3000; j += 17 {
			readScattered(t, s.Device(), i, j)
		}
	}
	release(t, s)
}

func TestWarmVolumeNeedsNoRange(t *testing.T) {
	w := newWorld(t)
	v := scattered(t, w.node("a"), 2, 3000)
	b, trace := w.traced("b")
	ok(t, b.Warm(t.Context(), v.ID))
	trace.Reset()
	s := attach(t, b, v.ID, "sb")
	for j := range 3000 {
		readScattered(t, s.Device(), 1, j)
	}
	if n := trace.Count(storetest.OpReadRange); n != 0 {
		t.Errorf("%d ranges were read", n)
	}
	release(t, s)
	wantErr(t, b.Warm(t.Context(), "nothing"), volume.ErrNotFound)
}

// A published layer stays on the node that made it: it reads none of it back.
func TestPublishedLayersAreLocal(t *testing.T) {
	w := newWorld(t)
	a, trace := w.traced("a")
	v := scattered(t, a, 2, 1000)
	s := attach(t, a, v.ID, "sb")
	readScattered(t, s.Device(), 0, 7)
	release(t, s)
	if n := trace.Count(storetest.OpReadRange); n != 0 {
		t.Errorf("%d ranges were read", n)
	}
}

func TestLocalBudgetBoundsWhatIsKept(t *testing.T) {
	const budget = 2 * volume.MiB
	w := newWorld(t)
	v := scattered(t, w.node("a"), 2, 6000) // 3 MiB of noise each
	w.opts = append(w.opts, volume.WithLocalBudget(budget))
	b := w.node("b")
	s := attach(t, b, v.ID, "sb")
	for j := range 6000 {
		readScattered(t, s.Device(), j%2, j)
		if got := b.Repository().LocalCache(); got.Used > budget/10*9 {
			t.Fatalf("%d bytes are kept", got.Used)
		}
	}
	if got := b.Repository().LocalCache(); got.Evicted == 0 || got.Budget <= 0 {
		t.Errorf("%+v", got)
	}
	wantErr(t, b.Warm(t.Context(), v.ID), volume.ErrUnavailable)
	release(t, s)
	_, err := volume.Open(t.Context(), volume.Config{Store: w.st, Dir: t.TempDir(), Node: "c"}, volume.WithLocalBudget(-1))
	wantErr(t, err, volume.ErrInvalid)
	_, err = volume.Open(t.Context(), volume.Config{Store: w.st, Dir: t.TempDir(), Node: "c"}, volume.WithFetchLimit(0))
	wantErr(t, err, volume.ErrInvalid)
}

// Drives are never given up for the budget: a guest gets ENOSPC, and goes on once there is room. What is sealed and what is
// read does not need any.
func TestWritesBeyondTheLocalBudgetAreENOSPC(t *testing.T) {
	const budget = 8 << 20
	w := newWorld(t)
	w.opts = append(w.opts, volume.WithLocalBudget(budget))
	a := w.node("a")
	v := create(t, a, volume.CreateOptions{Size: volume.GiB})
	full, other := attach(t, a, v.ID, "sb"), attach(t, a, fork(t, a, v.ID).ID, "sb2")
	chunk := make([]byte, volume.MiB/2)
	n := 0
	var err error
	for ; n < 2*budget/len(chunk) && err == nil; n++ {
		_, err = full.Device().WriteAt(chunk, int64(n*len(chunk)))
	}
	wantErr(t, err, syscall.ENOSPC)
	if n < budget/len(chunk)/2 {
		t.Errorf("the drive is full after %d bytes", n*len(chunk))
	}
	_, err = other.Device().WriteAt(chunk, 0)
	wantErr(t, err, syscall.ENOSPC)
	ok(t, full.Device().Flush())
	pause(t, full)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = other.Device().WriteAt(chunk, 0); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	release(t, other)
}

// Copies that an older version kept, whole and under their digest, are read and not fetched.
func TestCopiesOfAnOlderVersionAreUsed(t *testing.T) {
	w := newWorld(t)
	v := scattered(t, w.node("a"), 1, 1000)
	dir := filepath.Join(t.TempDir(), "b")
	ok(t, os.MkdirAll(filepath.Join(dir, "layers"), 0o700))
	for _, l := range v.Stack.Layers {
		ok(t, os.WriteFile(filepath.Join(dir, "layers", l.Digest[len("sha256:"):]), w.stored(t, l.Key), 0o600))
	}
	st := storetest.Trace(w.st)
	plain := w.st
	w.st = st
	b := w.nodeAt("b", dir)
	w.st = plain
	s := attach(t, b, v.ID, "sb")
	readScattered(t, s.Device(), 0, 7)
	release(t, s)
	if n := st.Count(storetest.OpReadRange); n != 0 {
		t.Errorf("%d ranges were read", n)
	}
}

func (w *world) stored(t *testing.T, key string) []byte {
	t.Helper()
	_, size := digestOf(t, w.st, key)
	blob, err := w.st.OpenBlob(t.Context(), key)
	ok(t, err)
	defer blob.Close()
	body := make([]byte, size)
	_, err = blob.ReadRange(t.Context(), body, 0)
	ok(t, err)
	return body
}

// unpacked makes the newest layer of a volume one that is stored as it is, without checksums, as other tools store them.
func (w *world) unpacked(t *testing.T, m *volume.Manager, v volume.Volume) overlaybd.Layer {
	t.Helper()
	last := len(v.Stack.Layers) - 1
	l := v.Stack.Layers[last]
	packed := w.stored(t, l.Key)
	src, err := overlaybd.Unwrap(nopCloser{bytes.NewReader(packed)}, overlaybd.CodecZFile)
	ok(t, err)
	body, err := io.ReadAll(io.NewSectionReader(src, 0, src.Size()))
	ok(t, err)
	l.Size, l.Codec, l.Tail = int64(len(body)), "", 0
	l.Digest = fmt.Sprintf("sha256:%x", sha256.Sum256(body))
	w.replace(l.Key, body)
	w.edit(m, v.ID, func(r *record.Volume) { r.Stack.Layers[last].Layer = l })
	return l
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

// A layer without checksums is compared with its digest before its first use, unless the host has said otherwise.
func TestForeignLayerIsCheckedWhole(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v := scattered(t, a, 1, 3000)
	l := w.unpacked(t, a, v)
	b := w.node("b")
	s := attach(t, b, v.ID, "sb")
	readScattered(t, s.Device(), 0, 7)
	release(t, s)
	if got := b.Repository().LocalCache().Fetched; got < l.Size {
		t.Errorf("%d bytes were read of a layer of %d", got, l.Size)
	}
	body := w.stored(t, l.Key)
	body[len(body)/2] ^= 1
	w.replace(l.Key, body)
	_, err := w.node("c").Attach(t.Context(), v.ID, "sb")
	wantErr(t, err, volume.ErrCorrupt)
	w.opts = append(w.opts, volume.WithUncheckedLayers())
	d := w.node("d")
	s = attach(t, d, v.ID, "sb")
	readScattered(t, s.Device(), 0, 7)
	if got := d.Repository().LocalCache().Fetched; got >= l.Size {
		t.Errorf("%d bytes were read of a layer of %d", got, l.Size)
	}
	release(t, s)
}

// A node's disk that cannot keep a published layer does not undo the publish.
func TestPublishDoesNotDependOnTheCache(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v := create(t, a, volume.CreateOptions{})
	s := attach(t, a, v.ID, "sb")
	write(t, s.Device(), 8192, 'x')
	layers := filepath.Join(a.Repository().Dir(), "layers")
	ok(t, os.RemoveAll(layers))
	ok(t, os.WriteFile(layers, nil, 0o600)) // no directory can be made here
	cut, err := s.Seal(t.Context(), volume.NewCut(volume.Clean, true))
	ok(t, err)
	ok(t, s.Release(t.Context(), cut))
	ok(t, os.Remove(layers))
	reads(t, w.st, get(t, a, v.ID), map[int64]byte{8192: 'x'})
}

func TestWarmEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	v := scattered(t, w.node("a"), 1, 1000)
	b := w.node("b")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Warm(ctx, v.ID); !errors.Is(err, context.Canceled) && !errors.Is(err, volume.ErrUnavailable) {
		t.Error(err)
	}
}
