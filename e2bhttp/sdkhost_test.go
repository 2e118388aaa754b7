package e2bhttp_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// host is a sandbox manager as small as it can be: its sandboxes run nothing, but have real volumes by package mount.
type host struct {
	t    *testing.T
	repo *volume.Repository
	node *mount.Node
	h    *e2bhttp.Handler

	mu        sync.Mutex
	sandboxes map[mount.ID]*hosted
	snapshots map[mount.ID]kept
	requests  []string
}

type hosted struct {
	template string
	paused   bool
	began    time.Time
}

type kept struct {
	of  string
	set mount.DriveSet
}

// nowhere is an exposer for sandboxes that open no device.
type nowhere struct{ name string }

func (nowhere) Expose(_ context.Context, name string, _ overlaybd.Device, _ bool) (mount.Exposure, error) {
	return nowhere{name}, nil
}
func (n nowhere) Path() string              { return "/nowhere/" + n.name }
func (nowhere) Resize() error               { return nil }
func (nowhere) Close(context.Context) error { return nil }

// downKey belongs to a tenant whose store does not answer.
const downKey = "e2b_dddddddddddddddd"

// newHost serves volumes and sandboxes on loopback, below the prefixes "" and "/kruise/api".
func newHost(t *testing.T) (*host, string) {
	repo := openRepository(t, memstore.New(), "node-1")
	keys := apiKeys(t)
	auth := func(r *http.Request) (string, error) {
		if r.Header.Get("X-API-Key") == downKey {
			return "", fmt.Errorf("%w: identity service", volume.ErrUnavailable)
		}
		return keys(r)
	}
	s := &host{t: t, repo: repo, node: mount.NewNode(repo, nowhere{}), sandboxes: map[mount.ID]*hosted{}, snapshots: map[mount.ID]kept{},
		h: e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth)}
	t.Cleanup(func() {
		if err := s.node.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	api := http.NewServeMux()
	api.Handle("/", s.h)
	api.Handle("POST /sandboxes", s.h.Mounts(s.route(s.create)))
	api.Handle("POST /v2/sandboxes", s.h.Mounts(s.route(s.create)))
	for pattern, f := range map[string]func(context.Context, mount.ID, *http.Request) (int, any, error){
		"GET /v2/sandboxes": s.list, "GET /sandboxes/{id}": s.get, "DELETE /sandboxes/{id}": s.kill,
		"POST /sandboxes/{id}/pause": s.pause, "POST /sandboxes/{id}/connect": s.connect, "POST /v2/sandboxes/{id}/connect": s.connect,
		"POST /sandboxes/{id}/snapshots": s.snapshot, "POST /sandboxes/{id}/fork": s.fork, "GET /snapshots": s.listSnapshots,
	} {
		api.Handle(pattern, s.h.Authenticate(s.route(f)))
	}
	root := http.NewServeMux()
	root.Handle("/", s.noting(api))
	root.Handle("/kruise/api/", http.StripPrefix("/kruise/api", api))
	srv := httptest.NewServer(root)
	t.Cleanup(srv.Close)
	return s, srv.URL
}

func (s *host) noting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// route answers with what f returns, in E2B's form.
func (s *host) route(f func(context.Context, mount.ID, *http.Request) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := mount.ID{Tenant: e2bhttp.TenantFrom(r.Context()), Sandbox: r.PathValue("id")}
		status, body, err := f(r.Context(), id, r)
		if err != nil {
			e2bhttp.WriteError(w, err)
			return
		}
		if body == nil {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	})
}

func (s *host) find(id mount.ID) (*hosted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.sandboxes[id]; sb != nil {
		return sb, nil
	}
	return nil, fmt.Errorf("%w: sandbox %s", volume.ErrNotFound, id.Sandbox)
}

func (s *host) add(id mount.ID, template string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[id] = &hosted{template: template, began: time.Now().UTC()}
}

// created is the answer to a creation, which has no mounts in E2B.
func created(id mount.ID, template string) map[string]any {
	return map[string]any{"sandboxID": id.Sandbox, "templateID": template, "clientID": "c", "envdVersion": "0.5.14"}
}

// mounts on a cold start and on a start from a snapshot take the same way.
func (s *host) create(ctx context.Context, id mount.ID, r *http.Request) (int, any, error) {
	var body struct{ TemplateID string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	id.Sandbox = "i" + strings.ToLower(rand.Text())
	var mounts []mount.Mount
	for _, m := range e2bhttp.MountsFrom(ctx) {
		mounts = append(mounts, m.Mount())
	}
	s.mu.Lock()
	from, isSnapshot := s.snapshots[mount.ID{Tenant: id.Tenant, Sandbox: body.TemplateID}]
	s.mu.Unlock()
	var err error
	if isSnapshot {
		_, err = s.node.CreateFrom(ctx, id, from.set, mounts)
	} else {
		_, err = s.node.Create(ctx, id, mounts)
	}
	if err != nil {
		return 0, nil, err
	}
	s.add(id, body.TemplateID)
	return 201, created(id, body.TemplateID), nil
}

// detail is a sandbox in answers that show mounts: A-064.
func (s *host) detail(ctx context.Context, id mount.ID, sb *hosted) (map[string]any, error) {
	set, err := s.node.Set(ctx, id)
	if err != nil {
		return nil, err
	}
	m, err := s.repo.Tenant(id.Tenant)
	if err != nil {
		return nil, err
	}
	mounts, err := e2bhttp.ShowDrives(ctx, m, set)
	if err != nil {
		return nil, err
	}
	state := "running"
	if sb.paused {
		state = "paused"
	}
	d := created(id, sb.template)
	for k, v := range map[string]any{"startedAt": sb.began, "endAt": sb.began.Add(time.Hour), "state": state, "cpuCount": 2, "memoryMB": 512,
		"diskSizeMB": 1024, "volumeMounts": mounts, "metadata": map[string]string{}} {
		d[k] = v
	}
	return d, nil
}

func (s *host) get(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	sb, err := s.find(id)
	if err != nil {
		return 0, nil, err
	}
	d, err := s.detail(ctx, id, sb)
	return 200, d, err
}

func (s *host) list(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	s.mu.Lock()
	var ids []mount.ID
	for other := range s.sandboxes {
		if other.Tenant == id.Tenant {
			ids = append(ids, other)
		}
	}
	s.mu.Unlock()
	all := []any{}
	for _, id := range ids {
		_, d, err := s.get(ctx, id, nil)
		if err != nil {
			return 0, nil, err
		}
		all = append(all, d)
	}
	return 200, all, nil
}

func (s *host) kill(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	if _, err := s.find(id); err != nil {
		return 0, nil, err
	}
	if err := s.node.Delete(ctx, id); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, id)
	return 204, nil, nil
}

func (s *host) pause(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	sb, err := s.find(id)
	if err != nil {
		return 0, nil, err
	}
	if sb.paused {
		return 0, nil, fmt.Errorf("%w: sandbox is paused", volume.ErrConflict)
	}
	if err := s.node.Pause(ctx, id); err != nil {
		return 0, nil, err
	}
	sb.paused = true
	return 204, nil, nil
}

func (s *host) connect(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	sb, err := s.find(id)
	if err != nil {
		return 0, nil, err
	}
	if !sb.paused {
		return 200, created(id, sb.template), nil
	}
	if _, err := s.node.Resume(ctx, id); err != nil {
		return 0, nil, err
	}
	sb.paused = false
	return 201, created(id, sb.template), nil
}

func (s *host) snapshot(ctx context.Context, id mount.ID, _ *http.Request) (int, any, error) {
	if _, err := s.find(id); err != nil {
		return 0, nil, err
	}
	snap, set, err := s.node.Snapshot(ctx, id)
	if err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[snap] = kept{id.Sandbox, set}
	return 201, map[string]any{"snapshotID": snap.Sandbox, "names": []string{}}, nil
}

func (s *host) listSnapshots(_ context.Context, id mount.ID, r *http.Request) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []any{}
	for snap, k := range s.snapshots {
		if of := r.URL.Query().Get("sandboxID"); snap.Tenant == id.Tenant && (of == "" || of == k.of) {
			all = append(all, map[string]any{"snapshotID": snap.Sandbox, "names": []string{}})
		}
	}
	return 200, all, nil
}

func (s *host) fork(ctx context.Context, id mount.ID, r *http.Request) (int, any, error) {
	sb, err := s.find(id)
	if err != nil {
		return 0, nil, err
	}
	var body struct{ Count int }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	children := make([]string, max(1, body.Count))
	for i := range children {
		children[i] = "i" + strings.ToLower(rand.Text())
	}
	if _, err := s.node.Fork(ctx, id, children); err != nil {
		return 0, nil, err
	}
	results := []any{}
	for _, c := range children {
		child := mount.ID{Tenant: id.Tenant, Sandbox: c}
		if _, err := s.node.Resume(ctx, child); err != nil {
			results = append(results, map[string]any{"error": e2bhttp.ErrorBody(err)})
			continue
		}
		s.add(child, sb.template)
		results = append(results, map[string]any{"sandbox": created(child, sb.template)})
	}
	return 201, results, nil
}

// saw reports whether a request of the kind came in.
func (s *host) saw(request string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.requests, request)
}
