package guestvm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sandvol/sandvol/internal/guestvm"
	"github.com/sandvol/sandvol/internal/guestvm/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
)

const (
	MiB      = 1 << 20
	fileSize = 3*MiB + 17
)

// places are where the guest sees its drives, and how each gets there.
var places = map[string]guestvm.Kind{"/file": guestvm.File, "/nbd": guestvm.NBD, "/vhost": guestvm.VhostUser}

// one life of a sandbox whose guest has a kernel of its own.
// What it wrote over each kind of device is there after a pause and a resume on another node, in a fork, and after the
// virtual machine was killed; an ro volume is written by nobody; a cut under a freeze of the guest is clean.
func TestAGuestKeepsItsDrivesOnEveryWay(t *testing.T) {
	l := newLab(t)
	a := l.host("a")
	mounts := l.volumes(a)
	drives, err := a.Create(t.Context(), box("s"), mounts)
	l.ok(err)
	vm := l.boot(a, box("s"), drives)
	for p := range places {
		l.do(vm, wire.Command{Op: wire.Write, Path: p + "/first", Seed: int64(len(p)), Size: fileSize})
		l.do(vm, wire.Command{Op: wire.Trim, Path: p})
	}
	l.readOnly(vm, drives)

	_, set, err := a.Snapshot(t.Context(), box("s"))
	l.ok(err)
	for _, d := range set.Drives {
		if d.Checkpoint == "" {
			continue
		}
		if c, err := a.m.Checkpoint(t.Context(), d.Checkpoint); err != nil || c.Consistency != volume.Clean {
			t.Errorf("checkpoint of %s: %s, %v; want clean", d.Path, c.Consistency, err)
		}
	}
	for p := range places { // of which the snapshot knows nothing
		l.do(vm, wire.Command{Op: wire.Write, Path: p + "/second", Seed: 2, Size: 5000})
	}
	a.guests[box("s")].last = true
	l.ok(a.Pause(t.Context(), box("s")))

	b := l.host("b")
	maps.Copy(b.kinds, a.kinds)
	children, err := b.Fork(t.Context(), box("s"), []string{"child"})
	l.ok(err)
	for _, d := range children[0].Drives {
		b.kinds[d.Volume] = places[d.Path]
	}
	restored, err := b.CreateFrom(t.Context(), box("back"), set, nil)
	l.ok(err)
	drives, err = b.Resume(t.Context(), box("s"))
	l.ok(err)
	forked, err := b.Resume(t.Context(), box("child"))
	l.ok(err)
	if len(children) != 1 || len(forked) != len(drives) {
		t.Fatalf("%d children, %d drives", len(children), len(forked))
	}
	others := append(b.devices(writable(forked)), b.devices(writable(restored))...)
	vm = l.boot(b, box("s"), drives, others...)
	for _, d := range writable(forked) {
		l.do(vm, wire.Command{Op: wire.Mount, Serial: serial(d), Path: "/child" + d.Path})
		l.do(vm, wire.Command{Op: wire.Check, Path: "/child" + d.Path + "/second", Seed: 2, Size: 5000})
		l.do(vm, wire.Command{Op: wire.Write, Path: "/child" + d.Path + "/first", Seed: 99, Size: 100})
		l.do(vm, wire.Command{Op: wire.Unmount, Path: "/child" + d.Path})
	}
	for _, d := range writable(restored) {
		l.do(vm, wire.Command{Op: wire.Mount, Serial: serial(d), Path: "/back" + d.Path})
		l.do(vm, wire.Command{Op: wire.Check, Path: "/back" + d.Path + "/first", Seed: int64(len(d.Path)), Size: fileSize})
		if _, err := vm.Do(wire.Command{Op: wire.Check, Path: "/back" + d.Path + "/second", Seed: 2, Size: 5000}); err == nil {
			t.Errorf("%s: the snapshot has what was written after it", d.Path)
		}
		l.do(vm, wire.Command{Op: wire.Unmount, Path: "/back" + d.Path})
	}
	for p := range places {
		l.do(vm, wire.Command{Op: wire.Check, Path: p + "/first", Seed: int64(len(p)), Size: fileSize})
		l.do(vm, wire.Command{Op: wire.Check, Path: p + "/second", Seed: 2, Size: 5000})
	}
	l.ok(b.Delete(t.Context(), box("child")))
	l.ok(b.Delete(t.Context(), box("back")))

	// The virtual machine dies while it writes. Its drives stay, with every record that it had fsynced.
	acked := l.recordUntil(vm, 20)
	vm.Kill()
	b.forget(box("s"))
	vm = l.start(b.devices(drives))
	for _, d := range writable(drives) {
		l.do(vm, wire.Command{Op: wire.Mount, Serial: serial(d), Path: d.Path})
		if n := l.do(vm, wire.Command{Op: wire.Count, Path: d.Path + "/records"}); n < acked[d.Path] {
			t.Errorf("%s has %d records, %d were fsynced", d.Path, n, acked[d.Path])
		}
		l.do(vm, wire.Command{Op: wire.Check, Path: d.Path + "/first", Seed: int64(len(d.Path)), Size: fileSize})
		l.do(vm, wire.Command{Op: wire.Unmount, Path: d.Path})
	}
	vm.Kill()
	l.ok(b.Delete(t.Context(), box("s")))
	l.check(b, mounts)
}

// volumes makes one exclusive volume of each kind, and an ro one.
func (l *lab) volumes(h *host) (mounts []mount.Mount) {
	l.t.Helper()
	for p, kind := range places {
		v, err := h.m.Create(l.t.Context(), volume.CreateOptions{Name: p[1:], Size: 64 * MiB})
		l.ok(err)
		mounts = append(mounts, mount.Mount{Path: p, Volume: v.ID})
		h.exposers.mu.Lock()
		h.kinds[v.ID] = kind
		h.exposers.mu.Unlock()
	}
	v, err := h.m.Fork(l.t.Context(), "file", volume.ForkOptions{Name: "readonly", Mode: volume.ReadOnly})
	l.ok(err)
	h.exposers.mu.Lock()
	h.kinds[v.ID] = guestvm.VhostUser
	h.exposers.mu.Unlock()
	return append(mounts, mount.Mount{Path: "/ro", Volume: v.ID})
}

func writable(drives []mount.Drive) (out []mount.Drive) {
	for _, d := range drives {
		if !d.ReadOnly {
			out = append(out, d)
		}
	}
	return out
}

// readOnly tries to write the ro drive, through its file system and past it.
func (l *lab) readOnly(vm *guestvm.VM, drives []mount.Drive) {
	l.t.Helper()
	for _, d := range drives {
		if !d.ReadOnly {
			continue
		}
		if _, err := vm.Do(wire.Command{Op: wire.Create, Path: d.Path + "/file"}); !errors.Is(err, syscall.EROFS) {
			l.t.Errorf("create in an ro drive: %v, want EROFS", err)
		}
		_, err := vm.Do(wire.Command{Op: wire.RawWrite, Serial: serial(d)})
		if !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EACCES) {
			l.t.Errorf("write to an ro device: %v, want EPERM or EACCES", err)
		}
	}
}

// recordUntil has the guest append to a file on each drive until n records are on each, and returns how many there were.
func (l *lab) recordUntil(vm *guestvm.VM, n int64) map[string]int64 {
	l.t.Helper()
	for p := range places {
		l.do(vm, wire.Command{Op: wire.Records, Path: p + "/records"})
	}
	acked := map[string]int64{}
	for p := range places {
		acked[p] = l.await(vm, p+"/records", n)
	}
	return acked
}

func (l *lab) await(vm *guestvm.VM, path string, n int64) int64 {
	l.t.Helper()
	for range 2400 {
		got, failure := vm.Acked(path)
		if failure != "" {
			l.t.Fatalf("%s: %s", path, failure)
		}
		if got >= n {
			return got
		}
		time.Sleep(50 * time.Millisecond)
	}
	l.t.Fatalf("%s: fewer than %d records in two minutes", path, n)
	return 0
}

// check has e2fsck look at every volume.
func (l *lab) check(h *host, mounts []mount.Mount) {
	l.t.Helper()
	clear(h.kinds) // all of them files
	drives, err := h.Create(l.t.Context(), box("check"), mounts)
	l.ok(err)
	for _, d := range writable(drives) {
		if out, err := exec.Command("e2fsck", "-fn", d.Device).CombinedOutput(); err != nil {
			l.t.Errorf("%s: %v\n%s", d.Path, err, out)
		}
	}
	l.ok(h.Delete(l.t.Context(), box("check")))
}

// the host process dies while its guest writes, again and again, and comes back. The guest notices nothing but
// the time, and no record that it had fsynced is lost.
func TestAGuestOutlivesItsHostProcess(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.dir, "h")
	l.ok(os.Mkdir(dir, 0o700))
	p := l.hostProcess(dir)
	vm := l.start(p.drives)
	for path, s := range p.serials {
		l.do(vm, wire.Command{Op: wire.Mount, Serial: s, Path: path})
		l.do(vm, wire.Command{Op: wire.Records, Path: path + "/records"})
	}
	want := int64(5)
	for range 3 {
		for path := range p.serials {
			want = max(want, l.await(vm, path+"/records", want))
		}
		p.kill()
		p = l.hostProcess(dir)
		want += 10
	}
	for path := range p.serials {
		got := l.await(vm, path+"/records", want)
		if n := l.do(vm, wire.Command{Op: wire.Count, Path: path + "/records"}); n < got {
			t.Errorf("%s has %d records, %d were fsynced", path, n, got)
		}
	}
	vm.Kill()
	p.kill()
}

// process is a host that can be killed.
type process struct {
	cmd     *exec.Cmd
	drives  []guestvm.Drive
	serials map[string]string // by path
}

func (l *lab) hostProcess(dir string) *process {
	l.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SANDVOL_TEST_HOST="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	l.ok(err)
	l.ok(cmd.Start())
	p := &process{cmd: cmd, serials: map[string]string{}}
	l.t.Cleanup(p.kill)
	lines := bufio.NewScanner(out)
	for len(p.drives) < 2 && lines.Scan() {
		var d guestvm.Drive
		var path string
		if _, err := fmt.Sscan(lines.Text(), &d.Kind, &d.Path, &d.Serial, &path); err != nil {
			l.t.Fatalf("host process: %q: %v", lines.Text(), err)
		}
		p.drives = append(p.drives, d)
		p.serials[path] = d.Serial
	}
	if len(p.drives) < 2 {
		l.t.Fatal("the host process did not come up")
	}
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // "killed" is what it should say
}

// hostProcess serves two volumes from a directory, and goes on with them where an earlier process was killed.
func hostProcess(dir string) error {
	ctx := context.Background()
	shared := filepath.Join(dir, "shared")
	if err := os.MkdirAll(shared, 0o700); err != nil {
		return err
	}
	h, _, err := newHost(ctx, shared, dir, "h", false)
	if err != nil {
		return err
	}
	var mounts []mount.Mount
	for _, kind := range []guestvm.Kind{guestvm.NBD, guestvm.VhostUser} {
		v, err := h.m.Create(ctx, volume.CreateOptions{Name: string(kind), Size: 64 * MiB})
		if errors.Is(err, mount.ErrExists) {
			v, err = h.m.Get(ctx, string(kind))
		}
		if err != nil {
			return err
		}
		h.kinds[v.ID] = kind
		mounts = append(mounts, mount.Mount{Path: "/" + string(kind), Volume: v.ID})
	}
	recovered, err := h.Recover(ctx)
	if err != nil {
		return err
	}
	var drives []mount.Drive
	if len(recovered) > 0 {
		drives, err = h.Resume(ctx, box("s"))
	} else {
		drives, err = h.Create(ctx, box("s"), mounts)
	}
	if err != nil {
		return err
	}
	for _, d := range drives {
		fmt.Println(h.kinds[d.Volume], d.Device, serial(d), d.Path)
	}
	select {} // until it is killed
}
