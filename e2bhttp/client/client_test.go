package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/e2bhttp/client"
	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// script is a server that gives one answer after the other, and notes the requests.
type script struct {
	mu      sync.Mutex
	answers []func(http.ResponseWriter)
	got     []string
	keys    []string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	if len(s.answers) == 0 {
		http.Error(w, "not expected", http.StatusTeapot)
		return
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	next(w)
}

func says(status int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func hangsUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func run(t *testing.T, answers ...func(http.ResponseWriter)) (*client.Client, *script) {
	t.Helper()
	s := &script{answers: answers}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{URL: srv.URL + "/prefix/", APIKey: "e2b_secret"}, client.WithTries(4, 2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

const one = `{"volumeID":"id","name":"n","status":"ready","token":""}`

func TestBusyServersAreAskedAgain(t *testing.T) {
	c, s := run(t, says(503, `{"code":503,"message":"busy"}`, "Retry-After", "0"), says(429, ``, "Retry-After", "0"), hangsUp, says(201, one))
	v, err := c.Create(t.Context(), wire.NewVolume{Name: "n"})
	if err != nil || v.VolumeID != "id" {
		t.Fatalf("%+v, %v", v, err)
	}
	if len(s.got) != 4 || s.got[0] != `POST /prefix/volumes {"name":"n"}` {
		t.Errorf("requests %q", s.got)
	}
	for _, k := range s.keys { // one key for all tries, or two volumes could be made
		if k == "" || k != s.keys[0] {
			t.Errorf("keys %q", s.keys)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	c, _ := run(t, says(503, ``, "Retry-After", "1"), says(200, one))
	began := time.Now()
	if _, err := c.Get(t.Context(), "n"); err != nil || time.Since(began) < time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	for _, after := range []string{"60", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)} {
		c, s := run(t, says(503, `{"code":503,"message":"busy"}`, "Retry-After", after))
		if _, err := c.Get(t.Context(), "n"); !errors.Is(err, client.ErrUnavailable) || len(s.got) != 1 {
			t.Errorf("asked to wait %s: %v after %d requests", after, err, len(s.got))
		}
	}
}

func TestTriesAndContextsEndWaiting(t *testing.T) {
	busy := says(503, ``, "Retry-After", "0")
	c, s := run(t, busy, busy, busy, busy, busy)
	if _, err := c.Get(t.Context(), "n"); !errors.Is(err, client.ErrUnavailable) || len(s.got) != 4 {
		t.Errorf("%v after %d requests", err, len(s.got))
	}
	c, _ = run(t, says(503, ``, "Retry-After", "2"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "n"); err == nil {
		t.Error("no error at the end of the context")
	}
}

// A deletion whose answer was lost is not an error when the volume is gone.
func TestDeletionWhoseAnswerWasLost(t *testing.T) {
	gone := says(404, `{"code":404,"message":"volume \"n\" not found","error_code":"volume_not_found"}`)
	c, _ := run(t, hangsUp, gone)
	if err := c.Delete(t.Context(), "n"); err != nil {
		t.Error(err)
	}
	c, _ = run(t, says(503, ``, "Retry-After", "0"), gone)
	if err := c.Delete(t.Context(), "n"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("never deleted by us: %v", err)
	}
}

func TestErrorsHaveClassesAndMessages(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		class  error
	}{
		{400, wire.InvalidName, client.ErrInvalid}, {413, "", client.ErrInvalid}, {422, wire.IdempotencyMismatch, client.ErrInvalid},
		{401, "", client.ErrUnauthenticated}, {403, wire.QuotaExceeded, client.ErrForbidden}, {404, wire.VolumeNotFound, client.ErrNotFound},
		{409, wire.NameTaken, client.ErrExists}, {409, wire.VolumeInUse, client.ErrConflict}, {501, wire.Unsupported, client.ErrUnsupported},
	} {
		cl, _ := run(t, says(c.status, fmt.Sprintf(`{"code":%d,"message":"because","error_code":%q}`, c.status, c.code)))
		_, err := cl.Fork(t.Context(), "n", wire.Fork{})
		var e *client.Error
		if !errors.Is(err, c.class) || !errors.As(err, &e) || e.Code != c.code || e.Message != "because" {
			t.Errorf("%d %s: %v", c.status, c.code, err)
		}
	}
	for _, body := range []string{"", "<html>", "[]"} {
		cl, _ := run(t, says(502, body))
		if _, err := cl.Get(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "Bad Gateway") {
			t.Errorf("body %q: %v", body, err)
		}
	}
	cl, _ := run(t, says(200, "<html>"))
	if _, err := cl.Get(t.Context(), "n"); err == nil {
		t.Error("a page was taken for a volume")
	}
}

// the key is in no error, and goes to no other host.
func TestKeyStaysWhereItBelongs(t *testing.T) {
	other := &script{}
	srv := httptest.NewServer(other)
	t.Cleanup(srv.Close)
	c, _ := run(t, says(307, ``, "Location", srv.URL+"/volumes/n"))
	_, err := c.Get(t.Context(), "n")
	if err == nil || len(other.got) != 0 {
		t.Errorf("followed a redirect: %v", err)
	}
	for _, cfg := range []client.Config{{URL: "http://user:e2b_secret@h", APIKey: "k"}, {URL: "http://h:e2b_secret", APIKey: "k"},
		{URL: "ftp://h", APIKey: "e2b_secret"}, {URL: "h", APIKey: "e2b_secret"}, {URL: "http://h"}} {
		if _, err := client.New(cfg); !errors.Is(err, client.ErrInvalid) || strings.Contains(err.Error(), "e2b_secret") {
			t.Errorf("%v", err)
		}
	}
}

func TestListsFollowPages(t *testing.T) {
	c, s := run(t, says(200, `[{"volumeID":"a"},{"volumeID":"b"}]`, "X-Next-Token", "b/?"), says(200, `[{"volumeID":"c"}]`))
	var ids []string
	for v, err := range c.List(t.Context(), client.ListOptions{Labels: map[string]string{"k": "v", "a": "="}, Status: "ready"}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.VolumeID)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, ids); diff != "" {
		t.Error(diff)
	}
	want := []string{"GET /prefix/volumes?label=a%3D%3D&label=k%3Dv&limit=100&status=ready",
		"GET /prefix/volumes?label=a%3D%3D&label=k%3Dv&limit=100&nextToken=b%2F%3F&status=ready"}
	if diff := cmp.Diff(want, s.got); diff != "" {
		t.Error(diff)
	}
	c, _ = run(t, says(200, `[{"volumeID":"a"}]`, "X-Next-Token", "a"), says(401, `{"code":401,"message":"no"}`))
	var last error
	for _, err := range c.List(t.Context(), client.ListOptions{}) {
		last = err
	}
	if !errors.Is(last, client.ErrUnauthenticated) {
		t.Errorf("second page: %v", last)
	}
}

func TestIdsAreEscapedAndKeysCanBeGiven(t *testing.T) {
	c, s := run(t, says(404, ``), says(201, `{"snapshotID":"s"}`))
	_, _ = c.GetSnapshot(t.Context(), "../a b?")
	if _, err := c.Snapshot(client.WithIdempotencyKey(t.Context(), "mine"), "v", wire.NewSnapshot{}); err != nil {
		t.Fatal(err)
	}
	if s.got[0] != "GET /prefix/volume-snapshots/..%2Fa%20b%3F" || s.keys[1] != "mine" {
		t.Errorf("requests %q, keys %q", s.got, s.keys)
	}
}
