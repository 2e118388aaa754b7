package journal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/reservation"
)

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func entry(id string) Entry {
	return Entry{Kind: Grant, Tenant: "team", Volume: "v", Sandbox: "sb", ID: id, Dir: "drives/v/" + id,
		From: reservation.Paused, Epoch: 3, At: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
		Sealed:  &Cut{ID: "c", Consistency: "clean", Final: true, At: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)},
		Uploads: map[string]Upload{"u": {Key: "k", Writer: "w", Digest: "d", Size: 7}}, Spent: []string{"old"},
		Extra: jsontext.Value(`{"future":1}`)}
}

// What Put has returned for is there after a restart, entry by entry, in the order of their times.
func TestEntriesSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := open(t, dir)
	late, early := entry("a"), entry("b")
	late.At = late.At.Add(time.Hour)
	for _, e := range []Entry{late, early} {
		if err := j.Put(e); err != nil {
			t.Fatal(err)
		}
	}
	early.Epoch, early.Sealed = 4, nil
	if err := j.Put(early); err != nil {
		t.Fatal(err)
	}
	got, bad := open(t, dir).All()
	early.Format, late.Format = Format, Format
	if diff := cmp.Diff([]Entry{early, late}, got); diff != "" || len(bad) > 0 {
		t.Errorf("%s %v", diff, bad)
	}
	for id, match := range map[string]func(Entry) bool{
		"b": func(e Entry) bool { return e.Volume == "v" }, // the oldest of both
		"a": func(e Entry) bool { return e.Epoch == 3 },
		"":  func(e Entry) bool { return e.Volume == "other" },
	} {
		if got, ok, bad := j.Find(match); got.ID != id || ok != (id != "") || len(bad) > 0 {
			t.Errorf("found %q, want %q", got.ID, id)
		}
	}
	for range 2 { // forgetting what is not there is success
		if err := j.Remove("a"); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := open(t, dir).All(); len(got) != 1 || got[0].ID != "b" {
		t.Errorf("%+v", got)
	}
}

// files that are no entries of this version are reported by name and left alone, whatever is done to the others.
func TestUnreadableFilesAreReportedAndKept(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"torn.json":  `{"format":1,"kind":"grant","tena`,
		"newer.json": `{"format":2,"kind":"grant","tenant":"t","volume":"v","sandbox":"s","id":"newer"}`,
		"kind.json":  `{"format":1,"kind":"loan","tenant":"t","volume":"v","sandbox":"s","id":"kind"}`,
		"bare.json":  `{"format":1}`,
		"readme.txt": "what is this",
		"copy.json":  `{"format":1,"kind":"grant","tenant":"t","volume":"v","sandbox":"s","id":"original"}`,
		"twice.json": `{"format":1,"kind":"grant","kind":"pin","tenant":"t","volume":"v","sandbox":"s","id":"twice"}`,
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	j := open(t, dir)
	if err := j.Put(entry("good")); err != nil {
		t.Fatal(err)
	}
	if err := j.Remove("good"); err != nil {
		t.Fatal(err)
	}
	entries, bad := j.All()
	if len(entries) > 0 || len(bad) != len(files) {
		t.Errorf("%d entries, %v", len(entries), bad)
	}
	for _, err := range bad {
		u, ok := err.(*UnreadableError)
		if !ok || files[u.Path] == "" {
			t.Errorf("%v", err)
		}
	}
	for name, body := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != body {
			t.Errorf("%s was changed: %q %v", name, got, err)
		}
	}
}

// An entry is never half written under its name: a Put that fails leaves the earlier one.
func TestFailedPutLeavesTheEarlierEntry(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	first := entry("a")
	if err := j.Put(first); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second := first
	second.Epoch = 9
	if err := j.Put(second); err == nil {
		t.Fatal("written into a directory that is gone")
	}
	first.Format = Format
	if got, _ := j.All(); len(got) != 1 || got[0].Epoch != first.Epoch {
		t.Errorf("%+v", got)
	}
}

func TestGoldenEntry(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Put(entry("a")); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/entry.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}
