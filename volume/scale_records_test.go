package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// kinds are what a repository holds besides layers, each by the name of its golden file.
var kinds = map[string]func(*testing.T, []byte) any{
	"volume":     logged[record.Volume],
	"checkpoint": logged[record.Checkpoint],
	"name":       logged[record.Name],
	"run":        logged[record.Run],
	"format":     logged[volume.FormatState],
	"driveset":   logged[mount.DriveSet],
	"pin":        alone[volume.PinBody],
	"heartbeat":  alone[volume.BeatBody],
	"notice":     alone[volume.Notice],
}

// the records that each version wrote are read by this one and written back byte by byte, with
// what was unknown to either at every level. The files of a version are never changed: a version that adds a member gets a
// directory of its own.
func TestGoldenRecordsOfEveryVersionAreReadAndKept(t *testing.T) {
	versions := must[[]string](t)(filepath.Glob("testdata/records/*"))
	slices.Sort(versions)
	for i, dir := range versions {
		files := must[[]string](t)(filepath.Glob(filepath.Join(dir, "*.json")))
		if len(files) != len(kinds) {
			t.Errorf("%s has %d kinds of records, want %d", dir, len(files), len(kinds))
		}
		for _, file := range files {
			kind := strings.TrimSuffix(filepath.Base(file), ".json")
			t.Run(filepath.Base(dir)+"/"+kind, func(t *testing.T) {
				body := jsontext.Value(must[[]byte](t)(os.ReadFile(file)))
				ok(t, body.Compact())
				got := kinds[kind](t, body)
				if i == len(versions)-1 {
					wantWhole(t, reflect.ValueOf(got), kind)
				}
			})
		}
	}
}

// alone checks an object that is a record by itself.
func alone[S any](t *testing.T, body []byte) any {
	t.Helper()
	var s S
	ok(t, json.Unmarshal(body, &s))
	wantBody(t, body, s)
	return s
}

// logged checks a generation of a log: it is the newest of the log that it is put into, an operation that finds its effect
// there appends nothing, and one that changes nothing else carries everything over.
func logged[S any](t *testing.T, body []byte) any {
	t.Helper()
	var head struct {
		Number uint64         `json:"generation"`
		State  jsontext.Value `json:"state"`
	}
	ok(t, json.Unmarshal(body, &head))
	st := memstore.New()
	ok(t, st.PutIfAbsent(t.Context(), genlog.Key("v1/x/", head.Number), body))
	log := genlog.New[S](st, "v1/x/")
	gen := must[genlog.Generation[S]](t)(log.Newest(t.Context()))
	wantBody(t, body, gen)

	same := genlog.Op[S]{Name: "same", Apply: func(s S) (S, bool, error) { return s, false, nil }}
	if again := must[genlog.Generation[S]](t)(log.Append(t.Context(), same)); again.Number != head.Number {
		t.Errorf("generation %d was appended", again.Number)
	}
	touch := genlog.Op[S]{Name: "touch", Apply: func(s S) (S, bool, error) { return s, true, nil }}
	must[genlog.Generation[S]](t)(log.Append(t.Context(), touch))
	next := must[genlog.Generation[S]](t)(log.Newest(t.Context()))
	if next.Number != head.Number+1 {
		t.Fatalf("the newest generation is %d", next.Number)
	}
	wantBody(t, head.State, next.State)
	if diff := cmp.Diff(gen.Unknown, next.Unknown); diff != "" {
		t.Errorf("the envelope: %s", diff)
	}
	if diff := cmp.Diff(gen.Kept, next.Kept[:len(gen.Kept)]); diff != "" {
		t.Errorf("kept generations: %s", diff)
	}
	return gen
}

func wantBody(t *testing.T, want []byte, v any) {
	t.Helper()
	got := must[[]byte](t)(json.Marshal(v, json.Deterministic(true)))
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("written again: %s", diff)
	}
}

// wantWhole checks that no field of a record is left out of the newest golden file.
func wantWhole(t *testing.T, v reflect.Value, path string) {
	t.Helper()
	if v.IsZero() {
		t.Errorf("%s is not set", path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		wantWhole(t, v.Elem(), path)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				wantWhole(t, v.Index(i), path)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				wantWhole(t, v.Field(i), path+"."+f.Name)
			}
		}
	}
}

// what was written before a sandbox had drives is a set without any, and is written back as it was.
func TestDocumentWithoutDrivesIsAnEmptySetAndKept(t *testing.T) {
	body := []byte(`{"phase":"paused","template":"base","snapshot":{"memory":"m1","disk":["d1"]}}`)
	var set mount.DriveSet
	ok(t, json.Unmarshal(body, &set))
	if len(set.Drives) > 0 {
		t.Errorf("drives %v", set.Drives)
	}
	wantBody(t, body, set)
	// A host's own document has no phase either, and there is no log of the sandbox: it has no drives.
	var bare mount.DriveSet
	ok(t, json.Unmarshal([]byte(`{"template":"base"}`), &bare))
	if len(bare.Drives) > 0 || bare.Phase != "" || string(bare.Extra) != `{"template":"base"}` {
		t.Errorf("%+v", bare)
	}
	m := newWorld(t).node("a")
	log := must[*genlog.Log[mount.DriveSet]](t)(volume.OpenSandboxLog[mount.DriveSet](m, "before"))
	if _, err := log.Newest(t.Context()); !errors.Is(err, genlog.ErrNotFound) {
		t.Error(err)
	}
}
