package mount_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// machine is a node that shares its kernel with its sandboxes: real FUSE, loop devices and ext4 over a directory store.
type machine struct {
	*mount.Node

	t      testing.TB
	repo   *volume.Repository
	m      *volume.Manager
	server *fuse.Server
	root   string
}

func newMachine(t testing.TB, ctx context.Context, name, dir, shared string) *machine {
	st, err := posixstore.New(shared)
	check(t, err)
	repo, err := volume.Open(ctx, volume.Config{Store: st, Dir: filepath.Join(dir, "node"), Node: name},
		volume.WithFormatter(ext4.Formatter{}))
	check(t, err)
	m, err := repo.Tenant("team")
	check(t, err)
	server, err := fuse.New(filepath.Join(dir, "drives"))
	check(t, err)
	h := &machine{t: t, repo: repo, m: m, server: server, root: filepath.Join(dir, "sandboxes")}
	h.Node = mount.NewNode(repo, server, mount.WithKernelMounts(func(id mount.ID) string {
		return filepath.Join(h.root, id.Sandbox)
	}, mount.KernelOptions{Timeout: 10 * time.Second}))
	return h
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// off ends the machine as an orderly shutdown does.
func (h *machine) off() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, err := range []error{h.Close(ctx), h.server.Close(ctx), h.repo.Close()} {
		if err != nil {
			h.t.Errorf("shutdown: %v", err)
		}
	}
}

func (h *machine) path(sandbox, file string) string { return filepath.Join(h.root, sandbox, file) }

func (h *machine) write(sandbox, file, text string) {
	h.t.Helper()
	check(h.t, os.WriteFile(h.path(sandbox, file), []byte(text), 0o644))
}

func (h *machine) read(sandbox, file string) string {
	h.t.Helper()
	b, err := os.ReadFile(h.path(sandbox, file))
	check(h.t, err)
	return string(b)
}

// files through real file systems, on two nodes.
func TestFilesOutliveTheirSandboxOnRealFileSystems(t *testing.T) {
	requireKernelMounts(t)
	ctx, shared := t.Context(), t.TempDir()
	a := newMachine(t, ctx, "a", t.TempDir(), shared)
	defer a.off()
	b := newMachine(t, ctx, "b", t.TempDir(), shared)
	defer b.off()
	_, err := a.m.Create(ctx, volume.CreateOptions{Name: "work", Size: 64 * volume.MiB})
	check(t, err)
	_, err = a.Node.Create(ctx, box("s"), []mount.Mount{{Path: "/work", Volume: "work"}})
	check(t, err)
	a.write("s", "work/file", "before the pause")
	check(t, a.Pause(ctx, box("s")))
	if _, err := os.Stat(a.path("s", "work/file")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is in sight after the pause: %v", err)
	}
	_, err = b.Resume(ctx, box("s"))
	check(t, err)
	if got := b.read("s", "work/file"); got != "before the pause" {
		t.Errorf("on the other node: %q", got)
	}

	// Fork and snapshot of a running sandbox: frozen for the cut, clean for a read-only mount.
	_, err = b.Fork(ctx, box("s"), []string{"child"})
	check(t, err)
	id, set, err := b.Snapshot(ctx, box("s"))
	check(t, err)
	ro, err := b.m.Fork(ctx, "work", volume.ForkOptions{Name: "data", Mode: volume.ReadOnly})
	check(t, err)
	b.write("s", "work/file", "changed by the parent")
	_, err = a.Resume(ctx, box("child"))
	check(t, err)
	a.write("child", "work/other", "of the child")
	if got := a.read("child", "work/file"); got != "before the pause" {
		t.Errorf("the child reads %q", got)
	}
	_, err = a.CreateFrom(ctx, box("restored"), set, nil)
	check(t, err)
	if got := a.read("restored", "work/file"); got != "before the pause" {
		t.Errorf("restored: %q", got)
	}
	for i, h := range []*machine{a, b, a} {
		name := fmt.Sprintf("reader%d", i)
		_, err := h.Node.Create(ctx, box(name), []mount.Mount{{Path: "/data", Volume: ro.ID}})
		check(t, err)
		if got := h.read(name, "data/file"); got != "before the pause" {
			t.Errorf("reader %d: %q", i, got)
		}
		err = os.WriteFile(h.path(name, "data/file"), nil, 0o644)
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("write to an ro drive: %v, want EROFS", err)
		}
		defer func() { check(t, h.Delete(context.Background(), box(name))) }()
	}
	for _, name := range []string{"child", "restored"} {
		check(t, a.Delete(ctx, box(name)))
	}
	check(t, b.Delete(ctx, box("s")))
	check(t, b.Delete(ctx, id))
}

// What was made for the mounts of a sandbox goes with the last of them.
func TestAPausedSandboxLeavesNoDirectories(t *testing.T) {
	requireKernelMounts(t)
	ctx := t.Context()
	a := newMachine(t, ctx, "a", t.TempDir(), t.TempDir())
	defer a.off()
	var mounts []mount.Mount
	for _, name := range []string{"v", "w"} {
		_, err := a.m.Create(ctx, volume.CreateOptions{Name: name, Size: 64 * volume.MiB})
		check(t, err)
		mounts = append(mounts, mount.Mount{Path: "/mnt/" + name, Volume: name})
	}
	_, err := a.Node.Create(ctx, box("s"), mounts)
	check(t, err)
	check(t, a.Pause(ctx, box("s")))
	if _, err := os.Stat(a.path("s", "")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the sandbox's directory after the pause: %v", err)
	}
	check(t, a.Delete(ctx, box("s")))
}

func TestPauseWithAFileOpenSaysSoAndLosesNothing(t *testing.T) {
	requireKernelMounts(t)
	ctx := t.Context()
	a := newMachine(t, ctx, "a", t.TempDir(), t.TempDir())
	defer a.off()
	_, err := a.m.Create(ctx, volume.CreateOptions{Name: "work", Size: 64 * volume.MiB})
	check(t, err)
	_, err = a.Node.Create(ctx, box("s"), []mount.Mount{{Path: "/work", Volume: "work"}})
	check(t, err)
	f, err := os.Create(a.path("s", "work/open"))
	check(t, err)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := a.Pause(short, box("s")); !errors.Is(err, mount.ErrBusy) || !strings.Contains(err.Error(), "/work") {
		t.Errorf("pause with a file open: %v, want ErrBusy and the drive's path", err)
	}
	_, err = f.WriteString("still writable")
	check(t, err)
	check(t, f.Close())
	check(t, a.Pause(ctx, box("s")))
	_, err = a.Resume(ctx, box("s"))
	check(t, err)
	if got := a.read("s", "work/open"); got != "still writable" {
		t.Errorf("after the resume: %q", got)
	}
	check(t, a.Delete(ctx, box("s")))
}

// the host process is killed with its sandbox's files mounted. What the sandbox had fsynced is there
// after Recover, the stale mount is gone, and the sandbox still owns its volume.
func TestAKilledHostRecoversItsSandboxes(t *testing.T) {
	requireKernelMounts(t)
	dir, shared := t.TempDir(), t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperMachine$")
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_MACHINE="+dir+":"+shared)
	out, err := cmd.StdoutPipe()
	check(t, err)
	cmd.Stderr = os.Stderr
	check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	child := 0
	for lines.Scan() {
		if _, err := fmt.Sscanf(lines.Text(), "synced %d", &child); err == nil {
			break
		}
	}
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed

	a := newMachine(t, t.Context(), "a", dir, shared)
	defer a.off()
	recovered, err := a.Recover(t.Context())
	check(t, err)
	if len(recovered) != 1 || recovered[0].Err != nil || recovered[0].Phase != mount.Running {
		t.Fatalf("recovered %+v", recovered)
	}
	if left := mountsBelow(t, a.root); len(left) > 0 {
		t.Errorf("stale mounts: %v", left)
	}
	v, err := a.m.Get(t.Context(), "work")
	check(t, err)
	if v.Reservation.Grant.Owner != "s" {
		t.Errorf("reservation is %+v", v.Reservation)
	}
	_, err = a.Resume(t.Context(), box("s"))
	check(t, err)
	want := bytes.Repeat([]byte("synced "), 4096)
	got, err := os.ReadFile(a.path("s", "work/file"))
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes after the kill, want %d equal ones", len(got), len(want))
	}
	check(t, a.Delete(t.Context(), box("s")))
}

// TestHelperMachine is the process that TestAKilledHostRecoversItsSandboxes kills.
func TestHelperMachine(t *testing.T) {
	dir, shared, ok := strings.Cut(os.Getenv("SANDVOL_TEST_MACHINE"), ":")
	if !ok {
		return // not that process
	}
	ctx := context.Background()
	a := newMachine(t, ctx, "a", dir, shared)
	_, err := a.m.Create(ctx, volume.CreateOptions{Name: "work", Size: 64 * volume.MiB})
	check(t, err)
	_, err = a.Node.Create(ctx, box("s"), []mount.Mount{{Path: "/work", Volume: "work"}})
	check(t, err)
	f, err := os.Create(a.path("s", "work/file"))
	check(t, err)
	_, err = f.Write(bytes.Repeat([]byte("synced "), 4096))
	check(t, err)
	check(t, f.Sync())
	// What the host has started outlives it, and must not keep the dead mount alive.
	child := exec.Command("sleep", "30")
	check(t, child.Start())
	fmt.Println("synced", child.Process.Pid)
	time.Sleep(time.Minute) // to be killed
}
