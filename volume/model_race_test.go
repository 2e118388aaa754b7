package volume_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// raceKit is three nodes on one store, and what a race has at hand. prepare runs once: every schedule starts from a
// copy of the store that it leaves.
type raceKit struct {
	*testing.T
	ctx      context.Context
	c        *cluster
	sched    *scheduler
	nodes    [3]*volume.Manager
	repos    [3]*volume.Repository
	template store.Store
	look     *inspector
	id       string // of the volume that it is about
	other    string

	given []int // the schedule under way
	raceState
}

// raceState is what one schedule leads to.
type raceState struct {
	sessions [3]*volume.Session
	readers  [3]*volume.Reader
	live     content // of a session that was opened before the race
	made     [3]string
	err      [3]error
}

// actor is an operation on the node of the given number.
type actor func(k *raceKit, node int) error

// race is a few operations that meet.
type race struct {
	name     string
	preempts int // 0: 1
	// order is a schedule that is known to matter, run before all others.
	order   []int
	prepare func(*raceKit)
	// begin prepares one schedule: sessions are opened here.
	begin func(*raceKit)
	do    []actor
	check func(*raceKit, seen)
}

func (k *raceKit) fail(format string, args ...any) {
	k.Helper()
	k.Fatalf("schedule %v, answers %v: %s", k.given, k.err, fmt.Sprintf(format, args...))
}

func newRaceKit(t *testing.T) *raceKit {
	k := &raceKit{T: t, ctx: t.Context(), sched: &scheduler{}, template: memstore.New()}
	k.c = newCluster(t, k.template)
	k.c.opts = append(k.c.opts, volume.WithCompaction(3, 2))
	k.sched.open(true, k.template)
	for i := range k.nodes {
		name := nodeName(i)
		cfg := volume.Config{Store: heldStore{k.sched, i}, Dir: filepath.Join(k.c.dir, name), Node: name}
		r, err := volume.Open(k.ctx, cfg, k.c.opts...)
		ok(t, err)
		t.Cleanup(func() { ok(t, r.Close()) })
		k.repos[i] = r
		k.nodes[i] = must[*volume.Manager](t)(r.Tenant("team"))
	}
	return k
}

// run runs one schedule.
func (r race) run(k *raceKit, given []int) []choice {
	raw := cloneStore(k.T, k.template)
	k.given, k.raceState = given, raceState{}
	k.sched.open(true, raw)
	if r.begin != nil {
		r.begin(k)
	}
	k.sched.open(false, raw)
	var actors []func()
	for i, do := range r.do {
		actors = append(actors, func() { k.err[i] = do(k, i) })
	}
	made := k.sched.schedule(given, actors...)
	k.given = actorsOf(made)
	k.sched.open(true, raw)

	k.look.begin(k, raw)
	now := k.look.look(k.ctx)
	r.check(k, now)
	k.after()
	return made
}

// after ends what is open, and lets the collector show whether anything is missing.
func (k *raceKit) after() {
	k.Helper()
	for i := range k.nodes {
		if s := k.sessions[i]; s != nil && s.Err() == nil {
			if c, err := s.Seal(k.ctx, volume.NewCut(volume.Clean, true)); err == nil {
				ok(k.T, s.Release(k.ctx, c))
			}
		}
		if r := k.readers[i]; r != nil {
			ok(k.T, r.Release(k.ctx))
		}
	}
	for i := range 2 {
		if err := k.collect(i); err != nil {
			k.fail("collect: %v", err)
		}
	}
	k.look.look(k.ctx)
}

func (k *raceKit) collect(i int) error {
	age := time.Duration(0)
	_, err := k.repos[i].Collect(k.ctx, volume.CollectOptions{MinAge: &age, TakeOver: true, DropUnusedBases: true})
	return err
}

// begin points an inspector at another store. What it knows of layers stays true: their keys are random.
func (i *inspector) begin(t failer, raw store.Store) {
	fresh := newInspector(t, raw)
	fresh.checked, fresh.contents = i.checked, i.contents
	*i = *fresh
}

// two operations of two nodes meet at every pair of requests. Whatever the order,
// I1, I2, I4, I5 and I8 hold, and the answers agree with what there is.
func TestOperationsThatMeet(t *testing.T) {
	t.Parallel()
	for _, r := range races {
		t.Run(r.name, func(t *testing.T) {
			runs, left := 0, 0
			bubble(t, func(t *testing.T) {
				k := newRaceKit(t)
				k.look = newInspector(t, k.template)
				r.prepare(k)
				r.run(k, r.order)
				runs, left = explore(t, max(r.preempts, 1), func(given []int) []choice { return r.run(k, given) })
			})
			t.Logf("%d schedules, %d left out", runs, left)
			if runs < 10 {
				t.Errorf("%d schedules only", runs)
			}
		})
	}
}

func (k *raceKit) vol() {
	k.Helper()
	k.id = create(k.T, k.nodes[0], volume.CreateOptions{Name: "vol"}).ID
}

func (k *raceKit) written() {
	k.Helper()
	k.vol()
	s := attach(k.T, k.nodes[0], k.id, "sb")
	_, err := s.Device().WriteAt(blockOf('x'), blockAt[2])
	ok(k.T, err)
	release(k.T, s)
}

// layered makes a volume whose stack is shortened by the next attach.
func (k *raceKit) layered() {
	k.Helper()
	k.vol()
	s := attach(k.T, k.nodes[0], k.id, "sb")
	for i := range byte(4) {
		_, err := s.Device().WriteAt(blockOf('u'+i), blockAt[2])
		ok(k.T, err)
		publish(k.T, s)
	}
	release(k.T, s)
}

func (k *raceKit) immutable() {
	k.Helper()
	k.written()
	v := must[volume.Volume](k.T)(k.nodes[0].Fork(k.ctx, k.id, volume.ForkOptions{Mode: volume.ReadOnly}))
	ok(k.T, k.nodes[0].Delete(k.ctx, k.id))
	k.id = v.ID
}

// opened attaches the volume on the first node and writes.
func (k *raceKit) opened() {
	k.Helper()
	k.sessions[0] = attach(k.T, k.nodes[0], k.id, "sb")
	if _, err := k.sessions[0].Device().WriteAt(blockOf('y'), blockAt[3]); err != nil {
		k.Fatal(err)
	}
	k.live = contentOf(k, k.sessions[0].Device())
}

// turns gives an actor a number of requests.
func turns(actor, n int) []int { return slices.Repeat([]int{actor}, n) }

func attachAs(sandbox string) actor {
	return func(k *raceKit, i int) (err error) {
		k.sessions[i], err = k.nodes[i].Attach(k.ctx, k.id, sandbox)
		return err
	}
}

func createAs(name, token string) actor {
	return func(k *raceKit, i int) error {
		v, err := k.nodes[i].Create(k.ctx, volume.CreateOptions{Name: name, Token: token, Size: volume.MinSize})
		k.made[i] = v.ID
		return err
	}
}

func renameTo(name string, other bool) actor {
	return func(k *raceKit, i int) error {
		id := k.id
		if other {
			id = k.other
		}
		_, err := k.nodes[i].Update(k.ctx, id, volume.Update{Name: &name})
		return err
	}
}

func forkIt(k *raceKit, i int) error {
	v, err := k.nodes[i].Fork(k.ctx, k.id, volume.ForkOptions{})
	k.made[i] = v.ID
	return err
}

func deleteIt(k *raceKit, i int) error { return k.nodes[i].Delete(k.ctx, k.id) }

func pinIt(k *raceKit, i int) (err error) {
	k.readers[i], err = k.nodes[i].Pin(k.ctx, k.id, "sb")
	return err
}

func collectIt(k *raceKit, i int) error { return k.collect(i) }

// deleteThenCollect deletes the volume and collects until its layers are gone.
func deleteThenCollect(k *raceKit, i int) error {
	return errors.Join(deleteIt(k, i), k.collect(i), k.collect(i))
}

// refusedAtMost passes a refusal of the class over.
func refusedAtMost(err, class error) error {
	if errors.Is(err, class) {
		return nil
	}
	return err
}

// leaveIt pauses or releases the first node's session.
func leaveIt(pause bool) actor {
	return func(k *raceKit, i int) error {
		s := k.sessions[i]
		c, err := s.Seal(k.ctx, volume.NewCut(volume.Clean, true))
		if err != nil {
			return err
		}
		k.sessions[i] = nil
		if pause {
			return s.Pause(k.ctx, c)
		}
		return s.Release(k.ctx, c)
	}
}

func publishIt(k *raceKit, i int) error {
	c, err := k.sessions[i].Seal(k.ctx, volume.NewCut(volume.Crash, false))
	if err != nil {
		return err
	}
	return k.sessions[i].Publish(k.ctx, c)
}

// oneWins checks that one of the two succeeded and that the other was refused with the class.
func oneWins(class error) func(*raceKit, seen) {
	return func(k *raceKit, _ seen) {
		k.Helper()
		won := slices.Index(k.err[:2], nil)
		if won < 0 || !errors.Is(k.err[1-won], class) {
			k.fail("want one success and one %v", class)
		}
	}
}

// childIsWhole checks that a copy that was acknowledged holds what its source held.
func childIsWhole(k *raceKit, now seen) {
	k.Helper()
	if k.err[1] != nil || k.err[2] != nil {
		k.fail("the other side failed")
	}
	want := formatted
	want[2] = 'x'
	v, there := now.volumes[k.made[0]]
	switch {
	case k.err[0] != nil && !errors.Is(k.err[0], volume.ErrNotFound):
		k.fail("the copy failed otherwise than by its source being gone")
	case k.err[0] == nil && (!there || v.Content != want):
		k.fail("the copy is %+v", v)
	}
}

var races = []race{
	{name: "attach and attach", preempts: 3, prepare: (*raceKit).vol,
		do: []actor{attachAs("sb1"), attachAs("sb2")}, check: oneWins(volume.ErrConflict)},
	{name: "attach of one sandbox on two nodes", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{attachAs("sb1"), attachAs("sb1")}, check: oneWins(volume.ErrConflict)},
	{name: "delete and attach", preempts: 3, prepare: (*raceKit).vol,
		do: []actor{deleteIt, attachAs("sb")},
		check: func(k *raceKit, now seen) {
			if _, there := now.volumes[k.id]; (k.err[0] == nil) == (k.err[1] == nil) || there != (k.err[1] == nil) {
				k.fail("volume there %t", there)
			}
		}},
	{name: "delete and pin", preempts: 2, prepare: (*raceKit).immutable,
		do: []actor{deleteIt, pinIt},
		check: func(k *raceKit, now seen) {
			_, there := now.volumes[k.id]
			switch {
			case k.err[1] == nil && (!there || k.err[0] == nil):
				k.fail("mounted, and the volume is there %t", there)
			case k.err[1] != nil && (!errors.Is(k.err[1], volume.ErrNotFound) || there || len(now.pins) > 0):
				k.fail("not mounted, and the volume is there %t with pins %v", there, now.pins)
			}
		}},
	{name: "delete, delete and pin", preempts: 3, prepare: (*raceKit).immutable, do: []actor{deleteIt, pinIt, deleteIt},
		// One lists the pins before, the other while the volume is deleting; then comes the pin, and then both go on.
		order: slices.Concat(turns(2, 3), turns(0, 6), turns(1, 20), turns(2, 5), turns(0, 20)),
		check: func(k *raceKit, now seen) {
			if _, there := now.volumes[k.id]; k.err[1] == nil && !there {
				k.fail("mounted, and the volume is gone")
			}
		}},
	{name: "fork, delete with a collection, and an older collection",
		// The older one has listed the volumes and not yet read them.
		order:   slices.Concat(turns(0, 18), turns(1, 40), turns(2, 100)),
		prepare: (*raceKit).written,
		do: []actor{func(k *raceKit, i int) error {
			return refusedAtMost(k.collect(i), volume.ErrConflict) // a run that was overtaken deletes nothing
		}, forkIt, func(k *raceKit, i int) error {
			return errors.Join(deleteIt(k, i), refusedAtMost(k.collect(i), volume.ErrConflict))
		}},
		check: func(k *raceKit, now seen) {
			if k.err[0] != nil || k.err[2] != nil || k.err[1] == nil && now.volumes[k.made[1]].Content[2] != 'x' {
				k.fail("the copy is %+v", now.volumes[k.made[1]])
			}
		}},
	{name: "fork and delete with collection", prepare: (*raceKit).written,
		do: []actor{forkIt, deleteThenCollect}, check: childIsWhole},
	{name: "snapshot and delete with collection", prepare: (*raceKit).written,
		do: []actor{func(k *raceKit, i int) error {
			_, err := k.nodes[i].Snapshot(k.ctx, k.id, volume.SnapshotOptions{})
			return err
		}, deleteThenCollect},
		check: func(k *raceKit, now seen) {
			if k.err[1] != nil || (k.err[0] == nil) != (len(now.checkpoints) == 1) {
				k.fail("checkpoints %v", now.checkpoints)
			}
		}},
	{name: "restore and delete of the checkpoint with collection", prepare: func(k *raceKit) {
		k.written()
		c := must[volume.Checkpoint](k.T)(k.nodes[0].Snapshot(k.ctx, k.id, volume.SnapshotOptions{}))
		ok(k.T, k.nodes[0].Delete(k.ctx, k.id))
		k.id = c.ID
	}, do: []actor{func(k *raceKit, i int) error {
		v, err := k.nodes[i].Restore(k.ctx, k.id, volume.ForkOptions{})
		k.made[i] = v.ID
		return err
	}, func(k *raceKit, i int) error {
		return errors.Join(k.nodes[i].DeleteCheckpoint(k.ctx, k.id), k.collect(i), k.collect(i))
	}}, check: childIsWhole},
	{name: "create of an empty volume and collection of the base", prepare: func(k *raceKit) {
		k.vol()
		ok(k.T, k.nodes[0].Delete(k.ctx, k.id))
	}, do: []actor{createAs("new", ""), func(k *raceKit, i int) error {
		return errors.Join(k.collect(i), k.collect(i))
	}}, check: func(k *raceKit, now seen) {
		if v := now.volumes[k.made[0]]; k.err != [3]error{} || v.Content != formatted {
			k.fail("created %+v", v)
		}
	}},
	{name: "publish and collection", prepare: (*raceKit).written, begin: (*raceKit).opened,
		do: []actor{publishIt, collectIt},
		check: func(k *raceKit, now seen) {
			if k.err != [3]error{} || now.volumes[k.id].Content != k.live {
				k.fail("published %v, want %v", now.volumes[k.id].Content, k.live)
			}
		}},
	{name: "fork and attach that merges layers", prepare: (*raceKit).layered,
		do: []actor{forkIt, attachAs("sb")}, check: childIsWhole},
	{name: "collection and attach that merges layers", prepare: (*raceKit).layered,
		do: []actor{func(k *raceKit, i int) error {
			return errors.Join(k.collect(i), k.collect(i))
		}, attachAs("sb")},
		check: func(k *raceKit, now seen) {
			if k.err != [3]error{} || contentOf(k, k.sessions[1].Device()) != now.volumes[k.id].Content {
				k.fail("the volume is %+v", now.volumes[k.id])
			}
		}},
	{name: "fork of a volume whose merged layers are collected", prepare: func(k *raceKit) {
		k.layered()
		release(k.T, attach(k.T, k.nodes[0], k.id, "sb"))
	}, do: []actor{forkIt, func(k *raceKit, i int) error {
		return errors.Join(k.collect(i), k.collect(i), k.collect(i))
	}}, check: childIsWhole},
	{name: "pause and attach elsewhere", preempts: 2, prepare: (*raceKit).written, begin: (*raceKit).opened,
		do:    []actor{leaveIt(true), attachAs("sb")},
		check: handedOver},
	{name: "release and attach of another", preempts: 2, prepare: (*raceKit).written, begin: (*raceKit).opened,
		do:    []actor{leaveIt(false), attachAs("sb2")},
		check: handedOver},
	{name: "collection and collection", prepare: func(k *raceKit) {
		k.written()
		forked := must[volume.Volume](k.T)(k.nodes[0].Fork(k.ctx, k.id, volume.ForkOptions{}))
		ok(k.T, k.nodes[0].Delete(k.ctx, k.id))
		k.id = forked.ID
	}, do: []actor{collectIt, collectIt}, check: func(k *raceKit, now seen) {
		if _, there := now.volumes[k.id]; !there || k.err[0] != nil && k.err[1] != nil {
			k.fail("the child is there %t", there)
		}
	}},
	{name: "create and create of one name", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{createAs("new", ""), createAs("new", "")}, check: oneWins(volume.ErrExists)},
	{name: "create and create with one token", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{createAs("new", "t"), createAs("new", "t")},
		check: func(k *raceKit, now seen) {
			both := k.err == [3]error{}
			if both && k.made[0] != k.made[1] || k.err[0] != nil && k.err[1] != nil || len(now.volumes) != 2 {
				k.fail("made %v of %d", k.made, len(now.volumes))
			}
		}},
	{name: "rename and create", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{renameTo("new", false), createAs("new", "")}, check: oneWins(volume.ErrExists)},
	{name: "rename and create of the old name", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{renameTo("new", false), createAs("vol", "")},
		check: func(k *raceKit, now seen) {
			if k.err[0] != nil || now.volumes[k.id].Name != "new" {
				k.fail("renamed to %q", now.volumes[k.id].Name)
			}
		}},
	{name: "rename and rename to one name", preempts: 2, prepare: func(k *raceKit) {
		k.vol()
		k.other = create(k.T, k.nodes[0], volume.CreateOptions{Name: "other"}).ID
	}, do: []actor{renameTo("new", false), renameTo("new", true)}, check: oneWins(volume.ErrExists)},
	{name: "rename and rename of one volume", preempts: 2, prepare: (*raceKit).vol,
		do: []actor{renameTo("one", false), renameTo("two", false)},
		check: func(k *raceKit, now seen) {
			if n := now.volumes[k.id].Name; k.err[0] != nil && k.err[1] != nil || n != "one" && n != "two" {
				k.fail("named %q", n)
			}
		}},
}

// handedOver checks that who attaches after a pause or release has all that was written before it.
func handedOver(k *raceKit, now seen) {
	k.Helper()
	if k.err[0] != nil || k.err[1] != nil && !errors.Is(k.err[1], volume.ErrConflict) {
		k.fail("unexpected answer")
	}
	v := now.volumes[k.id]
	if v.Content != k.live {
		k.fail("published %v, want %v", v.Content, k.live)
	}
	if k.err[1] == nil {
		if got := contentOf(k, k.sessions[1].Device()); got != k.live || v.Phase != reservation.Preparing {
			k.fail("attached with %v, want %v; the volume is %+v", got, k.live, v)
		}
	}
}
