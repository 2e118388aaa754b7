package e2bhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// what belongs to another tenant is answered like what never existed, byte by byte, on every route, and is not
// changed.
func TestForeignIsUnknown(t *testing.T) {
	a := newAPI(t)
	v := a.create("private")
	k := read[wire.VolumeSnapshot](a.do("POST", "/volumes/private/snapshots", `{"name":"s"}`).is(201))
	a.do("POST", "/volumes", `{"name":"own","sizeMB":16}`, asBlue).is(201)
	gone := "0197c2b0-0000-7000-8000-000000000000"
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/volumes/ID", ""}, {"DELETE", "/volumes/ID", ""}, {"POST", "/volumes/ID/fork", "{}"},
		{"POST", "/volumes/ID/snapshots", "{}"}, {"GET", "/volumes/ID/snapshots", ""},
		{"POST", "/volumes/ID/restore", `{"snapshotID":"SNAP"}`}, {"POST", "/volumes/own/restore", `{"snapshotID":"SNAP"}`},
		{"POST", "/volumes", `{"name":"x","source":{"volumeID":"ID"}}`}, {"POST", "/volumes", `{"name":"x","source":{"snapshotID":"SNAP"}}`},
		{"GET", "/volume-snapshots/SNAP", ""}, {"DELETE", "/volume-snapshots/SNAP", ""}, {"GET", "/volumes/NAME", ""},
	} {
		ask := func(id, snapshot, name string) (int, string) {
			r := strings.NewReplacer("ID", id, "SNAP", snapshot, "NAME", name)
			path, body := c.path, c.body
			for _, field := range []string{`"snapshotID"`, `"volumeID"`} { // members are not to be replaced
				body = strings.ReplaceAll(body, field, strings.ToLower(field))
			}
			body = r.Replace(body)
			body = strings.ReplaceAll(strings.ReplaceAll(body, `"snapshotid"`, `"snapshotID"`), `"volumeid"`, `"volumeID"`)
			got := a.do(c.method, r.Replace(path), body, asBlue)
			return got.status, strings.NewReplacer(snapshot, "SNAP", id, "ID", name, "NAME").Replace(string(got.body))
		}
		status, body := ask(v.VolumeID, k.SnapshotID, "private")
		wantStatus, wantBody := ask(gone, gone+"_AAAAAAAAAAAAAAAAAAAAAAAAAA", "unknown")
		if status != 404 || status != wantStatus || body != wantBody {
			t.Errorf("%s %s: foreign %d %s, unknown %d %s", c.method, c.path, status, body, wantStatus, wantBody)
		}
	}
	if list := a.do("GET", "/volume-snapshots?volumeID="+v.VolumeID, "", asBlue).is(200); string(list.body) != "[]" {
		t.Errorf("foreign snapshots: %s", list.body)
	}
	if list := read[[]wire.Volume](a.do("GET", "/volumes", "", asBlue)); len(list) != 1 || list[0].Name != "own" {
		t.Errorf("volumes of the other tenant: %+v", list)
	}
	a.do("GET", "/volumes/private", "").is(200)
	a.do("GET", "/volume-snapshots/"+k.SnapshotID, "").is(200)
}

// finding out takes the same requests of the store, so that time does not tell either.
func TestForeignTakesTheSameWork(t *testing.T) {
	var work counter
	counted := &work
	repo := openRepository(t, counting{memstore.New(), counted}, "node-1")
	a := serve(t, e2bhttp.ForRepository(repo))
	v := a.create("private")
	for _, method := range []string{"GET", "DELETE"} {
		cost := func(id string) int {
			before := work.value()
			a.do(method, "/volumes/"+id, "", asBlue).is(404)
			return work.value() - before
		}
		if foreign, unknown := cost(v.VolumeID), cost("0197c2b0-0000-7000-8000-000000000000"); foreign != unknown {
			t.Errorf("%s: %d requests for a foreign id, %d for an unknown one", method, foreign, unknown)
		}
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add()       { c.mu.Lock(); defer c.mu.Unlock(); c.n++ }
func (c *counter) value() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

// counting counts the reads of a store.
type counting struct {
	store.Store
	n *counter
}

func (s counting) Get(ctx context.Context, key string) ([]byte, error) {
	s.n.add()
	return s.Store.Get(ctx, key)
}

func (s counting) List(ctx context.Context, prefix, after string, limit int) iter.Seq2[store.Entry, error] {
	s.n.add()
	return s.Store.List(ctx, prefix, after, limit)
}

func TestAuthentication(t *testing.T) {
	a := newAPI(t)
	for _, h := range []header{{"X-API-Key": ""}, {"X-API-Key": "e2b_a"}, {"X-API-Key": redKey + "0"}, {"X-API-Key": redKey[:10]},
		{"X-API-Key": "", "Authorization": "Bearer " + redKey}} {
		a.do("GET", "/volumes", "", h).is(401)
	}
	twice, err := http.NewRequest("GET", a.url+"/volumes", nil)
	if err != nil {
		t.Fatal(err)
	}
	twice.Header["X-Api-Key"] = []string{redKey, redKey}
	a.send(twice).is(401)
	a.do("GET", "/volumes", "", header{"X-API-Key": blueKey, "Authorization": "of the application"}).is(200)
	for _, keys := range []map[string]string{{"": "red"}, {"key": ""}} {
		if _, err := e2bhttp.APIKeys(keys); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("keys %v: %v", keys, err)
		}
	}
}

// What a host's hook answers is mapped, and a request without a tenant is never served.
func TestAuthenticatorErrors(t *testing.T) {
	repo := newAPI(t)
	for _, c := range []struct {
		tenant string
		err    error
		status int
	}{
		{"", nil, 401}, {"red", errors.New("database row e2b_secret"), 401}, {"red", e2bhttp.ErrUnauthenticated, 401},
		{"red", fmt.Errorf("blocked: %w", e2bhttp.ErrForbidden), 403}, {"red", fmt.Errorf("%w: no answer", volume.ErrUnavailable), 503},
		{"no/tenant", nil, 500}, {"_", nil, 500}, {"red", nil, 200},
	} {
		h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo.repo), func(*http.Request) (string, error) { return c.tenant, c.err })
		got := recordBody(h, "GET", "/volumes", "")
		if got.Code != c.status || strings.Contains(got.Body.String(), "secret") {
			t.Errorf("tenant %q, error %v: %d %s", c.tenant, c.err, got.Code, got.Body)
		}
	}
}

// whatever fails, and wherever a credential was quoted, none reaches the log or an answer.
func TestNoCredentialIsLoggedOrAnswered(t *testing.T) {
	var log bytes.Buffer
	secrets := []string{redKey, "hunter2hunter2", "eyJhbGciOi.payload.sig", "s3cr3t-p4ss", "deadbeefcafe", "b64b64b64", "pa55word"}
	failing := fmt.Errorf("%w: pull https://robot:s3cr3t-p4ss@registry.example/x: key %s, Authorization: Bearer eyJhbGciOi.payload.sig, "+
		"token=deadbeefcafe, {\"auth\": \"b64b64b64\"}, admin hunter2hunter2, robot:pa55word@registry.example/y", volume.ErrInvalid, redKey)
	a := newAPI(t, e2bhttp.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		e2bhttp.WithImages(func(ref string) (volume.Source, error) {
			if ref == "panic" {
				panic(failing.Error())
			}
			return volume.Source{}, failing
		}))
	var answers strings.Builder
	for _, image := range []string{"x", "panic"} {
		r := a.do("POST", "/volumes", `{"name":"v","source":{"image":"`+image+`"}}`, header{"X-Admin-Token": "hunter2hunter2"})
		answers.Write(r.body)
	}
	a.do("GET", "/volumes?api_key="+redKey, "", header{"Authorization": "Bearer eyJhbGciOi.payload.sig"}).is(200)
	a.do("GET", "/volumes", "", header{"X-API-Key": "pa55word"}).is(401)
	if lines := strings.Count(log.String(), "msg="); lines != 4 {
		t.Errorf("%d lines logged for 4 requests:\n%s", lines, log.String())
	}
	for _, secret := range secrets {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, log.String())
		}
		if secret != "hunter2hunter2" && strings.Contains(answers.String(), secret) {
			t.Errorf("an answer has %q: %s", secret, answers.String())
		}
	}
	if !strings.Contains(log.String(), "tenant=red") || !strings.Contains(log.String(), "route=/volumes") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestRequestIDs(t *testing.T) {
	a := newAPI(t)
	if got := a.do("GET", "/volumes", "", header{"X-Request-Id": "abc-1.2"}).header.Get("X-Request-Id"); got != "abc-1.2" {
		t.Errorf("request id %q", got)
	}
	fresh := map[string]bool{}
	for _, given := range []string{"", "a b", strings.Repeat("x", 65), `";drop`} {
		fresh[a.do("GET", "/volumes", "", header{"X-Request-Id": given}).header.Get("X-Request-Id")] = true
	}
	if len(fresh) != 4 || fresh[""] || fresh["a b"] {
		t.Errorf("fresh ids %v", fresh)
	}
}

func TestLimits(t *testing.T) {
	a := newAPI(t, e2bhttp.WithLimits(func(_ context.Context, tenant string) (e2bhttp.Limits, error) {
		if tenant == blue {
			return e2bhttp.Limits{SizeMB: 64}, nil
		}
		return e2bhttp.Limits{Volumes: 3}, nil
	}))
	a.create("a")
	a.do("POST", "/volumes/a/fork", `{"count":3}`).fails(403, wire.QuotaExceeded)
	a.do("POST", "/volumes/a/fork", `{"count":2}`).is(201)
	if e := a.do("POST", "/volumes", `{"name":"b"}`).fails(403, wire.QuotaExceeded).error(); !strings.Contains(e.Message, "3 allowed") {
		t.Errorf("message %q", e.Message)
	}
	k := read[wire.VolumeSnapshot](a.do("POST", "/volumes/a/snapshots", "").is(201)) // no volume
	a.do("POST", "/volumes/a/restore", `{"snapshotID":"`+k.SnapshotID+`"}`).fails(403, wire.QuotaExceeded)
	a.do("DELETE", "/volumes/a", "").is(204)
	once := header{"Idempotency-Key": "k"}
	again := func() answer {
		return a.do("POST", "/volumes", `{"name":"b","source":{"snapshotID":"`+k.SnapshotID+`"}}`, once).is(201)
	}
	first := again().volume().VolumeID
	if again().volume().VolumeID != first { // a repetition is nothing more
		t.Error("two volumes for one request")
	}

	a.do("POST", "/volumes", `{"name":"a"}`, asBlue).fails(403, wire.QuotaExceeded) // 64 GiB
	a.do("POST", "/volumes", `{"name":"a","sizeMB":40}`, asBlue).is(201)
	a.do("POST", "/volumes/a/fork", "", asBlue).fails(403, wire.QuotaExceeded)
	a.do("POST", "/volumes", `{"name":"b","source":{"volumeID":"a"}}`, asBlue).fails(403, wire.QuotaExceeded)
	var made counter
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if a.do("POST", "/volumes", fmt.Sprintf(`{"name":"c%d","sizeMB":24}`, i), asBlue).status == 201 {
				made.add()
			}
		})
	}
	wg.Wait()
	if made.value() != 1 {
		t.Errorf("%d creations fit where one does", made.value())
	}
}
