package volume_test

import (
	"strings"
	"testing"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
)

// A repository is verified as a whole: what is missing, cut short or altered is named with who needs it, and so is what nobody
// needs.
func TestVerifyFindsWhatIsWrong(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := written(t, m, "vol", 'x')
	shot := must[volume.Checkpoint](t)(m.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{}))
	torn, _ := torn(t, m)
	takeOver(t, w.node("b"), torn.ID, 1, "")
	verify := func() volume.VerifyReport {
		t.Helper()
		return must[volume.VerifyReport](t)(m.Repository().Verify(t.Context(), volume.VerifyOptions{Data: true}))
	}
	if r := verify(); len(r.Problems)+len(r.Orphans) > 0 || r.Checkpoints != 1 || r.Volumes != 3 || r.Read != r.Bytes {
		t.Errorf("all is well, and the report is %+v", r)
	}
	orphan := "v1/layers/" + v.ID + "/9-aa"
	ok(t, w.st.PutBlob(t.Context(), orphan, store.BytesSource([]byte("nobody's"))))
	top := v.Stack.Layers[len(v.Stack.Layers)-1].Key
	body := make([]byte, v.Stack.Layers[len(v.Stack.Layers)-1].Size)
	for what, damage := range map[string]func(){
		"digest": func() { w.replace(top, body) },
		"bytes":  func() { w.replace(top, body[1:]) },
		"no such layer": func() {
			ok(t, w.st.Delete(t.Context(), top))
		},
	} {
		damage()
		r := verify()
		if len(r.Problems) != 1 || r.Problems[0].Layer != top || !strings.Contains(r.Problems[0].Err.Error(), what) ||
			r.Problems[0].ID != v.ID && r.Problems[0].ID != shot.ID {
			t.Errorf("%s: %+v", what, r.Problems)
		}
		if len(r.Orphans) != 1 || r.Orphans[0] != orphan {
			t.Errorf("orphans %v", r.Orphans)
		}
		if what == "no such layer" {
			ok(t, w.st.PutBlob(t.Context(), top, store.BytesSource(body)))
		}
	}
	ok(t, w.st.PutIfAbsent(t.Context(), "v1/volumes/team/"+must[string](t)(volume.NewID())+"/fffffffffffffffe", []byte("{")))
	if r := verify(); len(r.Problems) != 2 {
		t.Errorf("with a record that cannot be read: %+v", r.Problems)
	}
}

// What a deletion would free, and what others share.
func TestUsageTellsExclusiveFromShared(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := written(t, m, "vol", 'x')
	layer := v.Stack.Layers[len(v.Stack.Layers)-1].Size
	usage := func() (volume.Usage, map[string]volume.ItemUsage) {
		t.Helper()
		u := must[volume.Usage](t)(m.Usage(t.Context()))
		each := map[string]volume.ItemUsage{}
		for _, i := range u.Each {
			each[i.ID] = i
		}
		return u, each
	}
	u, each := usage()
	if u.Volumes != 1 || u.ProvisionedBytes != volume.MinSize || u.StoredBytes != layer || each[v.ID].ExclusiveBytes != layer {
		t.Errorf("one volume: %+v", u)
	}
	child := fork(t, m, v.ID)
	shot := must[volume.Checkpoint](t)(m.Snapshot(t.Context(), v.ID, volume.SnapshotOptions{}))
	u, each = usage()
	if u.Volumes != 2 || u.Checkpoints != 1 || u.ProvisionedBytes != 2*volume.MinSize || u.StoredBytes != layer {
		t.Errorf("copied: %+v", u)
	}
	for _, id := range []string{v.ID, child.ID, shot.ID} {
		if each[id].ExclusiveBytes != 0 || each[id].SharedBytes <= layer {
			t.Errorf("%s: %+v", id, each[id])
		}
	}
	ok(t, m.Delete(t.Context(), v.ID))
	ok(t, m.DeleteCheckpoint(t.Context(), shot.ID))
	if u, each = usage(); each[child.ID].ExclusiveBytes != layer || u.StoredBytes != layer {
		t.Errorf("only the child is left: %+v", u)
	}
	other := w.tenant(m.Repository(), "other")
	if u := must[volume.Usage](t)(other.Usage(t.Context())); u.Volumes+u.Checkpoints != 0 || u.StoredBytes != 0 {
		t.Errorf("another tenant: %+v", u)
	}
}
