package mount_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// blank is a Formatter whose file system is one sector.
type blank struct{}

func (blank) Version() string             { return "blank/1" }
func (blank) Check(context.Context) error { return nil }
func (blank) Format(_ context.Context, dev overlaybd.Device) error {
	_, err := dev.WriteAt(sector('F'), 0)
	return err
}

func sector(b byte) []byte { return bytes.Repeat([]byte{b}, overlaybd.SectorSize) }

// bench is an Exposer for a sandbox that is this test: it hands out the devices themselves.
type bench struct {
	mu      sync.Mutex
	devices map[string]exposed
	fail    func(name string) error
}

type exposed struct {
	overlaybd.Device

	bench    *bench
	name     string
	readOnly bool
}

func (b *bench) Expose(_ context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if err := b.fail(name); err != nil {
			return nil, err
		}
	}
	if _, taken := b.devices[name]; taken {
		return nil, mount.ErrExists
	}
	x := exposed{dev, b, name, readOnly}
	b.devices[name] = x
	return x, nil
}

func (x exposed) Path() string  { return x.name }
func (x exposed) Resize() error { return nil }
func (x exposed) Close(context.Context) error {
	x.bench.mu.Lock()
	defer x.bench.mu.Unlock()
	delete(x.bench.devices, x.name)
	return nil
}

// host is one node: a repository handle, an exposer and a mount.Node.
type host struct {
	*mount.Node

	t     *testing.T
	repo  *volume.Repository
	st    store.Store
	m     *volume.Manager
	bench *bench
}

// crew is what the hosts share.
type crew struct {
	t  *testing.T
	st store.Store
}

func newCrew(t *testing.T) *crew { return &crew{t: t, st: memstore.New()} }

func (c *crew) host(name string, opts ...mount.Option) *host {
	return c.hostAt(name, filepath.Join(c.t.TempDir(), name), c.st, opts...)
}

// memoryDir is a directory where fsync costs nothing, for tests that open hundreds of nodes and lose no power.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sandvol-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (c *crew) hostAt(name, dir string, st store.Store, opts ...mount.Option) *host {
	c.t.Helper()
	repo, err := volume.Open(c.t.Context(), volume.Config{Store: st, Dir: dir, Node: name}, volume.WithFormatter(blank{}))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = repo.Close() })
	m, err := repo.Tenant("team")
	if err != nil {
		c.t.Fatal(err)
	}
	b := &bench{devices: map[string]exposed{}}
	// A sandbox that is this test is at rest whenever it is not writing.
	opts = append([]mount.Option{mount.WithFreezer(atRest)}, opts...)
	return &host{Node: mount.NewNode(repo, b, opts...), t: c.t, repo: repo, st: st, m: m, bench: b}
}

func atRest(context.Context, mount.ID) (func() error, error) { return func() error { return nil }, nil }

func box(name string) mount.ID { return mount.ID{Tenant: "team", Sandbox: name} }

func (h *host) volume(name string) volume.Volume {
	h.t.Helper()
	return h.made(h.m.Create(h.t.Context(), volume.CreateOptions{Name: name, Size: volume.MinSize}))
}

func (h *host) made(v volume.Volume, err error) volume.Volume {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// ready makes an ro volume that holds one sector of b at 4096.
func (h *host) ready(name string, b byte) volume.Volume {
	h.t.Helper()
	src := h.volume(name + "-source")
	h.drives(h.Create(h.t.Context(), box(name+"-maker"), []mount.Mount{{Path: "/w", Volume: src.ID}}))
	h.write(name+"-maker", src.ID, 4096, b)
	h.ok(h.Delete(h.t.Context(), box(name+"-maker")))
	return h.made(h.m.Fork(h.t.Context(), src.ID, volume.ForkOptions{Name: name, Mode: volume.ReadOnly}))
}

func (h *host) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) drives(d []mount.Drive, err error) []mount.Drive {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

func (h *host) device(sandbox, vol string) exposed {
	h.t.Helper()
	h.bench.mu.Lock()
	defer h.bench.mu.Unlock()
	x, found := h.bench.devices[vol+"-"+sandbox]
	if !found {
		h.t.Fatalf("volume %s is not exposed to sandbox %s", vol, sandbox)
	}
	return x
}

func (h *host) write(sandbox, vol string, off int64, b byte) {
	h.t.Helper()
	if _, err := h.device(sandbox, vol).WriteAt(sector(b), off); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(sandbox, vol string, off int64) byte {
	h.t.Helper()
	return sectorAt(h.t, h.device(sandbox, vol), off)
}

func sectorAt(t *testing.T, dev io.ReaderAt, off int64) byte {
	t.Helper()
	p := make([]byte, overlaybd.SectorSize)
	if _, err := dev.ReadAt(p, off); err != nil {
		t.Fatal(err)
	}
	return p[0]
}

func (h *host) phase(sandbox string) mount.Phase {
	h.t.Helper()
	set, err := h.Set(h.t.Context(), box(sandbox))
	if errors.Is(err, mount.ErrNotFound) {
		return mount.Deleted
	}
	h.ok(err)
	return set.Phase
}

// empty deletes every volume and checkpoint, collects twice, and fails if a layer or a pin is left: then something still
// held on to data that nobody can reach.
func (h *host) empty() {
	h.t.Helper()
	ctx := h.t.Context()
	for v, err := range h.m.List(ctx, volume.ListOptions{}) {
		h.ok(err)
		h.ok(h.m.Delete(ctx, v.ID))
	}
	for c, err := range h.m.Checkpoints(ctx, volume.ListOptions{}) {
		h.ok(err)
		h.ok(h.m.DeleteCheckpoint(ctx, c.ID))
	}
	for range 2 {
		o := volume.CollectOptions{MinAge: new(time.Duration(0)), DropUnusedBases: true}
		if _, err := h.repo.Collect(ctx, o); err != nil {
			h.t.Fatal(err)
		}
	}
	if left := h.keys("v1/layers/"); len(left) > 0 {
		h.t.Errorf("layers left behind: %v", left)
	}
	if left := h.keys("v1/pins/"); len(left) > 0 {
		h.t.Errorf("pins left behind: %v", left)
	}
	pending, bad := h.repo.Journal()
	if len(pending)+len(bad) > 0 {
		h.t.Errorf("journal is not empty: %+v %v", pending, bad)
	}
}

func (h *host) keys(prefix string) []string {
	h.t.Helper()
	var out []string
	for e, err := range h.st.List(h.t.Context(), prefix, "", 0) {
		h.ok(err)
		out = append(out, fmt.Sprintf("%s (%d bytes)", e.Key, e.Size))
	}
	return out
}
