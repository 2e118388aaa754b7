package guestvm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/internal/guestvm"
	"github.com/sandvol/sandvol/internal/guestvm/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/nbd"
	"github.com/sandvol/sandvol/mount/vhostuser"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

const tenant = "team"

func box(name string) mount.ID { return mount.ID{Tenant: tenant, Sandbox: name} }

// exposers offers each volume the way that its kind says, all on one node.
type exposers struct {
	mu    sync.Mutex
	kinds map[string]guestvm.Kind // by volume
	by    map[guestvm.Kind]mount.Exposer
}

func (e *exposers) Expose(ctx context.Context, name string, dev overlaybd.Device, readOnly bool) (mount.Exposure, error) {
	e.mu.Lock()
	kind := e.kinds[name[:36]]
	e.mu.Unlock()
	if kind == "" {
		kind = guestvm.File
	}
	x := e.by[kind]
	if x == nil {
		return nil, fmt.Errorf("no exposer for %s", kind)
	}
	return x.Expose(ctx, name, dev, readOnly)
}

// host is a sandbox manager on one node, whose sandboxes are virtual machines.
type host struct {
	*mount.Node
	*exposers
	repo *volume.Repository
	m    *volume.Manager
	dir  string

	mu     sync.Mutex
	guests map[mount.ID]*agent
}

// newHost opens a node on a shared directory. Without file, it needs no privilege.
func newHost(ctx context.Context, shared, dir, name string, file bool) (h *host, closeAll func() error, err error) {
	st, err := posixstore.New(shared)
	if err != nil {
		return nil, nil, err
	}
	repo, err := volume.Open(ctx, volume.Config{Store: st, Dir: filepath.Join(dir, "node"), Node: name},
		volume.WithFormatter(ext4.Formatter{}))
	if err != nil {
		return nil, nil, err
	}
	h = &host{repo: repo, dir: dir, guests: map[mount.ID]*agent{},
		exposers: &exposers{kinds: map[string]guestvm.Kind{}, by: map[guestvm.Kind]mount.Exposer{}}}
	n, err := nbd.New(filepath.Join(dir, "n"))
	if err != nil {
		return nil, nil, err
	}
	v, err := vhostuser.New(filepath.Join(dir, "v"))
	if err != nil {
		return nil, nil, err
	}
	closers := []interface{ Close(context.Context) error }{n, v}
	h.by[guestvm.NBD], h.by[guestvm.VhostUser] = n, v
	if file {
		f, err := fuse.New(filepath.Join(dir, "f"))
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, f)
		h.by[guestvm.File] = f
	}
	h.Node = mount.NewNode(repo, h.exposers, mount.WithGuest(h.guest), mount.WithCloseWait(5*time.Second))
	if h.m, err = repo.Tenant(tenant); err != nil {
		return nil, nil, err
	}
	return h, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := h.Node.Close(ctx)
		for _, c := range closers {
			err = errors.Join(err, c.Close(ctx))
		}
		return errors.Join(err, repo.Close())
	}, nil
}

func (h *host) guest(id mount.ID) mount.Guest {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.guests[id]; a != nil {
		return a
	}
	return nil
}

// forget drops the way into a guest that is gone.
func (h *host) forget(id mount.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.guests, id)
}

// agent is the host's way into a guest. When the sandbox is to end, the freeze is the last thing that its guest does.
type agent struct {
	vm   *guestvm.VM
	last bool
}

func (a *agent) Freeze(_ context.Context, drives []mount.Drive) (thaw func() error, err error) {
	for _, d := range drives {
		if d.ReadOnly {
			continue
		}
		if _, err := a.vm.Do(wire.Command{Op: wire.Freeze, Path: d.Path}); err != nil {
			return nil, err
		}
	}
	if a.last {
		a.vm.Kill()
		return func() error { return errors.New("the guest was ended") }, nil
	}
	return func() error {
		for _, d := range drives {
			if d.ReadOnly {
				continue
			}
			if _, err := a.vm.Do(wire.Command{Op: wire.Thaw, Path: d.Path}); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (a *agent) PatchDrives(_ context.Context, drives []mount.Drive) error {
	for _, d := range drives {
		if _, err := a.vm.Do(wire.Command{Op: wire.Mount, Serial: serial(d), Path: d.Path, ReadOnly: d.ReadOnly}); err != nil {
			return err
		}
	}
	return nil
}

// serial is what the guest sees of a drive: as much of its exposure's name as fits.
func serial(d mount.Drive) string { return filepath.Base(d.Device)[:20] }

// devices turns a sandbox's drives into a guest's.
func (h *host) devices(drives []mount.Drive) (out []guestvm.Drive) {
	h.exposers.mu.Lock()
	defer h.exposers.mu.Unlock()
	for _, d := range drives {
		kind := h.kinds[d.Volume]
		if kind == "" {
			kind = guestvm.File
		}
		out = append(out, guestvm.Drive{Kind: kind, Path: d.Device, Serial: serial(d), ReadOnly: d.ReadOnly})
	}
	return out
}

var kernel *guestvm.Kernel

// TestMain also is the host process that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SANDVOL_TEST_HOST"); dir != "" {
		if err := hostProcess(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// requireGuest ends the test where no guest can be booted, and builds what it boots.
func requireGuest(t *testing.T) *guestvm.Kernel {
	t.Helper()
	if kernel != nil {
		return kernel
	}
	reason := ""
	_, err := exec.LookPath("qemu-system-x86_64")
	if err == nil {
		err = exec.Command("test", "-w", "/dev/fuse").Run()
	}
	dir := os.Getenv("SANDVOL_KERNEL")
	switch {
	case err != nil:
		reason = err.Error()
	case dir == "":
		out, err := exec.Command("bash", "../../.ci/kernel", "-cached").Output()
		if dir = strings.TrimSpace(string(out)); err != nil {
			reason = "no kernel in the cache; .ci/kernel fetches one"
		}
	}
	if reason != "" {
		if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
			t.Fatalf("a guest is required: %s", reason)
		}
		t.Skipf("no guest: %s", reason)
	}
	into, err := os.MkdirTemp("", "guestvm")
	if err != nil {
		t.Fatal(err)
	}
	k, err := guestvm.Build(t.Context(), dir, into)
	if err != nil {
		t.Fatal(err)
	}
	kernel = k
	return k
}

// lab is a test with its hosts and guests.
type lab struct {
	t      *testing.T
	kernel *guestvm.Kernel
	dir    string
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, kernel: requireGuest(t)}
	dir, err := os.MkdirTemp("", "g") // short, for sockets
	l.ok(err)
	l.dir = dir
	l.ok(os.Mkdir(filepath.Join(dir, "shared"), 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return l
}

func (l *lab) ok(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) host(name string) *host {
	l.t.Helper()
	dir := filepath.Join(l.dir, name)
	l.ok(os.MkdirAll(dir, 0o700))
	h, closeAll, err := newHost(l.t.Context(), filepath.Join(l.dir, "shared"), dir, name, true)
	l.ok(err)
	l.t.Cleanup(func() {
		if err := closeAll(); err != nil && !l.t.Failed() {
			l.t.Error(err)
		}
	})
	return h
}

// boot starts a guest for a sandbox, which has its drives mounted when boot returns.
func (l *lab) boot(h *host, id mount.ID, drives []mount.Drive, more ...guestvm.Drive) *guestvm.VM {
	l.t.Helper()
	vm := l.start(append(h.devices(drives), more...))
	h.mu.Lock()
	h.guests[id] = &agent{vm: vm}
	h.mu.Unlock()
	l.ok(h.PatchDrives(l.t.Context(), id))
	return vm
}

func (l *lab) start(devices []guestvm.Drive) *guestvm.VM {
	l.t.Helper()
	dir, err := os.MkdirTemp(l.dir, "vm")
	l.ok(err)
	vm, err := l.kernel.Start(l.t.Context(), dir, devices...)
	l.ok(err)
	l.t.Cleanup(vm.Kill)
	return vm
}

func (l *lab) do(vm *guestvm.VM, c wire.Command) int64 {
	l.t.Helper()
	n, err := vm.Do(c)
	l.ok(err)
	return n
}
