package e2bhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// The whole of it: volumes at the root of a host's routes.
func Example() {
	repo, stop := exampleRepository()
	defer stop()
	auth := must(e2bhttp.APIKeys(map[string]string{"e2b_0123": "acme"}))
	mux := http.NewServeMux()
	mux.Handle("/", e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth))

	request(mux, "POST", "/volumes", `{"name":"my-data"}`)
	request(mux, "DELETE", "/volumes/my-data", "")
	request(mux, "GET", "/volumes", "")
	// Output:
	// POST /volumes: 201
	// DELETE /volumes/my-data: 204
	// GET /volumes: 200
}

// A host creates sandboxes with volumes: the middleware finds the mounts, whichever route the SDK posts to.
func ExampleHandler_Mounts() {
	repo, stop := exampleRepository()
	defer stop()
	auth := must(e2bhttp.APIKeys(map[string]string{"e2b_0123": "acme"}))
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth)
	create := h.Mounts(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, m := range e2bhttp.MountsFrom(r.Context()) {
			// mount.Node.Create(ctx, id, ..) takes m.Mount(), and acquires all volumes or none.
			fmt.Println("mount", m.Volume.Name, "at", m.Path, "for", e2bhttp.TenantFrom(r.Context()))
		}
		w.WriteHeader(http.StatusCreated)
	}))
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("POST /sandboxes", create)
	mux.Handle("POST /v2/sandboxes", create)

	request(mux, "POST", "/volumes", `{"name":"my-data"}`)
	request(mux, "POST", "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"my-data","path":"/mnt/data"}]}`)
	request(mux, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"other","path":"/mnt/data"}]}`)
	// Output:
	// POST /volumes: 201
	// mount my-data at /mnt/data for acme
	// POST /sandboxes: 201
	// POST /v2/sandboxes: 400
}

// A host with a router and bodies of its own uses the functions behind the middleware.
func ExampleMountRules() {
	repo, stop := exampleRepository()
	defer stop()
	acme := must(repo.Tenant("acme"))
	must(acme.Create(context.Background(), volume.CreateOptions{Name: "my-data"}))

	rules := e2bhttp.MountRules{Reserved: []string{"/opt/agent"}}
	body := []byte(`{"templateID":"base","volumeMounts":{"/mnt/data":"my-data"}}`)
	entries := must(rules.Decode(body))
	mounts := must(rules.Resolve(context.Background(), acme, entries, ""))
	fmt.Println(mounts[0].Volume.Name, mounts[0].Path)

	entries = must(rules.Decode([]byte(`{"volumeMounts":{"/opt/agent/x":"my-data","/b":"nobody"}}`)))
	_, err := rules.Resolve(context.Background(), acme, entries, "")
	fmt.Println(e2bhttp.ErrorBody(err).Code)
	fmt.Println(err)
	// Output:
	// my-data /mnt/data
	// 400
	// invalid mounts:
	// volumeMounts["/opt/agent/x"]: path "/opt/agent/x" is reserved by the guest
	// volumeMounts["/b"]: volume "nobody" not found
}

// A host's other routes: the tenant is known, errors are in E2B's form, and what describes a sandbox shows its mounts.
func ExampleHandler_Authenticate() {
	repo, stop := exampleRepository()
	defer stop()
	auth := must(e2bhttp.APIKeys(map[string]string{"e2b_0123": "acme"}))
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth)
	detail := h.Authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, err := repo.Tenant(e2bhttp.TenantFrom(r.Context()))
		var mounts []wire.VolumeMount
		if err == nil {
			// The host has the set from mount.Node.Set.
			mounts, err = e2bhttp.ShowDrives(r.Context(), m, mount.DriveSet{})
		}
		var body []byte
		if err == nil {
			body, err = e2bhttp.AddMounts([]byte(`{"sandboxID":"i1a2"}`), mounts)
		}
		if err != nil {
			e2bhttp.WriteError(w, err)
			return
		}
		fmt.Println(string(body))
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /sandboxes/{id}", detail)

	request(mux, "GET", "/sandboxes/i1a2", "")
	// Output:
	// {"sandboxID":"i1a2","volumeMounts":[]}
	// GET /sandboxes/i1a2: 200
}

// A host's own policy: what a tenant may have, and where its volumes are.
func ExampleWithLimits() {
	repo, stop := exampleRepository()
	defer stop()
	auth := must(e2bhttp.APIKeys(map[string]string{"e2b_0123": "acme"}))
	tenants := func(_ context.Context, tenant string) (e2bhttp.Volumes, error) {
		m, err := repo.Tenant("org-" + tenant) // or another repository for each
		if err != nil {
			return nil, err // not m: a nil *Manager would be a Volumes that is not nil
		}
		return m, nil
	}
	h := e2bhttp.NewHandler(tenants, auth, e2bhttp.WithLimits(func(context.Context, string) (e2bhttp.Limits, error) {
		return e2bhttp.Limits{Volumes: 1, SizeMB: 1 << 20}, nil
	}))

	request(h, "POST", "/volumes", `{"name":"one"}`)
	request(h, "POST", "/volumes", `{"name":"two"}`)
	// Output:
	// POST /volumes: 201
	// POST /volumes: 403
}

// Two mount points at once: the host's own prefix, and one that the handler knows itself.
func ExampleWithPrefix() {
	repo, stop := exampleRepository()
	defer stop()
	auth := func(r *http.Request) (string, error) { return "acme", nil } // the host has authenticated already
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth, e2bhttp.WithPrefix("/kruise/api"))
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/api/v1/", http.StripPrefix("/api/v1", h))

	request(mux, "GET", "/volumes", "")
	request(mux, "GET", "/kruise/api/volumes", "")
	request(mux, "GET", "/api/v1/volumes", "")
	// Output:
	// GET /volumes: 200
	// GET /kruise/api/volumes: 200
	// GET /api/v1/volumes: 200
}

// request sends a request with the key of the examples and prints its status.
func request(h http.Handler, method, path, body string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-API-Key", "e2b_0123")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	_, _ = io.Copy(io.Discard, w.Body)
	fmt.Printf("%s %s: %d\n", method, path, w.Code)
}

// exampleRepository is a repository in memory. A host opens one over a store that its nodes share: see package volume.
func exampleRepository() (*volume.Repository, func()) {
	dir := must(os.MkdirTemp("", "example-"))
	repo := must(volume.Open(context.Background(), volume.Config{Store: memstore.New(), Dir: filepath.Join(dir, "node"), Node: "node-1"},
		volume.WithFormatter(marker{})))
	return repo, func() {
		if err := repo.Close(); err != nil {
			panic(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			panic(err)
		}
	}
}

// must stands for a host's own way to handle errors.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
