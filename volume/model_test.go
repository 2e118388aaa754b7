package volume_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// two nodes do everything that can be done with volumes, one call at a time.
// Requests to the store get lost before or after they took effect, or arrive much later; nodes die at any of them and
// recover. After every step the whole store is compared with a plain map, and I1 to I9 and I13 are checked.
//
// rapid prints the seed of a failure and the command that repeats it. SANDVOL_MODEL_STEPS sets how many steps a run
// has, and -rapid.checks how many runs there are.
func TestModelOfTwoNodes(t *testing.T) {
	modelRuns(t, 12, 30, func(*testing.T) store.Store { return memstore.New() })
}

func TestModelOfTwoNodesOverDirectory(t *testing.T) {
	modelRuns(t, 2, 25, func(t *testing.T) store.Store {
		return must[*posixstore.Store](t)(posixstore.New(filepath.Join(t.TempDir(), "store")))
	})
}

func modelRuns(t *testing.T, checks, steps int, open func(*testing.T) store.Store) {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set := func(name, value string) {
		f := flag.Lookup(name)
		old := f.Value.String()
		t.Cleanup(func() { ok(t, f.Value.Set(old)) })
		ok(t, f.Value.Set(value))
	}
	if !given["rapid.checks"] {
		set("rapid.checks", fmt.Sprint(checks))
	}
	if !given["rapid.steps"] {
		set("rapid.steps", fmt.Sprint(steps))
	}
	if n := os.Getenv("SANDVOL_MODEL_STEPS"); n != "" {
		set("rapid.steps", n)
	}
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			x := newMachine(t, rt, open(t))
			rt.Repeat(map[string]func(*rapid.T){"step": x.step})
			x.drain()
		})
	})
}

// bubble runs f with a clock that jumps ahead whenever everything waits, so that retries against a dead store cost
// nothing. What f panics with, which is how rapid ends a test, reaches the caller.
func bubble(t *testing.T, f func(*testing.T)) {
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		f(t)
	})
	if failure != nil {
		panic(failure)
	}
}

// machine drives the nodes and keeps the spec beside them.
type machine struct {
	*rapid.T
	ctx  context.Context
	c    *cluster
	look *inspector
	now  seen
	spec *spec

	nodes   [2]*process // nil while down
	drives  []*openDrive
	last    *openDrive
	readers []*openReader
	left    []heldPin // pins that outlive their mount
	seq     int

	taken    map[grantOf]content // what was published when it was taken over
	debts    map[grantOf]debt
	salvages map[string]bool
	rescued  map[grantOf]content // what salvages hold
}

// openDrive is a volume in the hands of a sandbox.
type openDrive struct {
	node           int
	tenant, volume string
	sandbox        string
	epoch          uint64
	session        *volume.Session // nil while the node is down
	live           content
	cuts           []*openCut
	final          *openCut
	leaving        string // what was tried last of pause and release
}

type openCut struct {
	sealed *volume.Sealed
	cutState
}

type openReader struct {
	node   int
	reader *volume.Reader
	pin    heldPin
}

func newMachine(t *testing.T, rt *rapid.T, raw store.Store) *machine {
	x := &machine{T: rt, ctx: t.Context(), c: newCluster(t, raw), look: newInspector(rt, raw), spec: newSpec(),
		taken: map[grantOf]content{}, debts: map[grantOf]debt{}, salvages: map[string]bool{}, rescued: map[grantOf]content{}}
	// Stacks are shortened early, so that it happens.
	x.c.opts = append(x.c.opts, volume.WithCompaction(3, 2))
	for i := range x.nodes {
		x.nodes[i] = x.c.mustStart(nodeName(i))
	}
	t.Cleanup(func() {
		for i := range x.nodes {
			x.crash(i)
		}
	})
	x.now = x.look.look(x.ctx)
	return x
}

func nodeName(i int) string { return []string{"a", "b", "c"}[i] }

// step does something, drawn from all that can be done now.
func (x *machine) step(*rapid.T) {
	for tries := 0; tries < 30; tries++ {
		if x.try(modelSteps[x.index("step", len(modelSteps))]) {
			x.check()
			return
		}
	}
}

// modelSteps are what can be done, each as often as it is likely.
var modelSteps = slices.Concat(
	likely(2, (*machine).create), likely(2, (*machine).fork), likely(1, (*machine).restore), likely(1, (*machine).snapshot),
	likely(1, (*machine).delete), likely(1, (*machine).deleteCheckpoint), likely(1, (*machine).update),
	likely(4, (*machine).attach), likely(1, (*machine).undo), likely(1, (*machine).free), likely(5, (*machine).write),
	likely(1, (*machine).mounted), likely(3, (*machine).publish), likely(3, (*machine).leave), likely(2, (*machine).thaw),
	likely(2, (*machine).pin), likely(1, (*machine).unpin), likely(1, (*machine).collect),
	likely(2, (*machine).takeOver), likely(2, (*machine).learn), likely(1, (*machine).unpinAll),
	[]func(*machine){
		func(x *machine) { x.restart(x.index("node", len(x.nodes))) },
		func(x *machine) {
			x.c.land(x.ctx)
			x.check()
			x.spec.certain()
		},
		func(x *machine) { x.c.advance(25 * time.Hour) },
	},
)

// likely repeats a step on one of the nodes.
func likely(n int, f func(x *machine, p *process, node int)) []func(*machine) {
	return slices.Repeat([]func(*machine){func(x *machine) { x.onNode(f) }}, n)
}

// skippedStep is what a step panics with that has nothing to do now: another one is tried. rapid's own way to say so
// ends a run after a few.
type skippedStep struct{}

func (x *machine) skip(string) { panic(skippedStep{}) }

func (x *machine) try(f func(*machine)) (did bool) {
	defer func() {
		if p := recover(); p != nil && p != (skippedStep{}) {
			panic(p)
		}
	}()
	f(x)
	return true
}

// onNode runs one step on a node that is up. The node may die in it.
func (x *machine) onNode(f func(x *machine, p *process, node int)) {
	i := x.index("node", len(x.nodes))
	p := x.nodes[i]
	if p == nil {
		x.skip("the node is down")
	}
	what := x.trouble()
	x.Logf("node %d: %s", i, what)
	p.line.arm(what)
	f(x, p, i)
	p.line.arm(trouble{})
	if p.line.isDead() {
		x.crash(i)
	}
}

// trouble draws what goes wrong in the next step: in two of three nothing.
func (x *machine) trouble() trouble {
	if x.index("trouble", 3) != 0 {
		return trouble{}
	}
	kind := x.index("kind", 4)
	return trouble{at: 1 + x.index("request", 4), stop: kind == 0, outage: kind > 1,
		fault: mishaps[x.index("fault", len(mishaps))]}
}

var mishaps = []storetest.Fault{storetest.ErrorBefore, storetest.ErrorAfter, storetest.Late, storetest.Duplicate}

// index draws a number below n, each as likely as any other: rapid's own ranges prefer small ones.
func (x *machine) index(what string, n int) int {
	return int(uniform.Draw(x.T, what)) % n
}

var uniform = rapid.Custom(func(t *rapid.T) (n uint16) {
	for range 12 {
		n <<= 1
		if rapid.Bool().Draw(t, "") {
			n++
		}
	}
	return n
})

// pick draws one of a list, and skips the step if there is none.
func pick[E any](x *machine, what string, from []E) E {
	if len(from) == 0 {
		x.skip("there is no " + what)
	}
	return from[x.index(what, len(from))]
}

// check looks at everything.
func (x *machine) check() {
	x.Helper()
	x.now = x.look.look(x.ctx)
	x.adoptSalvages()
	x.spec.adopt(x, x.now)
	for id, v := range x.spec.volumes {
		// A cut that was made on the way, for a copy with flush.
		c := x.now.records[id].Content
		if _, known := x.spec.cuts[c.Cut]; !known {
			x.seq++
			x.spec.cuts[c.Cut] = cutState{x.seq, v.Content, c.Consistency == volume.Clean}
		}
	}
	for _, d := range x.drives {
		if d.session == nil {
			continue
		}
		if got := contentOf(x, d.session.Device()); got != d.live {
			x.Fatalf("drive of volume %s in sandbox %s holds %v, want %v", d.volume, d.sandbox, got, d.live)
		}
	}
	for _, r := range x.readers {
		if got, want := contentOf(x, r.reader.Device()), x.spec.volumes[r.pin.volume].Content; got != want {
			x.Fatalf("reader of volume %s reads %v, want %v", r.pin.volume, got, want)
		}
	}
}

// settled compares what a call returned with what the spec says. It reports whether the call took effect. refuse lists
// the classes of which one is to refuse it; without any it has to succeed.
func (x *machine) settled(p *process, what string, err error, refuse ...error) bool {
	x.Helper()
	x.Logf("node %s: %s: %v", p.name, what, err)
	p.line.mu.Lock()
	hit := p.line.hit
	p.line.mu.Unlock()
	switch {
	case err == nil && len(refuse) > 0:
		x.Fatalf("%s succeeded, want one of %v", what, refuse)
	case err == nil:
		return true
	case hit || len(refuse) > 0 && slices.ContainsFunc(refuse, func(e error) bool { return errors.Is(err, e) }):
		return false
	}
	x.Fatalf("%s: %v, want %v", what, err, refuse)
	return false
}

// wasHit reports whether something went wrong in this step, so that a refusal proves nothing.
func (p *process) wasHit() bool {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.line.hit
}
