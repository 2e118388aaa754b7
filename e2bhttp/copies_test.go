package e2bhttp_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// a fork is a batch, with an outcome for each child.
func TestForkIsABatch(t *testing.T) {
	a := newAPI(t)
	src := a.create("src")
	fork := func(body string) []wire.ForkResult {
		t.Helper()
		return read[[]wire.ForkResult](a.do("POST", "/volumes/src/fork", body).is(201))
	}
	for _, body := range []string{"", "{}", `{"count":1}`} {
		r := fork(body)
		if len(r) != 1 || r[0].Volume == nil || r[0].Error != nil {
			t.Fatalf("body %q: %+v", body, r)
		}
		v := r[0].Volume
		if !regexp.MustCompile(`^src-fork-[0-9a-f]{8}$`).MatchString(v.Name) || v.Mode != "exclusive" || v.SizeMB != src.SizeMB ||
			v.Source.VolumeID != src.VolumeID {
			t.Errorf("child %+v", v)
		}
	}
	for i, r := range fork(`{"name":"child","count":3,"mode":"ro"}`) {
		if want := fmt.Sprintf("child-%d", i+1); r.Volume == nil || r.Volume.Name != want || r.Volume.Mode != "ro" {
			t.Errorf("child %d: %+v", i, r)
		}
	}
	if one := fork(`{"name":"one"}`); one[0].Volume.Name != "one" {
		t.Errorf("named %+v", one[0].Volume)
	}
	if many := fork(`{"count":100}`); len(many) != 100 {
		t.Errorf("%d children", len(many))
	}
	before := len(read[[]wire.Volume](a.do("GET", "/volumes", "")))
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"count":-1}`, `{"count":1.5}`, `{"count":"2"}`, `[]`, `{"flush":1}`} {
		a.do("POST", "/volumes/src/fork", body).is(400)
	}
	a.do("POST", "/volumes/src/fork", `{"name":"a b"}`).fails(400, wire.InvalidName)
	a.do("POST", "/volumes/src/fork", `{"name":"`+strings.Repeat("x", 128)+`","count":2}`).fails(400, wire.InvalidName)
	a.do("POST", "/volumes/src/fork", `{"mode":"shared-write"}`).fails(400, wire.UnsupportedMode)
	a.do("POST", "/volumes/nobody/fork", "").fails(404, wire.VolumeNotFound)
	// One name that is taken refuses the whole batch before anything is made.
	e := a.do("POST", "/volumes/src/fork", `{"name":"child","count":5}`).fails(409, wire.NameTaken).error()
	if !strings.Contains(e.Message, "already exists") {
		t.Errorf("message %q", e.Message)
	}
	if after := len(read[[]wire.Volume](a.do("GET", "/volumes", ""))); after != before {
		t.Errorf("%d volumes, %d before the refusals", after, before)
	}
}

// a volume that another node's sandbox holds can be forked, and not flushed from here.
func TestForkAndSnapshotOfAHeldVolume(t *testing.T) {
	st := newAPI(t)
	st.create("held")
	s, err := st.manager(red).Attach(context.Background(), "held", "sandbox-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Mounted(context.Background()); err != nil {
		t.Fatal(err)
	}
	st.do("POST", "/volumes/held/fork", "").is(201)
	st.do("POST", "/volumes/held/snapshots", "").is(201)
	// This node is the holder's: it can flush. The content is then as after a crash, of which no ro volume is made.
	if err := write(s); err != nil {
		t.Fatal(err)
	}
	st.do("POST", "/volumes/held/fork", `{"flush":true,"count":3}`).is(201)
	st.do("POST", "/volumes/held/fork", `{"mode":"ro"}`).fails(409, wire.NotClean)
	st.do("POST", "/volumes/held/snapshots", `{"flush":true}`).is(201)
}

func write(s *volume.Session) error {
	_, err := s.Device().WriteAt(make([]byte, 4096), 8192)
	return err
}

// an ro volume is made from a snapshot, and from what a volume has published, by creation, restore and fork. It says
// where it came from and is mounted read-only by many.
func TestReadOnlyVolumesAreMadeFromCheckpoints(t *testing.T) {
	a := newAPI(t)
	src := a.create("src")
	k := read[wire.VolumeSnapshot](a.do("POST", "/volumes/src/snapshots", "").is(201))
	for name, c := range map[string]struct {
		path, body string
		from       wire.Source
	}{
		"created":  {"/volumes", `{"name":"created","mode":"ro","source":{"snapshotID":"` + k.SnapshotID + `"}}`, wire.Source{SnapshotID: k.SnapshotID}},
		"copied":   {"/volumes", `{"name":"copied","mode":"ro","source":{"volumeID":"src"}}`, wire.Source{VolumeID: src.VolumeID}},
		"restored": {"/volumes/src/restore", `{"name":"restored","mode":"ro","snapshotID":"` + k.SnapshotID + `"}`, wire.Source{SnapshotID: k.SnapshotID}},
	} {
		v := a.do("POST", c.path, c.body).is(201).volume()
		if v.Mode != "ro" || v.Status != "ready" || v.Source == nil || *v.Source != c.from {
			t.Errorf("%s: %+v, want it to be ro and from %+v", name, v, c.from)
		}
		for _, sandbox := range []string{"one", "two"} {
			r, err := a.manager(red).Pin(t.Context(), v.VolumeID, sandbox)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Release(context.Background()) //nolint:errcheck // the test is over
		}
	}
}

// snapshots outlive their volume, and a restore is a new volume each time.
func TestSnapshotsAndRestore(t *testing.T) {
	a := newAPI(t)
	src := a.create("src")
	a.create("other")
	first := read[wire.VolumeSnapshot](a.do("POST", "/volumes/src/snapshots", `{"name":"v1"}`).is(201))
	if first.VolumeID != src.VolumeID || len(first.Names) != 1 || first.Names[0] != "v1" || first.SizeMB != 16 || first.CreatedAt == nil {
		t.Errorf("snapshot %+v", first)
	}
	second := read[wire.VolumeSnapshot](a.do("POST", "/volumes/"+src.VolumeID+"/snapshots", "").is(201))
	if second.Names == nil || len(second.Names) != 0 {
		t.Errorf("names %v, want an empty array", second.Names)
	}
	a.do("POST", "/volumes/src/snapshots", `{"name":"a b"}`).fails(400, wire.InvalidName)
	a.do("POST", "/volumes/nobody/snapshots", "").fails(404, wire.VolumeNotFound)
	a.do("GET", "/volumes/nobody/snapshots", "").fails(404, wire.VolumeNotFound)
	a.do("POST", "/volumes/other/snapshots", "").is(201)

	count := func(path string) int {
		t.Helper()
		return len(read[[]wire.VolumeSnapshot](a.do("GET", path, "").is(200)))
	}
	for path, want := range map[string]int{
		"/volumes/src/snapshots": 2, "/volumes/other/snapshots": 1, "/volume-snapshots": 3, "/volume-snapshots?name=v1": 1,
		"/volume-snapshots?volumeID=" + src.VolumeID: 2, "/volumes/src/snapshots?name=v2": 0, "/volumes/src/snapshots?limit=1": 1,
		"/volume-snapshots?name=v1&limit=1": 1,
	} {
		if got := count(path); got != want {
			t.Errorf("GET %s: %d snapshots, want %d", path, got, want)
		}
	}
	a.do("GET", "/volume-snapshots?volumeID=%2F", "").is(400)
	// The stock SDK's list of volumes shows none of them.
	if list := read[[]wire.Volume](a.do("GET", "/volumes", "")); len(list) != 2 {
		t.Errorf("volumes %v", list)
	}
	restore := func(path, id string) answer {
		return a.do("POST", path+"/restore", `{"snapshotID":"`+id+`"}`)
	}
	one, two := restore("/volumes/src", first.SnapshotID).is(201).volume(), restore("/volumes/src", first.SnapshotID).is(201).volume()
	if one.VolumeID == two.VolumeID || one.Mode != "exclusive" || one.Source.SnapshotID != first.SnapshotID {
		t.Errorf("restored %+v and %+v", one, two)
	}
	restore("/volumes/other", first.SnapshotID).fails(404, wire.SnapshotNotFound) // not of this volume
	restore("/volumes/src", "unknown").fails(404, wire.SnapshotNotFound)
	restore("/volumes/src", "../x").fails(404, wire.SnapshotNotFound)
	restore("/volumes/nobody", first.SnapshotID).fails(404, wire.VolumeNotFound)
	a.do("POST", "/volumes/src/restore", "").is(400)
	a.do("POST", "/volumes/src/restore", "{}").is(400)
	a.do("POST", "/volumes/src/restore", `{"snapshotID":"`+first.SnapshotID+`","name":"other"}`).fails(409, wire.NameTaken)

	a.do("DELETE", "/volumes/src", "").is(204)
	got := read[wire.VolumeSnapshot](a.do("GET", "/volume-snapshots/"+first.SnapshotID, "").is(200))
	if got.VolumeID != src.VolumeID {
		t.Errorf("snapshot of a deleted volume: %+v", got)
	}
	a.do("POST", "/volumes", `{"name":"late","source":{"snapshotID":"`+first.SnapshotID+`"}}`).is(201)
	a.do("DELETE", "/volume-snapshots/"+first.SnapshotID, "").is(204)
	a.do("DELETE", "/volume-snapshots/"+first.SnapshotID, "").fails(404, wire.SnapshotNotFound)
	a.do("GET", "/volume-snapshots/"+first.SnapshotID, "").fails(404, wire.SnapshotNotFound)
	a.do("GET", "/volume-snapshots/a%2Fb", "").fails(404, wire.SnapshotNotFound)
	a.do("DELETE", "/volume-snapshots/a%2Fb", "").fails(404, wire.SnapshotNotFound)
}

// basic hides what a Manager can do beyond the four calls of E2B, as volumes over PersistentVolumes do.
type basic struct{ e2bhttp.Volumes }

// D-02: what an implementation cannot do is 501, after the caller was authenticated.
func TestWhatVolumesCannotDoIs501(t *testing.T) {
	repo := newAPI(t)
	a := serve(t, func(_ context.Context, tenant string) (e2bhttp.Volumes, error) {
		return basic{repo.manager(tenant)}, nil
	})
	a.create("v")
	for _, c := range [][2]string{{"POST", "/volumes/v/fork"}, {"POST", "/volumes/v/snapshots"}, {"GET", "/volumes/v/snapshots"},
		{"POST", "/volumes/v/restore"}, {"GET", "/volume-snapshots"}, {"GET", "/volume-snapshots/s"}, {"DELETE", "/volume-snapshots/s"}} {
		a.do(c[0], c[1], "").fails(501, wire.Unsupported)
		a.do(c[0], c[1], "", header{"X-API-Key": ""}).is(401)
	}
}

func TestImagesAndTokensAreTheHosts(t *testing.T) {
	a := newAPI(t,
		e2bhttp.WithImages(func(ref string) (volume.Source, error) {
			if ref == "bad" {
				return volume.Source{}, fmt.Errorf("%w: image reference %q: no registry", volume.ErrInvalid, ref)
			}
			return volume.FromVolume(ref), nil
		}),
		e2bhttp.WithTokens(func(_ context.Context, tenant string, v volume.Volume) string { return tenant + "-" + v.Name }))
	a.create("base")
	if ro := a.do("POST", "/volumes", `{"name":"ro","mode":"ro","source":{"image":"base"}}`).is(201).volume(); ro.Mode != "ro" {
		t.Errorf("ro volume of an image: %+v", ro)
	}
	v := a.do("POST", "/volumes", `{"name":"v","source":{"image":"base"}}`).is(201).volume()
	if v.Token != "red-v" {
		t.Errorf("token %q", v.Token)
	}
	a.do("POST", "/volumes", `{"name":"w","source":{"image":"bad"}}`).is(400)
	fork := read[[]wire.ForkResult](a.do("POST", "/volumes/v/fork", `{"name":"f"}`).is(201))
	if fork[0].Volume.Token != "red-f" {
		t.Errorf("token of a fork %q", fork[0].Volume.Token)
	}
	if list := a.do("GET", "/volumes", ""); strings.Contains(string(list.body), "token") {
		t.Errorf("list %s", list.body)
	}
}
