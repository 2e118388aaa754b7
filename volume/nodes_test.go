package volume_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// what one node does, every other sees at its next call, with no restart, no refresh and
// nothing told from node to node.
func TestEveryNodeSeesEveryChangeAtOnce(t *testing.T) { everyNodeSeesEveryChange(t, newWorld(t)) }

func everyNodeSeesEveryChange(t *testing.T, w *world) {
	t.Helper()
	a, b := w.node("a"), w.node("b")
	same := func(ref string) volume.Volume {
		t.Helper()
		x, y := get(t, a, ref), get(t, b, ref)
		if diff := cmp.Diff(x, y); diff != "" {
			t.Fatalf("the nodes see different volumes: %s", diff)
		}
		return x
	}
	v := create(t, a, volume.CreateOptions{Name: "data"})
	if diff := cmp.Diff(map[string]volume.Volume{v.ID: v}, liveVolumes(t, b)); diff != "" {
		t.Errorf("listed on b: %s", diff)
	}
	s := attach(t, b, "data", "sb")
	if same("data").Reservation.Grant.Node != "b" {
		t.Error("holder")
	}
	ok(t, s.Mounted(t.Context()))
	if same(v.ID).Reservation.Phase != reservation.Mounted {
		t.Error("phase")
	}
	write(t, s.Device(), 8192, 'x')
	publish(t, s)
	reads(t, w.st, same("data"), map[int64]byte{8192: 'x'})
	release(t, s)
	must[volume.Volume](t)(a.Update(t.Context(), "data", volume.Update{Name: new("other"), Size: new(volume.GiB)}))
	if same("other").Size != volume.GiB {
		t.Error("size")
	}
	shot := must[volume.Checkpoint](t)(a.Snapshot(t.Context(), "other", volume.SnapshotOptions{}))
	if diff := cmp.Diff(shot, must[volume.Checkpoint](t)(b.Checkpoint(t.Context(), shot.ID))); diff != "" {
		t.Error(diff)
	}
	ok(t, b.Delete(t.Context(), "other"))
	_, err := a.Get(t.Context(), v.ID)
	wantErr(t, err, volume.ErrNotFound)
	if n := len(liveVolumes(t, a)); n != 0 {
		t.Errorf("%d volumes are listed", n)
	}
}

// a volume that is not complete is seen as uploading from every node, and is neither mounted nor copied.
func TestUploadingIsSeenFromEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.node("b")
		create(t, b, volume.CreateOptions{}) // the hidden volume
		seen := 0
		a := w.on(storetest.Faulty(w.st, func(c storetest.Call) storetest.Fault {
			for id, v := range liveVolumes(t, b) {
				if v.Name != "data" {
					continue
				}
				seen++
				if v.Status != volume.StatusUploading && c.Op.Mutates() {
					t.Errorf("%s before its last write", v.Status)
				}
				if v.Status == volume.StatusUploading {
					wantErr(t, second(b.Attach(context.Background(), id, "sb")), volume.ErrNotReady)
					wantErr(t, second(b.Fork(context.Background(), id, volume.ForkOptions{})), volume.ErrNotReady)
				}
			}
			return storetest.Slow
		}), "a")
		v := create(t, a, volume.CreateOptions{Name: "data"})
		if seen < 3 || get(t, b, v.ID).Status != volume.StatusReady {
			t.Errorf("seen %d times", seen)
		}
	})
}

// while the first empty volume of a size is formatted and uploaded, which takes its time, its hidden volume is
// uploading in the repository, and a second node does not wait for it.
func TestSlowUploadOfAHiddenVolumeHoldsNobodyUp(t *testing.T) {
	w := newWorld(t)
	b := w.node("b")
	var status volume.Status
	a := w.on(storetest.Faulty(w.st, func(c storetest.Call) storetest.Fault {
		if c.Op == storetest.OpPutBlob {
			status = hiddenStatus(t, w)
			create(t, b, volume.CreateOptions{Name: "meanwhile"})
		}
		return storetest.None
	}), "a")
	v := create(t, a, volume.CreateOptions{Name: "data"})
	if status != volume.StatusUploading {
		t.Errorf("the hidden volume was %q", status)
	}
	// The slower one uses what the faster one made.
	if diff := cmp.Diff(get(t, b, "meanwhile").Stack, v.Stack); diff != "" {
		t.Error(diff)
	}
}

func hiddenStatus(t *testing.T, w *world) volume.Status {
	t.Helper()
	key := keysBelow(t, w.st, "v1/volumes/_/")[0]
	body := must[[]byte](t)(w.st.Get(t.Context(), key))
	for _, s := range []volume.Status{volume.StatusUploading, volume.StatusReady} {
		if bytes.Contains(body, []byte(`"status":"`+s+`"`)) {
			return s
		}
	}
	return ""
}

// a node's copies of layers may go at any time, whole or in part. Open drives go on, and the next open fetches again.
func TestLocalCopiesMayBeDeletedAtAnyTime(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	v := written(t, a, "data", 'x')
	layers := filepath.Join(a.Repository().Dir(), "layers")
	s := attach(t, a, "data", "sb")
	ok(t, os.RemoveAll(layers))
	if at(t, s.Device(), 8192) != 'x' {
		t.Error("the open drive reads something else")
	}
	write(t, s.Device(), 12288, 'y')
	publish(t, s)
	ok(t, os.RemoveAll(layers))
	release(t, s)
	release(t, attach(t, a, v.ID, "sb"))
	here := must[[]string](t)(filepath.Glob(filepath.Join(layers, "*")))
	if data := must[[]string](t)(filepath.Glob(filepath.Join(layers, "*.data"))); len(data) != 3 {
		t.Errorf("copies of %d layers", len(data))
	}
	for _, f := range here {
		ok(t, os.Truncate(f, 512)) // what a full disk or a bad one may leave
	}
	s = attach(t, a, v.ID, "sb")
	if x, y := at(t, s.Device(), 8192), at(t, s.Device(), 12288); x != 'x' || y != 'y' {
		t.Errorf("reads %q %q", x, y)
	}
	release(t, s)
}

// A layer whose stored bytes are not what the record says is never shown to anybody.
func TestDamagedLayerIsCorruptAndNeverRead(t *testing.T) {
	w := newWorld(t)
	v := written(t, w.node("a"), "", 'x')
	key := v.Stack.Layers[1].Key
	body := must[[]byte](t)(w.st.Get(t.Context(), key))
	body[len(body)/2] ^= 1
	w.replace(key, body)
	b := w.node("b")
	_, err := b.Attach(t.Context(), v.ID, "sb")
	wantErr(t, err, volume.ErrCorrupt)
	ok(t, w.st.Delete(t.Context(), key))
	_, err = b.Attach(t.Context(), v.ID, "sb")
	wantErr(t, err, volume.ErrCorrupt)
	if got := get(t, b, v.ID).Reservation.Phase; got != reservation.Free {
		t.Errorf("the volume is %s", got)
	}
}

// What is done for a caller who has gone ends with the repository.
func TestCloseEndsFetchesThatNobodyWaitsFor(t *testing.T) {
	w := newWorld(t)
	v := written(t, w.node("a"), "", 'x')
	ctx, cancel := context.WithCancel(t.Context())
	st := &stalled{Store: w.st, begun: cancel}
	b := w.on(st, "b")
	if _, err := b.Attach(ctx, v.ID, "sb"); err == nil {
		t.Fatal("attached")
	}
	ok(t, b.Repository().Close())
	if n := st.reads.Load(); n != 0 {
		t.Errorf("%d reads are under way", n)
	}
}

// what happens to data on each way that a volume takes, as one table. Each step is done on the other node.
func TestDataOnEveryWay(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	for name, way := range map[string]func(*testing.T, *volume.Manager, *volume.Session) volume.Volume{
		"pause": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			pause(t, s)
			return get(t, m, s.Volume())
		},
		"pause, resume": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			pause(t, s)
			release(t, attach(t, m, s.Volume(), s.Sandbox()))
			return get(t, m, s.Volume())
		},
		"release": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			release(t, s)
			return get(t, m, s.Volume())
		},
		"release, reuse": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			release(t, s)
			pause(t, attach(t, m, s.Volume(), "other"))
			return get(t, m, s.Volume())
		},
		"fork while mounted": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			publish(t, s)
			defer pause(t, s)
			return fork(t, m, s.Volume())
		},
		"fork of the paused": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			pause(t, s)
			return fork(t, m, s.Volume())
		},
		"snapshot, restore": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			pause(t, s)
			return copies["restore"](t, m, s.Volume())
		},
		"ro copy": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			pause(t, s)
			return copyOf(t, m, s.Volume(), volume.ReadOnly)
		},
		"fork, then deleted": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			release(t, s)
			child := fork(t, m, s.Volume())
			ok(t, deleteAndCollect(m, s.Volume(), 3))
			return child
		},
		"grown": func(t *testing.T, m *volume.Manager, s *volume.Session) volume.Volume {
			release(t, s)
			return must[volume.Volume](t)(m.Update(t.Context(), s.Volume(), volume.Update{Size: new(volume.GiB)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.node("a"), w.node("b")
			v := written(t, a, "", 'x')
			s := attach(t, a, v.ID, "sb")
			write(t, s.Device(), 12288, 'y')
			ok(t, s.Device().Discard(4096, 512))
			got := way(t, b, s)
			checkLayers(t, w, got.Stack)
			reads(t, w.st, got, map[int64]byte{4096: 0, 8192: 'x', 12288: 'y', volume.MinSize - 512: 0})
		})
	}
}

// no key and no record holds a path of any node, over everything that a repository can hold.
func TestNoRecordHoldsANodePath(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.st = must[store.Store](t)(posixstore.New(filepath.Join(dir, "shared")))
	a, b := w.node("a"), w.node("b")
	v := written(t, a, "data", 'x')
	frozen := readOnly(t, a, 'r')
	s := attach(t, b, "data", "sb")
	write(t, s.Device(), 8192, 'y')
	c := publish(t, s)
	must[volume.Checkpoint](t)(s.Checkpoint(t.Context(), c, volume.SnapshotOptions{Name: "shot"}))
	child := fork(t, b, "data")
	r := pin(t, a, frozen.ID, "reader")
	pause(t, s)
	must[volume.Volume](t)(a.Update(t.Context(), child.ID, volume.Update{Name: new("child")}))
	ok(t, a.Delete(t.Context(), "child"))
	collect(t, a, volume.CollectOptions{})
	paths := []string{a.Repository().Dir(), b.Repository().Dir(), dir, os.TempDir() + "/", "/var/", "/home/"}
	kinds := map[string]bool{}
	for _, key := range keysBelow(t, w.st, "v1/") {
		kind := strings.Split(key, "/")[1]
		kinds[kind] = true
		body := string(must[[]byte](t)(w.st.Get(t.Context(), key)))
		if kind != "layers" && strings.Contains(body, `"/`) {
			t.Errorf("%s holds an absolute path: %s", key, body)
		}
		for _, p := range paths {
			if strings.Contains(body, p) || strings.Contains(key, p) {
				t.Errorf("%s holds the path %s", key, p)
			}
		}
	}
	want := []string{"checkpoints", "format", "layers", "names", "pins", "runs", "volumes"}
	if got := slices.Sorted(maps.Keys(kinds)); !cmp.Equal(want, got) {
		t.Errorf("kinds of objects %q, want %q", got, want)
	}
	ok(t, r.Release(t.Context()))
	reads(t, w.st, get(t, a, v.ID), map[int64]byte{8192: 'y'})
}

// One process uses a node's directory at a time.
func TestDirectoryBelongsToOneProcess(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	cfg := volume.Config{Store: w.st, Dir: m.Repository().Dir(), Node: "a"}
	if _, err := volume.Open(t.Context(), cfg); err == nil || !contains(err.Error(), cfg.Dir, "in use") {
		t.Fatalf("opened twice: %v", err)
	}
	for field, c := range map[string]volume.Config{
		"Store": {Dir: cfg.Dir, Node: "a"}, "Dir": {Store: w.st, Dir: "relative", Node: "a"},
		"Node": {Store: w.st, Dir: cfg.Dir, Node: "a/b"},
	} {
		_, err := volume.Open(t.Context(), c)
		wantErr(t, err, volume.ErrInvalid)
		if !contains(err.Error(), field) {
			t.Errorf("message %q does not name %s", err, field)
		}
	}
	ok(t, m.Repository().Close())
	ok(t, m.Repository().Close())
	_, err := m.Create(t.Context(), volume.CreateOptions{Size: volume.GiB})
	wantErr(t, err, overlaybd.ErrClosed)
}

// A node's directory belongs to one process at a time.
func TestADirectoryBelongsToOneProcess(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	w.nodeAt("a", dir)
	_, err := volume.Open(t.Context(), volume.Config{Store: w.st, Dir: dir, Node: "b"})
	wantErr(t, err, volume.ErrInUse)
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("error does not name the directory: %v", err)
	}
	_, err = w.node("c").Get(t.Context(), strings.Repeat("x", 5000))
	wantErr(t, err, volume.ErrInvalid)
	if n := len(err.Error()); n > 400 {
		t.Errorf("the error has %d bytes", n)
	}
}
