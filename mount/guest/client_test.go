package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/guest"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is a guest agent as the protocol has it, without file systems under it.
type agent struct {
	t  *testing.T
	mu sync.Mutex

	mounted map[string]guest.Drive // by path
	mounts  int                    // how many were made
	frozen  []string
	limit   int64
	lapsed  bool // it has thawed by itself
	none    bool // it has no functions
	drop    int  // how many more requests it carries out without an answer
	asked   http.Header
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = r.Header.Clone()
	if a.none {
		http.NotFound(w, r)
		return
	}
	switch r.URL.Path {
	case guest.DefaultPatchPath:
		a.patch(r)
	case "/freeze":
		var body guest.FreezeRequest
		a.decode(r, &body)
		a.frozen, a.limit = body.Paths, body.Seconds
	case "/thaw":
		if a.lapsed {
			http.Error(w, "thawed by itself", http.StatusConflict)
			return
		}
		a.frozen = nil
	}
	if a.drop > 0 {
		a.drop--
		w.WriteHeader(http.StatusBadGateway) // as a proxy answers when the reply is lost
	}
}

func (a *agent) patch(r *http.Request) {
	var body guest.PatchRequest
	a.decode(r, &body)
	next := map[string]guest.Drive{}
	for _, d := range body.Drives {
		old, there := a.mounted[d.Path]
		if !there || old.VolumeID != d.VolumeID || old.Generation != d.Generation {
			a.mounts++
		}
		next[d.Path] = d
	}
	a.mounted = next
}

func (a *agent) decode(r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		a.t.Errorf("%s: %v", r.URL, err)
	}
}

// plain exposes devices by doing nothing with them.
type plain struct{}

type exposure struct{ name string }

func (plain) Expose(_ context.Context, name string, _ overlaybd.Device, _ bool) (mount.Exposure, error) {
	return exposure{name}, nil
}
func (e exposure) Path() string              { return e.name }
func (exposure) Resize() error               { return nil }
func (exposure) Close(context.Context) error { return nil }

type blank struct{}

func (blank) Version() string             { return "blank/1" }
func (blank) Check(context.Context) error { return nil }
func (blank) Format(_ context.Context, dev overlaybd.Device) error {
	_, err := dev.WriteAt(bytes.Repeat([]byte{'F'}, overlaybd.SectorSize), 0)
	return err
}

// rig is an agent, and nodes whose sandboxes it is in.
type rig struct {
	*agent
	t     *testing.T
	st    store.Store
	url   string
	log   bytes.Buffer
	setup []guest.Option
}

func newRig(t *testing.T) *rig {
	a := &agent{t: t, mounted: map[string]guest.Drive{}}
	srv := httptest.NewServer(a)
	t.Cleanup(func() { srv.Close(); http.DefaultClient.CloseIdleConnections() })
	return &rig{agent: a, t: t, st: memstore.New(), url: srv.URL}
}

func (r *rig) node(name string) (*mount.Node, *volume.Manager) {
	repo, err := volume.Open(r.t.Context(), volume.Config{Store: r.st, Dir: r.t.TempDir(), Node: name},
		volume.WithFormatter(blank{}))
	r.ok(err)
	r.t.Cleanup(func() { _ = repo.Close() })
	m, err := repo.Tenant("team")
	r.ok(err)
	return mount.NewNode(repo, plain{}, mount.WithLogger(slog.New(slog.NewTextHandler(&r.log, nil))),
		mount.WithGuest(func(mount.ID) mount.Guest { return guest.New(r.url, r.setup...) })), m
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

var box = mount.ID{Tenant: "team", Sandbox: "s"}

// after a resume the guest mounts its drives again, once however often it is told: a drive is known by path,
// volume and generation, and the generation has risen.
func TestDrivesAreMountedAgainAfterAResumeAndOnlyThen(t *testing.T) {
	r := newRig(t)
	r.setup = []guest.Option{guest.WithDevice(func(d mount.Drive) string { return "/dev/" + d.Path[1:] })}
	a, m := r.node("a")
	b, _ := r.node("b")
	v, err := m.Create(t.Context(), volume.CreateOptions{Name: "one", Size: volume.MinSize})
	r.ok(err)
	_, err = a.Create(t.Context(), box, []mount.Mount{{Path: "/work", Volume: v.ID}})
	r.ok(err)
	r.drop = 2 // their replies are lost
	r.ok(a.PatchDrives(t.Context(), box))
	r.ok(a.PatchDrives(t.Context(), box))
	want := map[string]guest.Drive{"/work": {Path: "/work", Device: "/dev/work", VolumeID: v.ID, Generation: 1}}
	if diff := cmp.Diff(want, r.mounted); diff != "" || r.mounts != 1 {
		t.Errorf("%d mounts, first patch (-want +got):\n%s", r.mounts, diff)
	}
	r.ok(a.Pause(t.Context(), box))
	if err := a.PatchDrives(t.Context(), box); !errors.Is(err, mount.ErrNotFound) {
		t.Errorf("patch of a paused sandbox: %v", err)
	}
	_, err = b.Resume(t.Context(), box)
	r.ok(err)
	r.ok(b.PatchDrives(t.Context(), box))
	r.ok(b.PatchDrives(t.Context(), box))
	want["/work"] = guest.Drive{Path: "/work", Device: "/dev/work", VolumeID: v.ID, Generation: 2}
	if diff := cmp.Diff(want, r.mounted); diff != "" || r.mounts != 2 {
		t.Errorf("%d mounts, after the resume (-want +got):\n%s", r.mounts, diff)
	}
	r.ok(b.Delete(t.Context(), box))
}

// a cut is clean only if the guest was at rest all the time it was made; without an agent it is a crash cut, and the
// log says so.
func TestACutIsAsCleanAsTheGuestWasStill(t *testing.T) {
	r := newRig(t)
	n, m := r.node("a")
	for _, name := range []string{"one", "two"} {
		_, err := m.Create(t.Context(), volume.CreateOptions{Name: name, Size: volume.MinSize})
		r.ok(err)
	}
	_, err := n.Create(t.Context(), box, []mount.Mount{{Path: "/1", Volume: "one"}, {Path: "/2", Volume: "two", ReadOnly: true}})
	r.ok(err)

	_, set, err := n.Snapshot(t.Context(), box)
	r.ok(err)
	checkpoint := func(set mount.DriveSet) volume.Checkpoint {
		i := slices.IndexFunc(set.Drives, func(d mount.SetDrive) bool { return d.Path == "/1" })
		c, err := m.Checkpoint(t.Context(), set.Drives[i].Checkpoint)
		r.ok(err)
		return c
	}
	if c := checkpoint(set); c.Consistency != volume.Clean {
		t.Errorf("frozen: %s", c.Consistency)
	}
	if r.frozen != nil || r.limit != 30 {
		t.Errorf("frozen still: %v; limit %d s", r.frozen, r.limit)
	}

	r.lapsed = true
	if _, _, err := n.Snapshot(t.Context(), box); !errors.Is(err, mount.ErrConflict) {
		t.Errorf("snapshot under a freeze that lapsed: %v", err)
	}
	r.none = true
	if err := n.PatchDrives(t.Context(), box); !errors.Is(err, mount.ErrUnsupported) {
		t.Errorf("patch without an agent: %v", err)
	}
	r.ok(n.Pause(t.Context(), box))
	if !strings.Contains(r.log.String(), "cut as after a crash") {
		t.Errorf("log:\n%s", r.log.String())
	}
	r.ok(n.Delete(t.Context(), box))
}

// A token goes with every request and into no error; a time limit that the agent cannot be asked for is refused.
func TestErrorsOfTheAgentAreClearAndHoldNoSecret(t *testing.T) {
	r := newRig(t)
	c := guest.New(r.url+"/", guest.WithHeader("X-Access-Token", "geheim"), guest.WithFreezeLimit(time.Millisecond))
	if _, err := c.Freeze(t.Context(), nil); !errors.Is(err, mount.ErrInvalid) || !strings.Contains(err.Error(), "1ms") {
		t.Errorf("freeze for a millisecond: %v", err)
	}
	r.ok(c.PatchDrives(t.Context(), nil))
	if got := r.asked.Get("X-Access-Token"); got != "geheim" {
		t.Errorf("token %q", got)
	}
	gone := guest.New("http://127.0.0.1:1", guest.WithHeader("X-Access-Token", "geheim"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := gone.PatchDrives(ctx, nil)
	if err == nil || strings.Contains(err.Error(), "geheim") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("agent that is not there: %v", err)
	}
}
