package e2bhttp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// Ids are one path segment, however they are written; what is in them is never a path.
func TestPathsAreReadSegmentBySegment(t *testing.T) {
	a := newAPI(t)
	v := a.create("my-data")
	for _, path := range []string{"/volumes/my-data", "/volumes/my-data/", "//volumes//my-data//", "/volumes/my%2Ddata",
		"/volumes/" + v.VolumeID, "/%76olumes/my-data"} {
		if got := a.do("GET", path, "").is(200).volume(); got.VolumeID != v.VolumeID {
			t.Errorf("GET %s: %+v", path, got)
		}
	}
	a.do("GET", "/volumes/", "").is(200)
	for _, path := range []string{"/volumes/%2e%2e%2f..%2fetc", "/volumes/..", "/volumes/%2e", "/volumes/a%2Fb%20c%25", "/volumes/%00",
		"/volumes/a%0Ab", "/volumes/%ff", "/volumes/d-bp1j.x", "/volumes/" + strings.Repeat("x", 4000), "/volumes/%C3%A9"} {
		a.do("GET", path, "").fails(404, wire.VolumeNotFound)
		a.do("DELETE", path, "").fails(404, wire.VolumeNotFound)
	}
	for _, path := range []string{"/volume", "/volumes/a/b", "/volumes/a/fork/b", "/snapshots", "/v2/volumes", "/sandboxes"} {
		a.do("GET", path, "").is(404)
	}
}

func TestHeadOptionsAndMethods(t *testing.T) {
	a := newAPI(t)
	a.create("v")
	for _, path := range []string{"/volumes", "/volumes/v", "/volumes/v/snapshots", "/volume-snapshots", "/openapi.json"} {
		if got := a.do("HEAD", path, "").is(200); len(got.body) != 0 || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("HEAD %s: %q, %v", path, got.body, got.header)
		}
	}
	a.do("HEAD", "/volumes/unknown", "").is(404)
	for path, allow := range map[string]string{
		"/volumes": "GET, HEAD, OPTIONS, POST", "/volumes/v": "DELETE, GET, HEAD, OPTIONS", "/volumes/v/fork": "OPTIONS, POST",
		"/volume-snapshots/x": "DELETE, GET, HEAD, OPTIONS", "/openapi.json": "GET, HEAD, OPTIONS",
	} {
		if got := a.do("OPTIONS", path, "", header{"X-API-Key": ""}).is(204).header.Get("Allow"); got != allow {
			t.Errorf("OPTIONS %s: allow %q, want %q", path, got, allow)
		}
		if got := a.do("PATCH", path, "").is(405).header.Get("Allow"); got != allow {
			t.Errorf("PATCH %s: allow %q, want %q", path, got, allow)
		}
	}
}

// files are not served, and say so: the SDK's exists must not answer false. Here, code is a string.
func TestContentIs501(t *testing.T) {
	a := newAPI(t)
	for _, c := range [][2]string{{"GET", "/volumecontent/v/path?path=%2Fa"}, {"PUT", "/volumecontent/v/file?path=%2Fa"},
		{"GET", "/volumecontent/v/dir"}, {"DELETE", "/volumecontent/v/path"}} {
		r := a.do(c[0], c[1], "", header{"X-API-Key": "", "Authorization": "Bearer x"})
		if e := read[wire.ContentError](r); r.status != 501 || e.Code != "unsupported" || e.Message == "" {
			t.Errorf("%s: %d %s", r.what, r.status, r.body)
		}
	}
}

// under a prefix of its own, under the host's with http.StripPrefix, and under two at once.
func TestPrefixes(t *testing.T) {
	repo := newAPI(t)
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo.repo), apiKeys(t), e2bhttp.WithPrefix("/kruise/api"))
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/deep/er/", http.StripPrefix("/deep/er", h))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	a := *repo
	a.url = srv.URL
	v := a.create("v")
	for _, prefix := range []string{"", "/kruise/api", "/deep/er", "/deep/er/kruise/api"} {
		if got := a.do("GET", prefix+"/volumes/v", "").is(200).volume(); got.VolumeID != v.VolumeID {
			t.Errorf("prefix %q: %+v", prefix, got)
		}
		a.do("POST", prefix+"/volumes/v/fork", `{}`).is(201)
		a.do("GET", prefix+"/volumes/a%2Fb", "").is(404)
	}
	a.do("GET", "/kruise/volumes", "").is(404)
	if got := a.do("GET", "/kruise/api/openapi.json", "").is(200); len(got.body) == 0 {
		t.Error("no document")
	}
}

func TestListsPageAndFilter(t *testing.T) {
	a := newAPI(t)
	var ids []string
	for i := range 7 {
		body := fmt.Sprintf(`{"name":"v%d","sizeMB":16,"labels":{"even":"%v","team":"x=y"}}`, i, i%2 == 0)
		ids = append(ids, a.do("POST", "/volumes", body).is(201).volume().VolumeID)
	}
	list := func(query string) (got []string, next string) {
		t.Helper()
		r := a.do("GET", "/volumes"+query, "").is(200)
		for _, v := range read[[]wire.Volume](r) {
			got = append(got, v.VolumeID)
		}
		return got, r.header.Get("X-Next-Token")
	}
	// everything without limit, oldest first.
	if all, next := list(""); strings.Join(all, " ") != strings.Join(ids, " ") || next != "" {
		t.Errorf("list %v, next %q", all, next)
	}
	var paged []string
	for next, pages := "", 0; ; pages++ {
		query := "?limit=3"
		if next != "" {
			query += "&nextToken=" + next
		}
		var got []string
		if got, next = list(query); len(got) > 3 || pages > 3 {
			t.Fatalf("page %d has %d", pages, len(got))
		}
		paged = append(paged, got...)
		if next == "" {
			break
		}
	}
	if strings.Join(paged, " ") != strings.Join(ids, " ") {
		t.Errorf("pages %v", paged)
	}
	if _, next := list("?limit=7"); next != "" {
		t.Errorf("the only page has a next one, %q", next)
	}
	for query, want := range map[string]int{"?label=even=true": 4, "?label=even=true&label=team=x%3Dy": 4, "?label=even=maybe": 0,
		"?label=none=": 0, "?status=ready": 7, "?status=uploading": 0, "?label=even=false&limit=2": 2} {
		if got, _ := list(query); len(got) != want {
			t.Errorf("%s: %d volumes, want %d", query, len(got), want)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=101", "?limit=x", "?limit=", "?limit=1&limit=2", "?nextToken=%2F",
		"?label=x", "?label==x", "?status=odd"} {
		if r := a.do("GET", "/volumes"+query, ""); r.status != 400 {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
}

// A body that is too large is refused without being read, and one that never ends does not keep the handler.
func TestBodiesAreBounded(t *testing.T) {
	a := newAPI(t, e2bhttp.WithMaxBody(1000), e2bhttp.WithTimeout(500*time.Millisecond))
	a.do("POST", "/volumes", `{"name":"v","sizeMB":16}`+strings.Repeat(" ", 900)).is(201)
	a.do("POST", "/volumes", `{"name":"w"}`+strings.Repeat(" ", 1000)).is(413)
	a.do("POST", "/volumes/v/fork", strings.Repeat(" ", 10<<20)).is(413)

	conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "POST /volumes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 100\r\n\r\n{", redKey)
	a.do("GET", "/volumes", "").is(200) // others are served
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(got), "HTTP/1.1 408 ") {
		t.Errorf("answer to half a body: %q", got)
	}
}

// A request whose store does not answer ends at its time limit, with 503 and a Retry-After that E2B's SDK obeys.
func TestTimeLimit(t *testing.T) {
	a := serve(t, func(ctx context.Context, _ string) (e2bhttp.Volumes, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, e2bhttp.WithTimeout(50*time.Millisecond))
	r := a.do("GET", "/volumes", "").fails(503, wire.StoreUnavailable)
	if r.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", r.header.Get("Retry-After"))
	}
}
