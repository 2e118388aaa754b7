package volume_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
)

// plant adds a member that no version knows to every object below an object, itself included.
func plant(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k != "labels" { // text of the user
				v[k] = plant(e)
			}
		}
		v["future"] = map[string]any{"x": []any{1.5}}
		return v
	case []any:
		for i := range v {
			v[i] = plant(v[i])
		}
	}
	return v
}

// planted counts the objects that have the member.
func planted(body []byte) int { return strings.Count(string(body), `"future":{"x":[1.5]}`) }

// what a newer version has added to a record, at any level, is still there after this one has written
// every kind of generation of it: layers, names, reservations, checkpoints, runs and drive sets.
func TestUnknownMembersSurviveEveryRewrite(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := written(t, m, "data", 'x')
	shot := must[volume.Checkpoint](t)(m.Snapshot(t.Context(), "data", volume.SnapshotOptions{}))
	prefix, name, check := volumePrefix(m, v.ID), "v1/names/team/data/", "v1/checkpoints/team/"+shot.ID+"/"
	before := map[string]int{}
	for _, p := range []string{prefix, name, check} {
		before[p] = w.plantNewest(t, p)
	}
	if before[prefix] < 8 { // the body, its state, kept entries, stack, two layers, reservation, grant, content, origin
		t.Fatalf("%d objects of the volume", before[prefix])
	}
	s := attach(t, m, "data", "sb")
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 12288, 'y')
	publish(t, s)
	pause(t, s)
	ok(t, m.Free(t.Context(), "data", "sb"))
	must[volume.Volume](t)(m.Update(t.Context(), "data", volume.Update{Size: new(volume.GiB), Name: new("new")}))
	// A grant and a cut are new each time; everything else is still what it was.
	lost := 2
	if got := planted([]byte(newestBody(t, w.st, prefix))); got < before[prefix]-lost {
		t.Errorf("%d of %d members are left: %s", got, before[prefix], newestBody(t, w.st, prefix))
	}
	got := newestRecord(t, w.st, m, v.ID)
	for i, l := range got.Stack.Layers[:2] {
		if len(l.Extra) == 0 {
			t.Errorf("layer %d has lost its member", i)
		}
	}
	if len(got.Extra) == 0 || len(got.Stack.Extra) == 0 || len(got.Origin.Extra) == 0 || len(got.Reservation.Unknown) == 0 {
		t.Errorf("lost: %+v", got)
	}
	// A copy carries what its layers say.
	child := fork(t, m, "new")
	if r := newestRecord(t, w.st, m, child.ID); len(r.Stack.Layers[1].Extra) == 0 || len(r.Stack.Extra) == 0 {
		t.Error("a copy has lost members of its layers")
	}
	create(t, m, volume.CreateOptions{Name: "data"}) // the name's log goes on
	ok(t, m.DeleteCheckpoint(t.Context(), shot.ID))
	for _, p := range []string{name, check} {
		if got := planted([]byte(newestBody(t, w.st, p))); got < 2 {
			t.Errorf("%s: %d members are left: %s", p, got, newestBody(t, w.st, p))
		}
	}
}

func (w *world) plantNewest(t *testing.T, prefix string) int {
	t.Helper()
	key := keysBelow(t, w.st, prefix)[0]
	var body any
	ok(t, json.Unmarshal(must[[]byte](t)(w.st.Get(t.Context(), key)), &body))
	changed := must[[]byte](t)(json.Marshal(plant(body), json.Deterministic(true)))
	w.replace(key, changed)
	return planted(changed)
}

// Drive sets of package mount are states that this package does not know.
func TestSandboxLogKeepsWhatItDoesNotKnow(t *testing.T) {
	type set struct {
		Phase string         `json:"phase"`
		Extra jsontext.Value `json:",embed"`
	}
	w := newWorld(t)
	log := must[*genlog.Log[set]](t)(volume.OpenSandboxLog[set](w.node("a"), "sb"))
	must[genlog.Generation[set]](t)(log.Create(t.Context(), set{Phase: "running"}))
	w.plantNewest(t, "v1/sandboxes/team/sb/")
	to := func(phase string) genlog.Op[set] {
		return genlog.Op[set]{Name: phase, Apply: func(s set) (set, bool, error) {
			changed := s.Phase != phase
			s.Phase = phase
			return s, changed, nil
		}}
	}
	g := must[genlog.Generation[set]](t)(log.Append(t.Context(), to("paused")))
	if diff := cmp.Diff(`{"future":{"x":[1.5]}}`, string(g.State.Extra)); diff != "" || g.Number != 2 {
		t.Error(diff)
	}
	_, err := volume.OpenSandboxLog[set](w.node("b"), "a/b")
	wantErr(t, err, volume.ErrInvalid)
}

// a repository that asks for a newer writer is read and not written; one that asks for a newer reader is not opened.
func TestFormatGateRefusesWritesOfAnOldVersion(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := readOnly(t, m, 'x')
	body := newestBody(t, w.st, "v1/format/")
	key := keysBelow(t, w.st, "v1/format/")[0]
	w.replace(key, []byte(strings.Replace(body, `"minWriter":1`, `"minWriter":2`, 1)))
	m = w.restart(m)
	get(t, m, v.ID)
	before := keysBelow(t, w.st, "v1/")
	for what, err := range map[string]error{
		"fork":   second(m.Fork(t.Context(), v.ID, volume.ForkOptions{Name: "n"})),
		"pin":    second(m.Pin(t.Context(), v.ID, "sb")),
		"delete": m.Delete(t.Context(), v.ID),
		"label":  second(m.Update(t.Context(), v.ID, volume.Update{Labels: &map[string]string{"a": ""}})),
	} {
		wantErr(t, err, volume.ErrUnsupported)
		if !contains(err.Error(), "format 2", "version is 1") {
			t.Errorf("%s: message %q", what, err)
		}
	}
	if diff := cmp.Diff(before, keysBelow(t, w.st, "v1/")); diff != "" {
		t.Error(diff)
	}
	w.replace(key, []byte(strings.Replace(body, `"minReader":1,"minWriter"`, `"minReader":2,"minWriter"`, 1)))
	_, err := volume.Open(t.Context(), volume.Config{Store: w.st, Dir: t.TempDir(), Node: "b"})
	wantErr(t, err, volume.ErrUnsupported)
}
