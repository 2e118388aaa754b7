package record

import (
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
)

func clone[S any](t *testing.T, s S) S {
	t.Helper()
	body, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var c S
	if err := json.Unmarshal(body, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// whole is a volume in which every member is set.
func whole() Volume {
	v := held(reservation.Mounted)
	v.Labels, v.DeletedAt, v.Settled = map[string]string{"a": "b"}, t0, true
	v.Origin = Origin{Tenant: "_", Volume: "src", Checkpoint: "src_1", Generation: 4, Image: "image"}
	v.Content.PublishedAt = t0
	v.Stack.Layers[0].Codec = "zfile"
	v.Renaming = &Renaming{Name: "new", Claim: "c"}
	v.Former = []Former{{Layer: layer("f"), First: 1, Last: 2}}
	v.Leaving, v.Fenced = []Left{{Layer: layer("l")}}, []Fenced{{Epoch: 1, Stack: stack("z")}}
	v.Token, v.Request = "token", "sha256:r"
	v.Reservation.Grant.Reason = "node n0 is gone"
	return v
}

// the members of a record, and their names, are a format that other versions read.
func TestGoldenVolume(t *testing.T) {
	want, err := os.ReadFile("testdata/volume.json")
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(whole(), json.Deterministic(true), jsontext.Multiline(true))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(body)+"\n"); diff != "" {
		t.Error(diff)
	}
	var got Volume
	if err := json.Unmarshal(want, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole(), got); diff != "" {
		t.Error(diff)
	}
}

// a member that this version does not know is kept at every level at which a newer one may add it.
func TestUnknownMembersAreKeptAtEveryLevel(t *testing.T) {
	body, err := json.Marshal(whole(), json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	// Every object gets one, but the labels, whose members are the user's.
	text := strings.ReplaceAll(string(body), "{", `{"future":1,`)
	text = strings.Replace(text, `"labels":{"future":1,`, `"labels":{`, 1)
	var v Volume
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	if want, got := strings.Count(text, "future"), strings.Count(string(again), "future"); got != want {
		t.Errorf("%d of %d are left: %s", got, want, again)
	}
}

func TestNamesAndIDs(t *testing.T) {
	const id = "01a22e94-ec33-74d5-877c-a48966d44115"
	for name, good := range map[string]bool{
		"a": true, "A-Za-z_09": true, strings.Repeat("n", 128): true, "0123": true,
		"": false, strings.Repeat("n", 129): false, "a b": false, "a/b": false, "..": false, "ä": false, "a\n": false,
		id: false, strings.ToUpper(id): false, strings.ReplaceAll(id, "-", ""): false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
	if !IsVolumeID(id) || IsVolumeID("{"+id[:34]+"}") || IsVolumeID(strings.ReplaceAll(id, "-", "")) || IsVolumeID("data") {
		t.Error("volume ids")
	}
}
