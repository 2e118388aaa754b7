package volume_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandvol/sandvol/internal/crashfs"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// machineRoom is a machine whose disk can lose power: a node's directory is on it, and in one test the store too.
type machineRoom struct {
	*testing.T
	disk  *crashfs.FS
	c     *cluster
	open  func() (store.Store, error)
	boots int
	// Of the run under way.
	p   *process
	id  string
	s   *volume.Session
	ack acknowledged
}

// acknowledged is what the sandbox was told before the power went.
type acknowledged struct {
	live      content // everything written
	flushed   content // what a flush covers
	published content
	attached  bool
	paused    bool
}

// boot starts the node's process on the disk as it is.
func (r *machineRoom) boot() error {
	r.boots++
	boot := overlaybd.WithBootID(fmt.Sprintf("boot-%d", r.boots))
	r.c.opts = append(r.c.opts[:3:3], volume.WithEngine(boot))
	st, err := r.open()
	if err == nil {
		r.p, err = r.c.start(r.Context(), "a", filepath.Join(r.disk.Dir(), "nodes", "a"), st)
	}
	return err
}

// record returns what the store says about the volume, with all of it checked.
func (r *machineRoom) record() volumeState {
	r.Helper()
	st := must[store.Store](r.T)(r.open())
	return newInspector(r, st).look(r.Context()).volumes[r.id]
}

// life is a sandbox's: attach, write, flush, publish, write, flush, pause. It ends with the first error.
func (r *machineRoom) life() error {
	if err := r.boot(); err != nil {
		return err
	}
	s, err := r.p.team["team"].Attach(r.Context(), r.id, "sb")
	if err != nil {
		return err
	}
	r.s, r.ack.attached = s, true
	for _, step := range []func() error{
		func() error { return r.write(2, 'x') },
		r.flush,
		func() error { return r.write(2, 'y') },
		func() error { return r.write(3, 'y') },
		r.publish,
		func() error { return r.write(2, 'z') },
		func() error { return r.write(4, 'z') },
		r.flush,
		func() error { return r.write(5, 'u') },
		r.pause,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *machineRoom) write(block int, b byte) error {
	_, err := r.s.Device().WriteAt(blockOf(b), blockAt[block])
	if err == nil {
		r.ack.live[block] = b
	}
	return err
}

func (r *machineRoom) flush() error {
	err := r.s.Device().Flush()
	if err == nil {
		r.ack.flushed = r.ack.live
	}
	return err
}

func (r *machineRoom) publish() error {
	c, err := r.s.Seal(r.Context(), volume.NewCut(volume.Crash, false))
	if err == nil {
		r.ack.flushed = r.ack.live // sealed is fsynced
		err = r.s.Publish(r.Context(), c)
	}
	if err == nil {
		r.ack.published = r.ack.live
	}
	return err
}

func (r *machineRoom) pause() error {
	c, err := r.s.Seal(r.Context(), volume.NewCut(volume.Clean, true))
	if err == nil {
		r.ack.flushed = r.ack.live
		err = r.s.Pause(r.Context(), c)
	}
	if err == nil {
		r.ack.published, r.ack.paused = r.ack.live, true
	}
	return err
}

// plausible reports whether a power cut may leave this: in each block what was flushed last, or something written since.
func (r *machineRoom) plausible(got content) bool {
	for i, b := range got {
		if b != r.ack.flushed[i] && b != r.ack.live[i] && !(i == 2 && b == 'y' && r.ack.flushed[i] == 'x') {
			return false
		}
	}
	return true
}

// cut runs a life until operation k from now, cuts the power and brings the node back. It reports whether the life was
// cut.
func (r *machineRoom) cut(k int, seed int64) (interrupted bool) {
	r.ack = acknowledged{live: formatted, flushed: formatted, published: formatted}
	r.s, r.p = nil, nil
	r.disk.StopAt(r.disk.Ops() + k)
	err := r.life()
	interrupted = err != nil
	r.disk.PowerCut(seed)
	if r.p != nil {
		_ = r.p.kill() // its files are of a disk that is gone
	}
	what := fmt.Sprintf("stopped at operation %d, seed %d, answer %v", k, seed, err)
	if err := r.boot(); err != nil {
		r.Fatalf("%s: start again: %v", what, err)
	}
	found, err := r.p.recoverAll(r.Context())
	if err != nil {
		r.Fatalf("%s: recover: %v", what, err)
	}
	r.check(what, found)
	if k%3 == 1 {
		r.goOn(what, found)
	}
	if err := r.p.kill(); err != nil {
		r.Fatalf("%s: close: %v", what, err)
	}
	return interrupted
}

// check compares what is there with what was acknowledged.
func (r *machineRoom) check(what string, found []recoveredDrive) {
	r.Helper()
	v := r.record()
	opened := len(found) == 1 && found[0].session != nil
	switch {
	case v.Content != r.ack.published && !r.plausible(v.Content):
		r.Fatalf("%s: the repository holds %v: published was %v, flushed %v, written %v", what, v.Content, r.ack.published,
			r.ack.flushed, r.ack.live)
	case opened:
		if got := contentOf(r, found[0].session.Device()); !r.plausible(got) {
			r.Fatalf("%s: the drive holds %v: flushed was %v, written %v", what, got, r.ack.flushed, r.ack.live)
		}
		if r.ack.paused {
			r.Fatalf("%s: the volume was paused, and its drive is open", what)
		}
	case r.ack.attached && (v.Owner != "sb" || v.Phase != reservation.Paused || !r.plausible(v.Content)):
		r.Fatalf("%s: the drive is not open, and the volume is %+v: flushed was %v", what, v, r.ack.flushed)
	case !r.ack.attached && v.Content != formatted:
		r.Fatalf("%s: never attached, and the volume is %+v", what, v)
	}
	for _, f := range found {
		if f.session == nil && !f.paused && v.Phase != reservation.Paused {
			r.Fatalf("%s: the journal has a drive that nobody can open, and the volume is %+v", what, v)
		}
	}
}

// goOn lets the sandbox work on from what it finds, and another power cut come after it has paused.
func (r *machineRoom) goOn(what string, found []recoveredDrive) {
	r.Helper()
	var before content
	if len(found) == 1 && found[0].session != nil {
		before = contentOf(r, found[0].session.Device())
	} else {
		before = r.record().Content
	}
	s, err := r.p.team["team"].Attach(r.Context(), r.id, "sb")
	if err != nil {
		r.Fatalf("%s: attach again: %v", what, err)
	}
	if got := contentOf(r, s.Device()); got != before {
		r.Fatalf("%s: attached again: %v, before %v", what, got, before)
	}
	r.s = s
	r.ack = acknowledged{live: before}
	if err := errors.Join(r.write(0, 'n'), r.pause()); err != nil {
		r.Fatalf("%s: go on: %v", what, err)
	}
	r.disk.PowerCut(0)
	if v := r.record(); v.Content != r.ack.live || v.Phase != reservation.Paused {
		r.Fatalf("%s: paused with %v, and after another power cut it is %+v", what, r.ack.live, v)
	}
}

// the node's disk loses power at each of its operations. Every flush that was acknowledged is
// there afterwards, everything published stays so, and the sandbox goes on.
func TestPowerCutAtEveryOperationOfTheNode(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	template, id := volumeOnStore(t)
	forEachCut(t, disk, 1, func(t *testing.T, k int, seed int64) bool {
		raw := cloneStore(t, template)
		open := func() (store.Store, error) { return raw, nil }
		r := &machineRoom{T: t, disk: disk, id: id, c: newCluster(t, raw), open: open}
		return r.cut(k, seed)
	})
}

// store and node's directory are on one disk, as on a single machine. What was acknowledged as published
// has reached the disk, layer before record.
func TestPowerCutOfAMachineWithStoreAndNode(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	template, id := volumeOnStore(t)
	forEachCut(t, disk, 13, func(t *testing.T, k int, seed int64) bool {
		open := func() (store.Store, error) { return posixstore.New(filepath.Join(disk.Dir(), "store")) }
		copyStore(t, template, must[store.Store](t)(open()))
		r := &machineRoom{T: t, disk: disk, id: id, c: newCluster(t, nil), open: open}
		return r.cut(k, seed)
	})
}

// a pin that was handed to the sandbox's drive set is not the node's to undo any more, whatever the power does.
func TestPowerCutAfterAPinWasHandedOver(t *testing.T) {
	disk := crashfs.New(t)
	bubble(t, func(t *testing.T) {
		raw := memstore.New()
		open := func() (store.Store, error) { return raw, nil }
		r := &machineRoom{T: t, disk: disk, c: newCluster(t, raw), open: open}
		ok(t, r.boot())
		m := r.p.team["team"]
		v := create(t, m, volume.CreateOptions{Name: "vol"})
		v = must[volume.Volume](t)(m.Fork(t.Context(), v.ID, volume.ForkOptions{Mode: volume.ReadOnly}))
		reader := must[*volume.Reader](t)(m.Pin(t.Context(), v.ID, "sb"))
		ok(t, reader.Leave())
		disk.PowerCut(0)
		_ = r.p.kill() // its files are of a disk that is gone
		ok(t, r.boot())
		must[[]recoveredDrive](t)(r.p.recoverAll(t.Context()))
		wantErr(t, r.p.team["team"].Delete(t.Context(), v.ID), volume.ErrInUse)
		ok(t, r.p.kill())
	})
}

// forEachCut calls f for every stride-th operation, on an empty disk each time, until nothing is interrupted. Seed 0
// leaves only what was synced; at every fourth cut, or at each when SANDVOL_MODEL_STEPS is set, chance adds some of
// the rest.
func forEachCut(t *testing.T, disk *crashfs.FS, stride int, f func(t *testing.T, k int, seed int64) bool) {
	cuts := 0
	for k := 1; ; k += stride {
		interrupted := false
		seeds := []int64{0}
		if cuts%4 == 0 || os.Getenv("SANDVOL_MODEL_STEPS") != "" {
			seeds = append(seeds, int64(2*k+1))
		}
		for _, seed := range seeds {
			disk.Erase()
			bubble(t, func(t *testing.T) { interrupted = f(t, k, seed) || interrupted })
		}
		if !interrupted {
			break
		}
		cuts++
	}
	t.Logf("%d cuts", cuts)
	if cuts < 10 {
		t.Fatalf("%d cuts only", cuts)
	}
}

// volumeOnStore makes a store with one empty volume.
func volumeOnStore(t *testing.T) (st *memstore.Store, id string) {
	st = memstore.New()
	p := newCluster(t, st).mustStart("maker")
	id = create(t, p.team["team"], volume.CreateOptions{Name: "vol"}).ID
	ok(t, p.repo.Close())
	return st, id
}

func cloneStore(t *testing.T, from store.Store) store.Store {
	to := memstore.New()
	copyStore(t, from, to)
	return to
}

func copyStore(t *testing.T, from, to store.Store) {
	t.Helper()
	for _, e := range must[[]store.Entry](t)(storetest.Collect(from.List(t.Context(), "", "", 0))) {
		body, err := readBlob(t.Context(), from, e.Key, e.Size)
		ok(t, err)
		ok(t, to.PutIfAbsent(t.Context(), e.Key, body))
	}
}
