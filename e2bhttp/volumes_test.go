package e2bhttp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// the four volume calls, with E2B's shapes and codes.
func TestVolumeCallsHaveE2BShapes(t *testing.T) {
	a := newAPI(t)
	if got := a.do("GET", "/volumes", "").is(200); string(got.body) != "[]" {
		t.Errorf("empty list is %s", got.body)
	}
	made := a.create("my-data")
	raw := read[map[string]any](a.do("GET", "/volumes/"+made.VolumeID, "").is(200))
	if raw["volumeID"] != made.VolumeID || raw["name"] != "my-data" || raw["token"] != "" {
		t.Errorf("volume %v", raw)
	}
	// by name too.
	if byName := a.do("GET", "/volumes/my-data", "").is(200).volume(); byName.VolumeID != made.VolumeID {
		t.Errorf("by name: %+v", byName)
	}
	list := read[[]map[string]any](a.do("GET", "/volumes", "").is(200))
	if len(list) != 1 || list[0]["volumeID"] != made.VolumeID {
		t.Errorf("list %v", list)
	}
	if _, has := list[0]["token"]; has {
		t.Error("a list item has a token")
	}
	if got := a.do("DELETE", "/volumes/"+made.VolumeID, "").is(204); len(got.body) != 0 {
		t.Errorf("body of a deletion: %s", got.body)
	}
	a.do("DELETE", "/volumes/"+made.VolumeID, "").fails(404, wire.VolumeNotFound)
	a.do("GET", "/volumes/"+made.VolumeID, "").fails(404, wire.VolumeNotFound)
	a.create("my-data") // the name is free again
}

// E2B's generated Python client takes token with pop and fails without it, and takes errors from JSON only. A-018.
func TestPythonClientRules(t *testing.T) {
	a := newAPI(t)
	made := a.do("POST", "/volumes", `{"name":"v"}`).is(201)
	for _, r := range []answer{made, a.do("GET", "/volumes/v", "").is(200)} {
		if token, ok := read[map[string]any](r)["token"].(string); !ok || token != "" {
			t.Errorf("%s: token is not an empty string: %s", r.what, r.body)
		}
		if _, has := read[map[string]any](r)["domain"]; has {
			t.Errorf("%s: has a domain: %s", r.what, r.body)
		}
	}
	for _, r := range []answer{
		a.do("GET", "/volumes", "", header{"X-API-Key": ""}).is(401),
		a.do("GET", "/volumes", "", header{"X-API-Key": "e2b_ff"}).is(401),
		a.do("GET", "/nothing/here", "").is(404),
		a.do("GET", "/", "").is(404),
		a.do("PUT", "/volumes", "").is(405),
		a.do("PATCH", "/volumes/v", "").is(405),
		a.do("POST", "/volumes", "not json").is(400),
		a.do("POST", "/volumes", `{"name":"v"}`).is(409),
		a.do("POST", "/volumes", `{"name":"`+strings.Repeat("x", 2<<20)+`"}`).is(413),
		a.do("DELETE", "/volumes/unknown", "").is(404),
	} {
		if e := read[map[string]any](r); e["code"] != float64(r.status) || e["message"] == "" {
			t.Errorf("%s: %s", r.what, r.body)
		}
	}
}

// The same rules on the routes that E2B does not have, and on a host's own that the handler wraps: each volume that is made
// has its token, lists are arrays, and whatever fails, in the host's store too, is JSON whose code is the status.
func TestPythonClientRulesOnAllRoutes(t *testing.T) {
	a := newAPI(t)
	v := a.create("v")
	k := read[wire.VolumeSnapshot](a.do("POST", "/volumes/v/snapshots", "{}").is(201))
	token := func(r answer, volume any) {
		t.Helper()
		if got, ok := volume.(map[string]any)["token"].(string); !ok || got != "" {
			t.Errorf("%s: token is not an empty string: %s", r.what, r.body)
		}
	}
	forks := a.do("POST", "/volumes/v/fork", `{"count":2}`).is(201)
	for _, f := range read[[]map[string]any](forks) {
		token(forks, f["volume"])
	}
	restored := a.do("POST", "/volumes/v/restore", `{"snapshotID":"`+k.SnapshotID+`"}`).is(201)
	token(restored, read[any](restored))
	copied := a.do("POST", "/volumes", `{"name":"c","source":{"volumeID":"v"}}`).is(201)
	token(copied, read[any](copied))
	for _, path := range []string{"/volumes", "/volumes/v/snapshots", "/volume-snapshots", "/volume-snapshots?name=none"} {
		if list := read[any](a.do("GET", path, "").is(200)); list == nil {
			t.Errorf("%s: null, want an array", path)
		}
	}
	for path, methods := range map[string][]string{
		"/volumes": {"GET", "POST", "PUT"}, "/volumes/" + v.VolumeID: {"GET", "DELETE", "PATCH"}, "/volumes/v/fork": {"POST", "GET"},
		"/volumes/v/snapshots": {"GET", "POST", "DELETE"}, "/volumes/v/restore": {"POST"}, "/volume-snapshots": {"GET", "POST"},
		"/volume-snapshots/" + k.SnapshotID: {"GET", "DELETE", "PUT"}, "/volumes/v/nothing": {"GET"},
	} {
		for _, method := range methods {
			for _, h := range []header{{"X-API-Key": ""}, {"X-API-Key": "e2b_ff"}} {
				if r := a.plain(method, path, "", h); r.status != 401 && r.status != 404 && r.status != 405 {
					t.Errorf("%s without a key: %d", r.what, r.status)
				} else {
					r.is(r.status)
				}
			}
		}
	}
	down := serve(t, func(context.Context, string) (e2bhttp.Volumes, error) { return nil, errors.New("disk") })
	for _, r := range []answer{down.do("GET", "/volumes", ""), down.do("DELETE", "/volumes/v", ""), down.do("POST", "/volumes", `{"name":"v"}`)} {
		if r.fails(503, wire.StoreUnavailable); r.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", r.what)
		}
	}
	mounts := a.h.Mounts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the host was asked") }))
	for body, want := range map[string]int{`{"volumeMounts":7}`: 400, `{"volumeMounts":{"/a":"none"}}`: 400, `[`: 400} {
		w := recordBody(mounts, "POST", "/sandboxes", body)
		answer{t: t, what: "POST /sandboxes", status: w.Code, header: w.Header(), body: w.Body.Bytes()}.is(want)
	}
}

// what is left out of a request has its default, and the handler needs no option.
func TestDefaultsAreExclusiveEmptyAnd64GiB(t *testing.T) {
	a := newAPI(t)
	v := a.do("POST", "/volumes", `{"name":"plain"}`).is(201).volume()
	if v.Mode != "exclusive" || v.SizeMB != 65536 || v.Source != nil || v.Status != "ready" || v.CreatedAt == nil {
		t.Errorf("volume %+v", v)
	}
	if time.Since(*v.CreatedAt) > time.Hour {
		t.Errorf("created at %v", v.CreatedAt)
	}
	// Null is absent, for clients that write every member.
	nulls := a.plain("POST", "/volumes", `{"name":"nulls","mode":null,"sizeMB":null,"source":null,"labels":null}`)
	if v := nulls.is(201).volume(); v.Mode != "exclusive" || v.SizeMB != 65536 {
		t.Errorf("volume %+v", v)
	}
}

// a wrong member is refused with its name, value and limit, and nothing is made.
func TestWrongCreateBodiesAreRefused(t *testing.T) {
	a := newAPI(t)
	a.create("src")
	for _, c := range []struct{ body, code, message string }{
		{``, "", "body"},
		{`null`, "", "body"},
		{`[]`, "", "body"},
		{`{}`, wire.InvalidName, "name"},
		{`{"name":1}`, wire.InvalidName, "name"},
		{`{"name":""}`, wire.InvalidName, "name"},
		{`{"name":"a b"}`, wire.InvalidName, "a b"},
		{`{"name":"a\n"}`, wire.InvalidName, "name"},
		{`{"name":"../etc"}`, wire.InvalidName, "../etc"},
		{`{"name":"` + strings.Repeat("n", 129) + `"}`, wire.InvalidName, "128"},
		{`{"name":"0197c2b0-0000-7000-8000-000000000000"}`, wire.InvalidName, "UUID"},
		{`{"name":"a","name":"b"}`, "", "twice"},
		{`{"name":"a"} {}`, "", "body"},
		{`{"name":"a","mode":""}`, wire.UnsupportedMode, "exclusive"},
		{`{"name":"a","mode":"shared-write"}`, wire.UnsupportedMode, "shared-write"},
		{`{"name":"a","mode":"rw"}`, wire.UnsupportedMode, "rw"},
		{`{"name":"a","mode":7}`, wire.UnsupportedMode, "mode"},
		{`{"name":"a","mode":"ro"}`, "", "source"},
		{`{"name":"a","sizeMB":0}`, wire.InvalidSize, "sizeMB"},
		{`{"name":"a","sizeMB":-1}`, wire.InvalidSize, "sizeMB"},
		{`{"name":"a","sizeMB":15}`, wire.InvalidSize, "16"},
		{`{"name":"a","sizeMB":1.5}`, wire.InvalidSize, "whole"},
		{`{"name":"a","sizeMB":"64"}`, wire.InvalidSize, "sizeMB"},
		{`{"name":"a","sizeMB":99999999999999999999}`, wire.InvalidSize, "sizeMB"},
		{`{"name":"a","sizeMB":16777217}`, wire.InvalidSize, "16777216"},
		{`{"name":"a","sizeMB":8,"source":{"volumeID":"src"}}`, wire.InvalidSize, "sizeMB"},
		{`{"name":"a","source":{}}`, "", "exactly one"},
		{`{"name":"a","source":"src"}`, "", "source"},
		{`{"name":"a","source":{"volumeID":"src","image":"x"}}`, "", "exactly one"},
		{`{"name":"a","source":{"volumeID":""}}`, "", "exactly one"},
		{`{"name":"a","source":{"volumeID":5}}`, "", "volumeID"},
		{`{"name":"a","labels":{"k":1}}`, "", "labels"},
		{`{"name":"a","labels":{"bad key":"v"}}`, "", "bad key"},
		{`{"name":"a","flush":"yes"}`, "", "flush"},
		{`{"name":"a","flush":true}`, "", "flush"},
	} {
		got := a.do("POST", "/volumes", c.body).fails(400, c.code)
		if !strings.Contains(got.error().Message, c.message) {
			t.Errorf("%s: message %q does not name %q", c.body, got.error().Message, c.message)
		}
	}
	if list := read[[]wire.Volume](a.do("GET", "/volumes", "")); len(list) != 1 {
		t.Errorf("volumes %v", list)
	}
	// Members that are not known are ignored, as E2B does.
	a.do("POST", "/volumes", `{"name":"extra","sizeMB":16,"metadata":{"a":"b"},"other":[1]}`).is(201)
}

// every source, and those that are not there.
func TestCreateFromSources(t *testing.T) {
	a := newAPI(t)
	src := a.do("POST", "/volumes", `{"name":"src","sizeMB":32}`).is(201).volume()
	kept := read[wire.VolumeSnapshot](a.do("POST", "/volumes/src/snapshots", "").is(201))

	fromVolume := a.do("POST", "/volumes", `{"name":"a","source":{"volumeID":"`+src.VolumeID+`"}}`).is(201).volume()
	if fromVolume.SizeMB != 32 || fromVolume.Source == nil || fromVolume.Source.VolumeID != src.VolumeID {
		t.Errorf("from a volume: %+v", fromVolume)
	}
	if l := fromVolume.Lineage; l == nil || l.VolumeID != src.VolumeID || l.Generation == 0 {
		t.Errorf("lineage %+v", l)
	}
	byName := a.do("POST", "/volumes", `{"name":"b","mode":"ro","sizeMB":48,"source":{"volumeID":"src"}}`).is(201).volume()
	if byName.Mode != "ro" || byName.SizeMB != 48 {
		t.Errorf("by name, larger: %+v", byName)
	}
	fromSnapshot := a.do("POST", "/volumes", `{"name":"c","source":{"snapshotID":"`+kept.SnapshotID+`"}}`).is(201).volume()
	if want := (&wire.Source{SnapshotID: kept.SnapshotID}); !cmp.Equal(fromSnapshot.Source, want) {
		t.Errorf("from a snapshot: %s", cmp.Diff(want, fromSnapshot.Source))
	}
	for _, ref := range []string{"unknown", "0197c2b0-0000-7000-8000-000000000000", "a b", "../x", strings.Repeat("x", 300)} {
		a.do("POST", "/volumes", fmt.Sprintf(`{"name":"d","source":{"volumeID":%q}}`, ref)).fails(404, wire.VolumeNotFound)
		a.do("POST", "/volumes", fmt.Sprintf(`{"name":"d","source":{"snapshotID":%q}}`, ref)).fails(404, wire.SnapshotNotFound)
	}
	a.do("POST", "/volumes", `{"name":"d","source":{"image":"docker.io/library/alpine"}}`).fails(501, wire.Unsupported)
}

// a volume that a sandbox holds is shown with it, is not deleted, and the answer says who has it.
func TestHeldVolumeIsShownAndNotDeleted(t *testing.T) {
	a := newAPI(t)
	v := a.create("held")
	s, err := a.manager(red).Attach(context.Background(), v.VolumeID, "sandbox-1")
	if err != nil {
		t.Fatal(err)
	}
	got := a.do("GET", "/volumes/held", "").is(200).volume()
	if got.Reservation == nil || got.Reservation.SandboxID != "sandbox-1" || got.Reservation.Phase != "preparing" {
		t.Errorf("reservation %+v", got.Reservation)
	}
	e := a.do("DELETE", "/volumes/held", "").fails(409, wire.VolumeInUse).error()
	if !strings.Contains(e.Message, "sandbox-1") {
		t.Errorf("message %q", e.Message)
	}
	cut, err := s.Seal(context.Background(), volume.NewCut(volume.Clean, true))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(context.Background(), cut); err != nil {
		t.Fatal(err)
	}
	a.do("DELETE", "/volumes/held", "").fails(409, wire.VolumeInUse) // paused counts
}

// An ro volume that is mounted is not deleted.
func TestPinnedVolumeIsNotDeleted(t *testing.T) {
	a := newAPI(t)
	a.create("src")
	a.do("POST", "/volumes", `{"name":"data","mode":"ro","source":{"volumeID":"src"}}`).is(201)
	r, err := a.manager(red).Pin(context.Background(), "data", "reader-1")
	if err != nil {
		t.Fatal(err)
	}
	if e := a.do("DELETE", "/volumes/data", "").fails(409, wire.VolumeInUse).error(); !strings.Contains(e.Message, "reader-1") {
		t.Errorf("message %q", e.Message)
	}
	if err := r.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.do("DELETE", "/volumes/data", "").is(204)
}

// a repeated creation with the same key returns the same volume; the key is of one request.
func TestIdempotencyKey(t *testing.T) {
	a := newAPI(t)
	key := header{"Idempotency-Key": "any text: 5f/%"}
	first := a.do("POST", "/volumes", `{"name":"a","sizeMB":16}`, key).is(201).volume()
	again := a.do("POST", "/volumes", `{"sizeMB":16,"name":"a"}`, key).is(201).volume()
	if first.VolumeID != again.VolumeID {
		t.Errorf("made %s and %s", first.VolumeID, again.VolumeID)
	}
	a.do("POST", "/volumes", `{"name":"a","sizeMB":32}`, key).fails(422, wire.IdempotencyMismatch)
	a.do("POST", "/volumes", `{"name":"a","sizeMB":16}`).fails(409, wire.NameTaken)
	a.do("POST", "/volumes", `{"name":"a","sizeMB":16}`, header{"Idempotency-Key": "other"}).fails(409, wire.NameTaken)
	a.do("POST", "/volumes", `{"name":"b"}`, header{"Idempotency-Key": strings.Repeat("k", 256)}).is(400)
	// Another tenant's key is another key.
	if b := a.do("POST", "/volumes", `{"name":"a","sizeMB":16}`, key, asBlue).is(201).volume(); b.VolumeID == first.VolumeID {
		t.Error("a tenant got another's volume")
	}
	forks := func(body string) (ids []string) {
		for _, r := range read[[]wire.ForkResult](a.do("POST", "/volumes/a/fork", body, key).is(201)) {
			ids = append(ids, r.Volume.VolumeID)
		}
		return ids
	}
	for _, body := range []string{`{"count":9}`, `{"count":2,"name":"f"}`} {
		if diff := cmp.Diff(forks(body), forks(body)); diff != "" {
			t.Errorf("repeated fork %s: %s", body, diff)
		}
	}
	snap := func(body string) answer { return a.do("POST", "/volumes/a/snapshots", body, key) }
	one := read[wire.VolumeSnapshot](snap(`{"name":"s"}`).is(201))
	if two := read[wire.VolumeSnapshot](snap(`{"name":"s"}`).is(201)); two.SnapshotID != one.SnapshotID {
		t.Errorf("snapshots %s and %s", one.SnapshotID, two.SnapshotID)
	}
	snap(`{"name":"other"}`).fails(422, wire.IdempotencyMismatch)
	restore := func() string {
		return a.do("POST", "/volumes/a/restore", `{"snapshotID":"`+one.SnapshotID+`"}`, key).is(201).volume().VolumeID
	}
	if x, y := restore(), restore(); x != y {
		t.Errorf("restored %s and %s", x, y)
	}
}

// unreadable is a list with a record that a newer version wrote.
type unreadable struct{ e2bhttp.Volumes }

func (unreadable) List(context.Context, volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return func(yield func(volume.Volume, error) bool) {
		yield(volume.Volume{ID: "id", Status: volume.StatusUnreadable}, nil)
	}
}

// A record that cannot be read does not hide the others, and has what E2B's clients need: an id and a name.
func TestUnreadableRecordsAreListed(t *testing.T) {
	a := serve(t, func(context.Context, string) (e2bhttp.Volumes, error) { return unreadable{}, nil })
	if got := a.do("GET", "/volumes", "").is(200); string(got.body) != `[{"volumeID":"id","name":"id","status":"unreadable"}]` {
		t.Errorf("list %s", got.body)
	}
}
