package record

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

var (
	phases = []reservation.Phase{reservation.Free, reservation.Preparing, reservation.Mounted, reservation.Paused,
		reservation.Expiring}
	statuses = []Status{StatusUploading, StatusReady, StatusFailed, StatusDeleting, StatusDeleted}
)

func publish(epoch uint64, owner string, then Then, layers ...string) genlog.Op[Volume] {
	p := Publish{Epoch: epoch, Owner: owner, Then: then, At: t0, Content: Content{Cut: "c1", Consistency: Clean}}
	for i, k := range layers {
		p.Layers = append(p.Layers, layer(k))
		p.Nonces = append(p.Nonces, string(rune('p'+i)))
	}
	return p.Op()
}

// 5.2, 5.6: every op that changes stack, phase or upload keys carries the epoch and owner that it was made under, and
// is refused under any other; by phase: free, preparing, mounted, paused, expiring.
func TestHolderOpsByPhase(t *testing.T) {
	k := key(3, "k")
	for name, c := range map[string]struct {
		op   genlog.Op[Volume]
		want string
	}{
		"publish":               {publish(3, "sb1", Keep, k), "fenced changed changed changed changed"},
		"publish, older epoch":  {publish(2, "sb1", Keep, k), "fenced fenced fenced fenced fenced"},
		"publish, other owner":  {publish(3, "sb2", Keep, k), "fenced fenced fenced fenced fenced"},
		"publish, other key":    {publish(3, "sb1", Keep, key(3, "x")), "fenced conflict conflict conflict conflict"},
		"publish nothing":       {publish(3, "sb1", Keep), "fenced same same same same"},
		"pause":                 {publish(3, "sb1", Pause, k), "fenced changed changed changed conflict"},
		"pause nothing":         {publish(3, "sb1", Pause), "fenced changed changed same conflict"},
		"pause, older epoch":    {publish(2, "sb1", Pause), "fenced fenced fenced fenced fenced"},
		"release":               {publish(3, "sb1", Release, k), "changed changed changed changed changed"},
		"release nothing":       {publish(3, "sb1", Release), "same changed changed changed changed"},
		"release, older epoch":  {publish(2, "sb1", Release), "fenced fenced fenced fenced fenced"},
		"release, by owner":     {publish(0, "sb1", Release), "fenced fenced fenced fenced fenced"},
		"mounted":               {Mounted(3, "sb1"), "fenced changed same conflict conflict"},
		"declare":               {Declare(3, "sb1", []string{"d"}), "fenced changed changed changed changed"},
		"declare, older epoch":  {Declare(2, "sb1", []string{"d"}), "fenced fenced fenced fenced fenced"},
		"declare again":         {Declare(3, "sb1", []string{"k"}), "fenced same same same same"},
		"expire":                {Expire(3, "sb1", t0), "fenced conflict changed changed same"},
		"stay":                  {Stay(3, "sb1"), "conflict changed changed conflict changed"},
		"stay, older epoch":     {Stay(2, "sb1"), "fenced fenced fenced fenced fenced"},
		"delete":                {Delete(t0), "changed in-use in-use in-use in-use"},
		"grow":                  {Grow(3, 2<<30), "changed in-use in-use in-use in-use"},
		"grow, held in between": {Grow(2, 2<<30), "conflict in-use in-use in-use in-use"},
		"shrink":                {Grow(3, 1<<20), "invalid invalid invalid invalid invalid"},
		"touch of another":      {Touch("g9"), "changed changed changed changed changed"},
		"touch of a landed":     {Touch("g3"), "conflict conflict conflict conflict conflict"},
		"discard of a used one": {DeleteUnused(t0), "in-use in-use in-use in-use in-use"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range phases {
				_, changed, err := apply(t, c.op, held(p))
				got = append(got, verdict(changed, err))
			}
			if diff := cmp.Diff(strings.Fields(c.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// 5.3: what each status allows; by status: uploading, ready, failed, deleting, deleted. Deleted is final.
func TestOpsByStatus(t *testing.T) {
	same := stack("base")
	g := reservation.Grant{ID: "g4", Owner: "sb2", Node: "n2", At: t0}
	for name, c := range map[string]struct {
		op   genlog.Op[Volume]
		mode Mode
		want string
	}{
		"ready":         {Ready[Volume](same), Exclusive, "changed same not-ready not-ready not-found"},
		"ready, others": {Ready[Volume](stack("x")), Exclusive, "conflict not-ready not-ready not-ready not-found"},
		"recopy": {Recopy[Volume](same, Origin{Generation: 9}, stack("x"), Content{}), Exclusive,
			"changed not-ready not-ready not-ready not-found"},
		"carry on":      {CarryOn(3, []string{"n"}), Exclusive, "changed not-ready changed not-ready not-found"},
		"carry on late": {CarryOn(1, []string{"n"}), Exclusive, "conflict not-ready conflict not-ready not-found"},
		"content": {FirstContent(3, []Layer{layer(key(3, "k"))}, Content{}), Exclusive,
			"changed fenced not-ready not-ready not-found"},
		"content late": {FirstContent(2, []Layer{layer(key(3, "k"))}, Content{}), Exclusive,
			"fenced fenced not-ready not-ready not-found"},
		"abandon":      {Abandon[Volume](3, t0), Exclusive, "changed not-ready changed not-ready same"},
		"abandon late": {Abandon[Volume](2, t0), Exclusive, "conflict not-ready conflict not-ready same"},
		"acquire": {Acquire(g, reservation.Free, []string{"n"}), Exclusive,
			"not-ready changed not-ready not-ready not-found"},
		"acquire moved": {Acquire(g, reservation.Paused, []string{"n"}), Exclusive,
			"not-ready conflict not-ready not-ready not-found"},
		"acquire ro": {Acquire(g, reservation.Free, []string{"n"}), ReadOnly,
			"not-ready unsupported not-ready not-ready not-found"},
		"grow ro":       {Grow(3, 2<<30), ReadOnly, "not-ready unsupported not-ready not-ready not-found"},
		"delete":        {Delete(t0), Exclusive, "changed changed changed changed same"},
		"delete ro":     {Delete(t0), ReadOnly, "changed unsupported changed unsupported same"},
		"deleting":      {BeginDelete(), ReadOnly, "not-ready changed not-ready same not-found"},
		"deleting excl": {BeginDelete(), Exclusive, "unsupported unsupported unsupported unsupported unsupported"},
		"deleted":       {FinishDelete(t0), ReadOnly, "not-ready not-ready not-ready changed same"},
		"undelete":      {Undelete(), ReadOnly, "not-ready same not-ready changed not-found"},
		"relabel": {Relabel(map[string]string{"a": "b"}), Exclusive,
			"changed changed changed changed not-found"},
		"renaming": {BeginRename("new", "c"), Exclusive, "not-ready changed not-ready not-ready not-found"},
		"rename":   {EndRename("new", "c"), Exclusive, "conflict conflict conflict conflict not-found"},
		"settle":   {SettleVolume(nil, true), Exclusive, "same same same same changed"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, status := range statuses {
				v := held(reservation.Free)
				v.Status, v.Mode = status, c.mode
				_, changed, err := apply(t, c.op, v)
				got = append(got, verdict(changed, err))
			}
			if diff := cmp.Diff(strings.Fields(c.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// layers, declared keys, cut and phase change in one generation, or not at all.
func TestPublishIsOneStep(t *testing.T) {
	next, _, err := apply(t, publish(3, "sb1", Pause, key(3, "k")), held(reservation.Mounted))
	if err != nil {
		t.Fatal(err)
	}
	want := with(held(reservation.Paused), func(v *Volume) {
		v.Stack, v.Keys = stack("base", key(3, "k")), []string{key(3, "p")}
		v.Content = Content{Cut: "c1", Consistency: Clean}
	})
	if diff := cmp.Diff(want, next); diff != "" {
		t.Error(diff)
	}
}

// the same layers are published again after a lost reply, with more layers or another phase change. What is there
// is not put there twice, and what is not there yet is done.
func TestPublishAfterAPublishOfUnknownOutcome(t *testing.T) {
	k, d := key(3, "k"), key(3, "d")
	landed := with(held(reservation.Mounted), func(v *Volume) {
		v.Stack, v.Keys = stack("base", k), []string{d}
		v.Content = Content{Cut: "c1", Consistency: Crash}
	})
	next, changed, err := apply(t, publish(3, "sb1", Keep, k, d), landed)
	if err != nil || !changed || !next.Stack.SameContent(stack("base", k, d)) ||
		!cmp.Equal(next.Keys, []string{key(3, "p")}) {
		t.Errorf("with more layers: %+v %v", next, err)
	}
	for then, phase := range map[Then]reservation.Phase{Pause: reservation.Paused, Release: reservation.Free} {
		next, changed, err = apply(t, publish(3, "sb1", then, k), landed)
		if err != nil || !changed || next.Reservation.Phase != phase || !next.Stack.SameContent(landed.Stack) {
			t.Errorf("then %s: %+v %v", then, next, err)
		}
		if next.Content.Consistency != Clean { // the same bytes, now known to be at rest
			t.Errorf("then %s: %+v", then, next.Content)
		}
		// What went on to another grant, or was freed, had been paused or released before.
		for _, moved := range []Volume{
			with(landed, func(v *Volume) { v.Reservation.Epoch, v.Reservation.Grant.Owner = 4, "sb2" }),
			with(landed, func(v *Volume) { v.Reservation.Phase = reservation.Free }),
		} {
			if _, changed, err := apply(t, publish(3, "sb1", then, k), moved); changed || err != nil {
				t.Errorf("then %s after the volume has moved on: %v", then, err)
			}
		}
	}
}

// The keys of an epoch end with it: what its holder still uploads is never part of the volume.
func TestAcquireReplacesTheDeclaredKeys(t *testing.T) {
	g := reservation.Grant{ID: "g4", Owner: "sb1", Node: "n2", At: t0}
	next, _, err := apply(t, Acquire(g, reservation.Paused, []string{"n"}), held(reservation.Paused))
	if err != nil || next.Reservation.Epoch != 4 || !cmp.Equal(next.Keys, []string{key(4, "n")}) {
		t.Errorf("%+v %v", next, err)
	}
	for _, other := range []Op{Op(Mounted(4, "sb1")), Op(Relabel(map[string]string{"a": "b"})), Op(BeginRename("n", "c"))} {
		if after, _, err := apply(t, genlog.Op[Volume](other), next); err != nil || !cmp.Equal(after.Keys, next.Keys) {
			t.Errorf("%s changes the declared keys: %v %v", other.Name, after.Keys, err)
		}
	}
}

// Op is any operation on a volume.
type Op genlog.Op[Volume]

func TestRenameCountsOnlyForItsOwnClaim(t *testing.T) {
	v, _, _ := apply(t, BeginRename("b", "c1"), held(reservation.Free))
	v, _, _ = apply(t, BeginRename("b", "c2"), v)
	if _, _, err := apply(t, EndRename("b", "c1"), v); verdict(false, err) != "conflict" {
		t.Errorf("an older claim ends the rename: %v", err)
	}
	if same, changed, _ := apply(t, CancelRename("c1"), v); changed || same.Renaming.Claim != "c2" {
		t.Error("an older claim cancels the rename")
	}
	if !v.Carries("data") || !v.Carries("b") || v.Carries("c") {
		t.Error("carries")
	}
	v, _, err := apply(t, EndRename("b", "c2"), v)
	if err != nil || v.Name != "b" || v.Renaming != nil || v.Carries("data") {
		t.Errorf("%+v %v", v, err)
	}
	failed := with(v, func(v *Volume) { v.Status = StatusFailed })
	gone := with(v, func(v *Volume) { v.Status = StatusDeleted })
	if !failed.Carries("b") || gone.Carries("b") {
		t.Error("a failed volume holds its name, a deleted one does not")
	}
}

// 5.7, the child rule: stack and former can be copied of a volume that is ready or deleting; leaving cannot, nor anything
// of a volume in another status.
func TestWhatMayBeCopied(t *testing.T) {
	v := held(reservation.Free)
	v.Stack, v.Leaving = stack("a", "b"), []Left{{Layer: layer("l")}}
	v.Former = []Former{{Layer: layer("f"), First: 1, Last: 2}}
	v.Fenced = []Fenced{{Epoch: 1, Stack: stack("z")}}
	for keys, want := range map[string]bool{"a": true, "b": true, "f": true, "l": false, "z": false, "x": false} {
		if got := v.MayCopy(stack("a", keys)); got != want {
			t.Errorf("%s: %v", keys, got)
		}
	}
	for _, s := range statuses {
		want := s == StatusReady || s == StatusDeleting
		if got := with(v, func(v *Volume) { v.Status = s }).MayCopy(stack("a")); got != want {
			t.Errorf("%s: %v", s, got)
		}
		c := Checkpoint{Head: v.Head}
		c.Status = s
		if got := c.MayCopy(stack("a")); got != (s == StatusReady) {
			t.Errorf("checkpoint %s: %v", s, got)
		}
	}
	refs := map[string]bool{}
	for k := range v.References() {
		refs[k] = true
	}
	want := map[string]bool{"a": true, "b": true, "l": true, "f": true, "z": true, key(3, "k"): true}
	if diff := cmp.Diff(want, refs); diff != "" {
		t.Errorf("references in the five ways: %s", diff)
	}
}

// Settling lets go of exactly what an ended run read, and of a tombstone's references; fenced stacks stay.
func TestSettleLetsGoOfWhatWasRead(t *testing.T) {
	v := held(reservation.Free)
	v.Leaving = []Left{{Layer: layer("a")}, {Layer: layer("b")}}
	v.Fenced = []Fenced{{Epoch: 1, Stack: stack("z")}}
	v, changed, _ := apply(t, SettleVolume([]Left{{Layer: layer("a")}}, false), v)
	if !changed || len(v.Leaving) != 1 || v.Leaving[0].Key != "b" || len(v.Stack.Layers) != 1 {
		t.Errorf("%+v", v)
	}
	v, _, _ = apply(t, Delete(t0), v)
	if len(v.Keys) > 0 || len(v.Stack.Layers) != 1 || v.DeletedAt != t0 {
		t.Errorf("tombstone %+v", v)
	}
	v, _, _ = apply(t, SettleVolume(nil, true), v)
	if len(v.Stack.Layers) > 0 || len(v.Leaving) != 1 || len(v.Fenced) != 1 || !v.Settled {
		t.Errorf("settled, with one entry that has begun to leave since the run read it: %+v", v)
	}
	c, _, _ := apply(t, DeleteCheckpoint(t0), Checkpoint{Head: held(reservation.Free).Head})
	if c, changed, _ = apply(t, SettleCheckpoint(), c); !changed || len(c.Stack.Layers) > 0 {
		t.Errorf("settled %+v", c)
	}
	if _, changed, _ := apply(t, SettleCheckpoint(), Checkpoint{Head: held(reservation.Free).Head}); changed {
		t.Error("a checkpoint that is alive is settled")
	}
}

// A slow creator does not bless what a retry copied, and does not remove what another request carries on.
func TestCarriedOnCreationIsOutOfTheFirstOnesHands(t *testing.T) {
	v := uploading(0, "a")
	v, _, _ = apply(t, CarryOn(0, []string{"n"}), v)
	if _, _, err := apply(t, Abandon[Volume](0, t0), v); verdict(false, err) != "conflict" {
		t.Errorf("abandoned: %v", err)
	}
	v, _, _ = apply(t, Recopy[Volume](stack("a"), Origin{Volume: "src", Generation: 5}, stack("b"), Content{}), v)
	if _, _, err := apply(t, Ready[Volume](stack("a")), v); verdict(false, err) != "conflict" {
		t.Errorf("ready over references that were never checked: %v", err)
	}
	v, _, err := apply(t, Ready[Volume](stack("b")), v)
	if err != nil || v.Status != StatusReady {
		t.Errorf("%+v %v", v, err)
	}
}

func TestRunsAndClaims(t *testing.T) {
	begun, changed, _ := apply(t, Begin(Run{ID: "r1", Node: "n"}), Run{})
	if !changed || begun.Ended {
		t.Errorf("%+v", begun)
	}
	ended, _, _ := apply(t, End(begun), begun)
	if again, changed, _ := apply(t, Begin(Run{ID: "r2"}), ended); !changed || again.ID != "r2" || again.Ended {
		t.Errorf("%+v", again)
	}
	n, _, _ := apply(t, Claim(Name{Volume: "v", Claim: "c"}), Name{Volume: "w"})
	if n.Volume != "v" || n.Claim != "c" {
		t.Errorf("%+v", n)
	}
}
