package volume_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// crashCase is one operation that is to be interrupted at each of its requests.
type crashCase struct {
	name    string
	prepare func(*crashKit)
	do      func(*crashKit) error
	// again says which error a repeated call may return after the first one took effect. nil: none.
	again error
	// between is what may be found after the recovery besides the state before and after, as describe prints it.
	between func(line string) string
}

// crashKit is one node and what a case has at hand.
type crashKit struct {
	*testing.T
	ctx  context.Context
	c    *cluster
	p    *process
	look *inspector
	m    *volume.Manager
	s    *volume.Session
	r    *volume.Reader
	src  string
	live content
	kept content // what a salvage is to hold
}

func newCrashKit(t *testing.T) *crashKit {
	raw := memstore.New()
	k := &crashKit{T: t, ctx: t.Context(), c: newCluster(t, raw), look: newInspector(t, raw)}
	k.c.opts = append(k.c.opts, volume.WithCompaction(3, 2))
	k.start()
	t.Cleanup(func() { ok(t, k.p.kill()) })
	return k
}

func (k *crashKit) start() {
	k.p = k.c.mustStart("a")
	k.m = k.p.team["team"]
	k.s, k.r = nil, nil
}

// die kills the node and recovers it in a new process.
func (k *crashKit) die() {
	k.Helper()
	if k.r != nil {
		ok(k.T, k.r.Close())
	}
	ok(k.T, k.p.kill())
	k.start()
	found, err := k.p.recoverAll(k.ctx)
	ok(k.T, err)
	for _, f := range found {
		if f.session != nil {
			k.s = f.session
			if got := contentOf(k, k.s.Device()); got != k.live {
				k.Fatalf("the drive held %v when the node died and holds %v now", k.live, got)
			}
		}
	}
}

// describe prints what there is, without ids, epochs and nodes: they differ from run to run.
func (k *crashKit) describe() string {
	k.Helper()
	now := k.look.look(k.ctx)
	var lines []string
	for _, v := range now.volumes {
		v.Epoch, v.Node = 0, ""
		lines = append(lines, fmt.Sprintf("volume %+v", v))
	}
	for _, c := range now.checkpoints {
		c.Volume = ""
		lines = append(lines, fmt.Sprintf("checkpoint %+v", c))
	}
	for p := range now.pins {
		lines = append(lines, "pin of "+p.sandbox)
	}
	slices.Sort(lines)
	// A pin whose put lands after its sandbox gave it up stays behind beside the next one.
	return strings.Join(slices.Compact(lines), "\n")
}

// volume creates an empty volume.
func (k *crashKit) volume() {
	k.Helper()
	k.src = create(k.T, k.m, volume.CreateOptions{Name: "vol"}).ID
	k.live = formatted
}

// attached creates a volume, attaches it and writes to it.
func (k *crashKit) attached() {
	k.Helper()
	k.volume()
	k.s = attach(k.T, k.m, k.src, "sb")
	k.writeBlock(2, 'x')
}

func (k *crashKit) writeBlock(i int, b byte) {
	k.Helper()
	if _, err := k.s.Device().WriteAt(blockOf(b), blockAt[i]); err != nil {
		k.Fatal(err)
	}
	k.live = contentOf(k, k.s.Device())
}

// layered makes a volume whose stack is shortened by the next attach.
func (k *crashKit) layered() {
	k.Helper()
	k.attached()
	for i := range byte(3) {
		k.writeBlock(3, 'a'+i)
		publish(k.T, k.s)
	}
	release(k.T, k.s)
	k.s = nil
}

// immutable makes an ro volume.
func (k *crashKit) immutable() {
	k.Helper()
	k.volume()
	k.src = must[volume.Volume](k.T)(k.m.Fork(k.ctx, k.src, volume.ForkOptions{Name: "ro", Mode: volume.ReadOnly})).ID
}

func (k *crashKit) seal(final bool) *volume.Sealed {
	k.Helper()
	return must[*volume.Sealed](k.T)(k.s.Seal(k.ctx, volume.NewCut(volume.Clean, final)))
}

// holding makes sure that the sandbox has the volume open: a recovery may have undone or paused it.
func (k *crashKit) holding() error {
	if k.s != nil {
		return nil
	}
	s, err := k.m.Attach(k.ctx, k.src, "sb")
	k.s = s
	return err
}

// pauseIt pauses, unless the recovery has done it.
func (k *crashKit) pauseIt() error {
	if k.s == nil {
		return nil
	}
	return k.s.Pause(k.ctx, k.seal(true))
}

var crashCases = []crashCase{
	{name: "Attach", prepare: (*crashKit).volume, do: (*crashKit).holding},
	{name: "Attach of a paused volume", prepare: func(k *crashKit) { k.attached(); pause(k.T, k.s); k.s = nil },
		do: (*crashKit).holding},
	{name: "Attach of a volume with many layers", prepare: (*crashKit).layered, do: (*crashKit).holding},
	{name: "Publish", prepare: (*crashKit).attached, do: func(k *crashKit) error {
		return errors.Join(k.holding(), k.s.Publish(k.ctx, k.seal(false)))
	}},
	{name: "Publish of two cuts", prepare: func(k *crashKit) { k.attached(); k.seal(false); k.writeBlock(3, 'y') },
		do: func(k *crashKit) error { return errors.Join(k.holding(), k.s.Publish(k.ctx, k.seal(false))) }},
	{name: "Pause", prepare: (*crashKit).attached, do: (*crashKit).pauseIt},
	{name: "Pause without writes", prepare: func(k *crashKit) {
		k.volume()
		k.s = attach(k.T, k.m, k.src, "sb")
	}, do: (*crashKit).pauseIt},
	{name: "Release", prepare: (*crashKit).attached, do: func(k *crashKit) error {
		if k.s == nil {
			return k.m.Free(k.ctx, k.src, "sb") // the recovery has paused it
		}
		return k.s.Release(k.ctx, k.seal(true))
	}, between: func(s string) string {
		return strings.NewReplacer("Owner: ", "Owner:sb ", "Phase:free", "Phase:paused").Replace(s)
	}},
	{name: "Fork", prepare: (*crashKit).volume, do: func(k *crashKit) error {
		_, err := k.m.Fork(k.ctx, k.src, volume.ForkOptions{Name: "child", Token: "t"})
		return err
	}},
	{name: "Fork under a known id", prepare: (*crashKit).volume, do: func(k *crashKit) error {
		_, err := k.m.ForkAs(k.ctx, k.src, "01890000-0000-7000-8000-000000000001", volume.ForkOptions{Name: "child"})
		return err
	}},
	{name: "Snapshot", prepare: (*crashKit).volume, do: func(k *crashKit) error {
		_, err := k.m.Snapshot(k.ctx, k.src, volume.SnapshotOptions{ID: k.src + "_1"})
		return err
	}},
	{name: "Create", prepare: func(*crashKit) {}, do: func(k *crashKit) error {
		_, err := k.m.Create(k.ctx, volume.CreateOptions{Name: "new", Size: volume.MinSize, Token: "t"})
		return err
	}},
	{name: "Delete", prepare: (*crashKit).volume, again: volume.ErrNotFound,
		do: func(k *crashKit) error { return k.m.Delete(k.ctx, k.src) }},
	{name: "Delete of an ro volume", prepare: (*crashKit).immutable, again: volume.ErrNotFound,
		do:      func(k *crashKit) error { return k.m.Delete(k.ctx, k.src) },
		between: func(string) string { return "" }},
	{name: "Pin", prepare: (*crashKit).immutable, do: func(k *crashKit) (err error) {
		k.r, err = k.m.Pin(k.ctx, k.src, "sb")
		return err
	}},
	{name: "Rename", prepare: (*crashKit).volume, do: func(k *crashKit) error {
		name := "renamed"
		_, err := k.m.Update(k.ctx, k.src, volume.Update{Name: &name})
		return err
	}},
	{name: "TakeOver", prepare: (*crashKit).elsewhere, do: (*crashKit).takeIt, between: func(s string) string {
		return strings.NewReplacer("Phase:preparing", "Phase:paused").Replace(s)
	}},
	{name: "Salvage", prepare: (*crashKit).fenced, do: (*crashKit).salvageIt},
	{name: "Collect", prepare: func(k *crashKit) {
		k.attached()
		release(k.T, k.s)
		k.s = nil
		ok(k.T, k.m.Delete(k.ctx, k.src))
		k.src = ""
	}, do: (*crashKit).collect},
}

func (k *crashKit) collect() error {
	age := time.Duration(0)
	_, err := k.p.repo.Collect(k.ctx, volume.CollectOptions{MinAge: &age, TakeOver: true, DropUnusedBases: true})
	return err
}

// a node dies at each request that changes the store, before or after it took
// effect, or with the request still under way. A new process recovers: the operation is done or undone, never in
// between, it can be repeated, and in the end no layer is left that nothing refers to.
func TestNodeDiesAtEveryRequest(t *testing.T) {
	t.Parallel()
	for _, c := range crashCases {
		t.Run(c.name, func(t *testing.T) {
			before, after := c.reference(t)
			for _, fault := range []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late} {
				n := 1
				for ; c.stopAt(t, n, fault, before, after); n++ {
				}
				if n == 1 {
					t.Errorf("%s: nothing was interrupted", fault)
				}
			}
		})
	}
}

// reference runs the operation undisturbed.
func (c crashCase) reference(t *testing.T) (before, after string) {
	bubble(t, func(t *testing.T) {
		k := newCrashKit(t)
		c.prepare(k)
		before = k.describe()
		ok(t, c.do(k))
		after = k.describe()
		k.die()
	})
	return before, after
}

// stopAt reports whether there was an n-th request to stop at.
func (c crashCase) stopAt(t *testing.T, n int, fault storetest.Fault, before, after string) (stopped bool) {
	bubble(t, func(t *testing.T) {
		k := newCrashKit(t)
		c.prepare(k)
		k.p.line.arm(trouble{at: n, fault: fault, stop: true})
		err := c.do(k)
		if stopped = k.p.wasHit(); !stopped {
			k.die()
			return
		}
		what := fmt.Sprintf("request %d, %s, answer %v", n, fault, err)
		k.die()
		k.c.land(k.ctx)
		k.check(what, c, before, after)
		k.repeat(what, c, after)
		if fault != storetest.ErrorBefore { // what was not sent leaves nothing behind
			k.drain(what)
		}
	})
	return stopped
}

func (k *crashKit) check(what string, c crashCase, before, after string) {
	k.Helper()
	got := k.describe()
	if got == before || got == after {
		return
	}
	if c.between != nil && (c.between(after) == got || strings.Contains(got, "Status:deleting")) {
		return
	}
	k.Fatalf("%s: after the recovery neither as before nor as after:\n%s", what, cmp.Diff(before, got)+cmp.Diff(after, got))
}

func (k *crashKit) repeat(what string, c crashCase, after string) {
	k.Helper()
	done := k.describe() == after
	err := c.do(k)
	if err != nil && !(done && c.again != nil && errors.Is(err, c.again)) {
		k.Fatalf("%s: again, when it was done %t: %v", what, done, err)
	}
	if got := k.describe(); got != after {
		k.Fatalf("%s: after the repeated call:\n%s", what, cmp.Diff(after, got))
	}
}

// drain gives everything back and collects until nothing changes.
func (k *crashKit) drain(what string) {
	k.Helper()
	if k.s != nil {
		_ = k.s.Close() // it may be paused already; a recovery goes on from what there is
	}
	k.die()
	if k.s != nil {
		ok(k.T, k.s.Release(k.ctx, k.seal(true)))
	}
	k.c.advance(25 * time.Hour)
	ok(k.T, k.collect()) // what was never finished is deleted by the first run, as by hand
	for range 2 {
		ok(k.T, k.collect())
	}
	if now := k.look.look(k.ctx); len(now.garbage) > 0 {
		k.Fatalf("%s: two collector runs later these are left: %v", what, now.garbage)
	}
}

// elsewhere makes a volume that a sandbox holds on another node, which has written and not published.
func (k *crashKit) elsewhere() {
	k.Helper()
	k.volume()
	other := k.c.mustStart("b")
	k.T.Cleanup(func() { ok(k.T, other.kill()) })
	s := attach(k.T, other.team["team"], k.src, "sb")
	ok(k.T, s.Mounted(k.ctx))
}

// takeIt takes the volume over, or goes on from where a recovery has left it.
func (k *crashKit) takeIt() error {
	v, err := k.m.Get(k.ctx, k.src)
	if err != nil || k.s != nil {
		return err
	}
	if v.Reservation.Phase == reservation.Paused {
		return k.holding()
	}
	k.s, err = k.m.TakeOver(k.ctx, k.src, volume.TakeOverOptions{Epoch: v.Reservation.Epoch, Reason: "node lost"})
	return err
}

// fenced makes a volume that this node held, with a sealed cut and writes after it, and that another node has taken over.
func (k *crashKit) fenced() {
	k.Helper()
	k.attached()
	k.seal(false)
	k.writeBlock(3, 'y')
	other := k.c.mustStart("b")
	k.T.Cleanup(func() { ok(k.T, other.kill()) })
	must[*volume.Session](k.T)(other.team["team"].TakeOver(k.ctx, k.src, volume.TakeOverOptions{Epoch: 1, Reason: "node lost"}))
	k.kept = k.live
}

// salvageIt has the node learn of it and keep what it has, and checks that all of it is there.
func (k *crashKit) salvageIt() error {
	errs := k.p.repo.Beat(k.ctx)
	for _, s := range k.p.repo.Salvage(k.ctx) {
		errs = errors.Join(errs, s.Err)
	}
	if errs == nil && !slices.ContainsFunc(slices.Collect(maps.Values(k.look.look(k.ctx).volumes)),
		func(v volumeState) bool { return v.Content == k.kept }) {
		return errors.New("what was written and flushed is in no volume")
	}
	return errs
}
