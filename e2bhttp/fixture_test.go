package e2bhttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// marker is a Formatter whose file system is one sector: what the API needs of one.
type marker struct{}

func (marker) Version() string             { return "marker/1" }
func (marker) Check(context.Context) error { return nil }
func (marker) Format(_ context.Context, dev overlaybd.Device) error {
	_, err := dev.WriteAt(bytes.Repeat([]byte{'F'}, overlaybd.SectorSize), 4096)
	return err
}

// openRepository opens a repository for a test, on a fresh node directory.
func openRepository(t testing.TB, st store.Store, node string) *volume.Repository {
	t.Helper()
	dir := filepath.Join(t.TempDir(), node)
	r, err := volume.Open(context.Background(), volume.Config{Store: st, Dir: dir, Node: node}, volume.WithFormatter(marker{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close node %s: %v", node, err)
		}
	})
	return r
}

// The keys and tenants of the tests.
const (
	redKey, blueKey = "e2b_aaaaaaaaaaaaaaaa", "e2b_bbbbbbbbbbbbbbbb"
	red, blue       = "red", "blue"
)

func apiKeys(t testing.TB) e2bhttp.Authenticator {
	t.Helper()
	auth, err := e2bhttp.APIKeys(map[string]string{redKey: red, blueKey: blue})
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

// api is a running handler over a repository in memory, and a client that holds every answer against the OpenAPI document.
type api struct {
	t    testing.TB
	repo *volume.Repository
	h    *e2bhttp.Handler
	url  string
	http *http.Client
}

func newAPI(t testing.TB, opts ...e2bhttp.Option) *api {
	t.Helper()
	repo := openRepository(t, memstore.New(), "node-1")
	a := serve(t, e2bhttp.ForRepository(repo), opts...)
	a.repo = repo
	return a
}

// serve runs a handler on loopback.
func serve(t testing.TB, tenants e2bhttp.Tenants, opts ...e2bhttp.Option) *api {
	t.Helper()
	h := e2bhttp.NewHandler(tenants, apiKeys(t), opts...)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &api{t: t, h: h, url: srv.URL, http: &http.Client{Transport: documented(t, transport),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (a *api) manager(tenant string) *volume.Manager {
	a.t.Helper()
	m, err := a.repo.Tenant(tenant)
	if err != nil {
		a.t.Fatal(err)
	}
	return m
}

// answer is a response that was read.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
}

// header is what do sends beside the API key.
type header map[string]string

// do sends a request as the red tenant. Like E2B's JavaScript SDK, it sends bodies in chunks.
func (a *api) do(method, path, body string, headers ...header) answer {
	a.t.Helper()
	var r io.Reader
	if body != "" {
		r = io.MultiReader(strings.NewReader(body)) // of unknown length
	}
	req, err := http.NewRequestWithContext(context.Background(), method, a.url+path, r)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", redKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		for k, v := range h {
			req.Header.Set(k, v)
			if v == "" {
				req.Header.Del(k)
			}
		}
	}
	return a.send(req)
}

func (a *api) send(req *http.Request) answer {
	a.t.Helper()
	res, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{a.t, req.Method + " " + req.URL.RequestURI(), res.StatusCode, res.Header, got}
}

// is fails unless the answer has the status; for one that is no success it also checks the body as E2B's clients need it.
func (r answer) is(status int) answer {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%s: status %d, want %d: %s", r.what, r.status, status, r.body)
	}
	if status >= 400 && !strings.HasPrefix(r.what, "HEAD ") {
		if e := r.error(); e.Code != status || e.Message == "" {
			r.t.Fatalf("%s: error body %s", r.what, r.body)
		}
	}
	return r
}

// fails is is with an error code.
func (r answer) fails(status int, code string) answer {
	r.t.Helper()
	if got := r.is(status).error().ErrorCode; got != code {
		r.t.Fatalf("%s: error_code %q, want %q: %s", r.what, got, code, r.body)
	}
	return r
}

func (r answer) error() wire.Error { r.t.Helper(); return read[wire.Error](r) }

func (r answer) volume() wire.VolumeAndToken { r.t.Helper(); return read[wire.VolumeAndToken](r) }

// read decodes a body, which must be JSON by its type too.
func read[T any](r answer) (v T) {
	r.t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/json" {
		r.t.Fatalf("%s: content type %q: %s", r.what, ct, r.body)
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		r.t.Fatalf("%s: %v: %s", r.what, err, r.body)
	}
	return v
}

// create makes a small volume.
func (a *api) create(name string) wire.VolumeAndToken {
	a.t.Helper()
	return a.do("POST", "/volumes", `{"name":"`+name+`","sizeMB":16}`).is(201).volume()
}

var asBlue = header{"X-API-Key": blueKey}

// plain is do without the document: for what it does not describe.
func (a *api) plain(method, path, body string, headers ...header) answer {
	a.t.Helper()
	b := *a
	b.http = &http.Client{Transport: a.http.Transport.(*validator).next, CheckRedirect: a.http.CheckRedirect}
	return b.do(method, path, body, headers...)
}

// recordBody runs one request as the red tenant without a network.
func recordBody(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-API-Key", redKey)
	h.ServeHTTP(w, r)
	return w
}
