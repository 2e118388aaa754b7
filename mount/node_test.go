package mount_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
)

// mixed drives through a whole life on two nodes.
func TestDrivesFollowTheSandboxFromNodeToNode(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	work, data := a.volume("work"), a.ready("data", 'd')
	mounts := []mount.Mount{{Path: "/data", Volume: "data"}, {Path: "/work", Volume: "work"}}

	got := a.drives(a.Create(t.Context(), box("s"), mounts))
	if len(got) != 2 || got[0].Path != "/data" || !got[0].ReadOnly || got[1].Path != "/work" || got[1].ReadOnly {
		t.Fatalf("drives are %+v", got)
	}
	a.write("s", work.ID, 8192, 'w')
	if err := a.bench.devices[data.ID+"-s"].Discard(0, 512); err == nil {
		t.Error("an ro drive takes a discard")
	}
	a.ok(a.Pause(t.Context(), box("s")))
	if n := len(a.bench.devices); n != 0 {
		t.Errorf("%d devices are still exposed after the pause", n)
	}

	// Paused, the volumes stay the sandbox's own, on every node.
	_, err := b.Create(t.Context(), box("other"), mounts[1:])
	if !errors.Is(err, mount.ErrConflict) || !strings.Contains(err.Error(), "s") {
		t.Errorf("a paused sandbox's volume goes to another: %v", err)
	}
	if err := b.m.Delete(t.Context(), data.ID); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("a paused sandbox's ro volume is deleted: %v", err)
	}

	if got := b.drives(b.Resume(t.Context(), box("s"))); len(got) != 2 {
		t.Fatalf("resumed with %+v", got)
	}
	if w, d := b.read("s", work.ID, 8192), b.read("s", data.ID, 4096); w != 'w' || d != 'd' {
		t.Errorf("after the resume the sandbox reads %q %q", w, d)
	}
	if pins := b.keys("v1/pins/"); len(pins) != 1 {
		t.Errorf("pins after the resume: %v", pins)
	}
	b.ok(b.Delete(t.Context(), box("s")))
	a.drives(a.Create(t.Context(), box("next"), mounts))
	if w := a.read("next", work.ID, 8192); w != 'w' {
		t.Errorf("the next sandbox reads %q", w)
	}
	a.ok(a.Delete(t.Context(), box("next")))
	a.empty()
}

// all or nothing, and the error names drive and holder.
func TestCreateIsAllOrNothing(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	one, two := a.volume("one"), a.volume("two")
	ro := a.ready("ro", 'r')
	b.drives(b.Create(t.Context(), box("holder"), []mount.Mount{{Path: "/x", Volume: two.ID}}))

	_, err := a.Create(t.Context(), box("s"), []mount.Mount{
		{Path: "/one", Volume: one.ID}, {Path: "/ro", Volume: ro.ID}, {Path: "/two", Volume: two.ID}})
	if !errors.Is(err, mount.ErrConflict) {
		t.Fatalf("error is %v", err)
	}
	for _, want := range []string{"/two", two.ID, "holder", "node b"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q: %v", want, err)
		}
	}
	if v := a.made(a.m.Get(t.Context(), one.ID)); v.Reservation.Phase != "free" {
		t.Errorf("volume one is left %s", v.Reservation.Phase)
	}
	if p := a.phase("s"); p != mount.Deleted {
		t.Errorf("sandbox is left %s", p)
	}
	b.ok(b.Delete(t.Context(), box("holder")))
	b.empty()
	if pending, _ := a.repo.Journal(); len(pending) > 0 {
		t.Errorf("journal of a is not empty: %+v", pending)
	}
}

func TestCreateGivesBackWhenADeviceCannotBeExposed(t *testing.T) {
	c := newCrew(t)
	a := c.host("a")
	one, two := a.volume("one"), a.volume("two")
	a.bench.fail = func(name string) error {
		if strings.HasPrefix(name, two.ID) {
			return errors.New("no room")
		}
		return nil
	}
	mounts := []mount.Mount{{Path: "/one", Volume: one.ID}, {Path: "/two", Volume: two.ID}}
	if _, err := a.Create(t.Context(), box("s"), mounts); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Fatalf("error is %v", err)
	}
	a.bench.fail = nil
	a.drives(a.Create(t.Context(), box("s2"), mounts))
	a.ok(a.Delete(t.Context(), box("s2")))
	a.empty()
}

func TestBadMountRequestsAreRefusedWholeAndWriteNothing(t *testing.T) {
	c := newCrew(t)
	a := c.host("a")
	v := a.volume("v")
	before := a.keys("v1/")
	for name, tc := range map[string]struct {
		mounts []mount.Mount
		class  error
		want   []string
	}{
		"relative":      {[]mount.Mount{{Path: "work", Volume: v.ID}}, mount.ErrInvalid, []string{`"work"`, "absolute"}},
		"root":          {[]mount.Mount{{Path: "/", Volume: v.ID}}, mount.ErrInvalid, []string{`"/"`, "root"}},
		"dots":          {[]mount.Mount{{Path: "/a/../b", Volume: v.ID}}, mount.ErrInvalid, []string{`"/a/../b"`, `"/b"`}},
		"trailing":      {[]mount.Mount{{Path: "/a/", Volume: v.ID}}, mount.ErrInvalid, []string{`"/a/"`}},
		"nested":        {[]mount.Mount{{Path: "/a", Volume: v.ID}, {Path: "/a/b", Volume: "x"}}, mount.ErrInvalid, []string{`"/a/b"`, `"/a"`}},
		"twice":         {[]mount.Mount{{Path: "/a", Volume: v.ID}, {Path: "/a", Volume: "x"}}, mount.ErrInvalid, []string{`"/a"`}},
		"same volume":   {[]mount.Mount{{Path: "/a", Volume: v.ID}, {Path: "/b", Volume: "v"}}, mount.ErrInvalid, []string{v.ID, "twice"}},
		"unknown":       {[]mount.Mount{{Path: "/a", Volume: "nope"}, {Path: "/b", Volume: "neither"}}, mount.ErrNotFound, []string{"nope", "neither", "/a", "/b"}},
		"too many":      {make([]mount.Mount, 25), mount.ErrInvalid, []string{"25", "24"}},
		"long":          {[]mount.Mount{{Path: "/" + strings.Repeat("x", 1024), Volume: v.ID}}, mount.ErrInvalid, []string{"1025", "1024"}},
		"long name":     {[]mount.Mount{{Path: "/" + strings.Repeat("x", 256), Volume: v.ID}}, mount.ErrInvalid, []string{"256", "255"}},
		"bad reference": {[]mount.Mount{{Path: "/a", Volume: "no/slash"}}, mount.ErrInvalid, []string{"no/slash"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.Create(t.Context(), box("s"), tc.mounts)
			if !errors.Is(err, tc.class) {
				t.Fatalf("error is %v, want class %v", err, tc.class)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error does not name %s: %v", w, err)
				}
			}
		})
	}
	if _, err := a.Create(t.Context(), mount.ID{Tenant: "_", Sandbox: "s"}, nil); !errors.Is(err, mount.ErrInvalid) {
		t.Errorf("the reserved tenant: %v", err)
	}
	if _, err := a.Create(t.Context(), box("no/slash"), nil); !errors.Is(err, mount.ErrInvalid) {
		t.Errorf("a sandbox id with a slash: %v", err)
	}
	if d := cmp.Diff(before, a.keys("v1/")); d != "" {
		t.Errorf("the store has changed: %s", d)
	}
}

func TestOperationsMayBeRepeated(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	v := a.volume("v")
	mounts := []mount.Mount{{Path: "/w", Volume: v.ID}}
	first := a.drives(a.Create(t.Context(), box("s"), mounts))
	if d := cmp.Diff(first, a.drives(a.Create(t.Context(), box("s"), mounts))); d != "" {
		t.Errorf("a repeated create: %s", d)
	}
	if _, err := a.Create(t.Context(), box("s"), nil); !errors.Is(err, mount.ErrExists) {
		t.Errorf("create with other drives: %v", err)
	}
	if _, err := b.Resume(t.Context(), box("s")); !errors.Is(err, mount.ErrConflict) {
		t.Errorf("resume elsewhere while running: %v", err)
	}
	for what, err := range map[string]error{"pause": b.Pause(t.Context(), box("s")), "delete": b.Delete(t.Context(), box("s"))} {
		if !errors.Is(err, mount.ErrConflict) || !strings.Contains(err.Error(), "node b") {
			t.Errorf("%s from a node that does not run it: %v", what, err)
		}
	}
	if d := cmp.Diff(first, a.drives(a.Resume(t.Context(), box("s")))); d != "" {
		t.Errorf("resume of a running sandbox: %s", d)
	}
	a.write("s", v.ID, 4096, '1')
	a.ok(a.Pause(t.Context(), box("s")))
	a.ok(a.Pause(t.Context(), box("s")))
	a.ok(b.Pause(t.Context(), box("s")))
	b.drives(b.Resume(t.Context(), box("s")))
	if got := b.read("s", v.ID, 4096); got != '1' {
		t.Errorf("reads %q", got)
	}
	b.ok(b.Pause(t.Context(), box("s")))
	a.ok(a.Delete(t.Context(), box("s"))) // paused: any node may
	for _, err := range []error{a.Delete(t.Context(), box("s")), a.Pause(t.Context(), box("s"))} {
		if !errors.Is(err, mount.ErrNotFound) {
			t.Errorf("after the deletion: %v", err)
		}
	}
	a.drives(a.Create(t.Context(), box("s"), mounts)) // the id may be used again
	a.ok(a.Delete(t.Context(), box("s")))
	a.empty()
}

// each child gets a volume of its own, and the parent does not notice.
func TestForkedSandboxesAreIndependent(t *testing.T) {
	c := newCrew(t)
	var frozen, thawed int
	a := c.host("a", mount.WithFreezer(func(context.Context, mount.ID) (func() error, error) {
		frozen++
		return func() error { thawed++; return nil }, nil
	}))
	b := c.host("b")
	one, two, ro := a.volume("one"), a.volume("two"), a.ready("ro", 'r')
	a.drives(a.Create(t.Context(), box("p"), []mount.Mount{
		{Path: "/1", Volume: one.ID}, {Path: "/2", Volume: two.ID}, {Path: "/ro", Volume: ro.ID}}))
	a.write("p", one.ID, 4096, 'a')
	a.write("p", two.ID, 4096, 'b')

	_, err := a.Fork(t.Context(), box("p"), []string{"c1", "p"})
	if !errors.Is(err, mount.ErrInvalid) {
		t.Errorf("fork into itself: %v", err)
	}
	frozen, thawed = 0, 0
	sets, err := a.Fork(t.Context(), box("p"), []string{"c1", "c2"})
	a.ok(err)
	if frozen != 1 || thawed != 1 {
		t.Errorf("frozen %d times, thawed %d times: want one freeze for all drives", frozen, thawed)
	}
	a.write("p", one.ID, 4096, 'A') // the parent goes on
	for i, name := range []string{"c1", "c2"} {
		b.drives(b.Resume(t.Context(), box(name)))
		byPath := map[string]string{}
		for _, d := range sets[i].Drives {
			byPath[d.Path] = d.Volume
		}
		if byPath["/ro"] != ro.ID || byPath["/1"] == one.ID || byPath["/2"] == two.ID {
			t.Errorf("%s has %v", name, byPath)
		}
		if x, y := b.read(name, byPath["/1"], 4096), b.read(name, byPath["/2"], 4096); x != 'a' || y != 'b' {
			t.Errorf("%s reads %q %q", name, x, y)
		}
		b.write(name, byPath["/1"], 4096, 'c')
		v, w := b.made(b.m.Get(t.Context(), byPath["/1"])), b.made(b.m.Get(t.Context(), byPath["/2"]))
		if v.Cut != w.Cut || v.Consistency != volume.Clean || v.Lineage.Volume != one.ID {
			t.Errorf("%s: cuts %s %s, %s, lineage %+v", name, v.Cut, w.Cut, v.Consistency, v.Lineage)
		}
	}
	if got := a.read("p", one.ID, 4096); got != 'A' {
		t.Errorf("the parent reads %q", got)
	}
	for _, name := range []string{"c1", "c2"} {
		b.ok(b.Delete(t.Context(), box(name)))
	}
	a.ok(a.Delete(t.Context(), box("p")))
	a.empty()
}

// a snapshot of a sandbox outlives its volumes.
func TestSnapshotOfASandboxOutlivesItsVolumes(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	one, two, ro := a.volume("one"), a.volume("two"), a.ready("ro", 'r')
	a.drives(a.Create(t.Context(), box("p"), []mount.Mount{
		{Path: "/1", Volume: one.ID}, {Path: "/2", Volume: two.ID}, {Path: "/ro", Volume: ro.ID}}))
	a.write("p", one.ID, 4096, 'a')
	id, set, err := a.Snapshot(t.Context(), box("p"))
	a.ok(err)
	cuts := map[string]bool{}
	for _, d := range set.Drives {
		cp, err := a.m.Checkpoint(t.Context(), d.Checkpoint)
		a.ok(err)
		if d.Mode == volume.Exclusive {
			cuts[cp.Cut] = true
		}
	}
	if len(cuts) != 1 || !cuts[set.Cut] {
		t.Errorf("cuts of the checkpoints are %v, of the set %s", cuts, set.Cut)
	}
	a.write("p", one.ID, 4096, 'b')
	a.ok(a.Delete(t.Context(), box("p")))
	for _, v := range []string{one.ID, two.ID, ro.ID, "ro-source"} {
		a.ok(a.m.Delete(t.Context(), v))
	}
	for range 2 {
		_, err := a.repo.Collect(t.Context(), volume.CollectOptions{MinAge: new(0 * volume.DefaultMinAge)})
		a.ok(err)
	}

	fresh := b.volume("fresh")
	kept, err := b.Set(t.Context(), id)
	b.ok(err)
	got := b.drives(b.CreateFrom(t.Context(), box("r"), kept, []mount.Mount{{Path: "/2", Volume: fresh.ID}}))
	byPath := map[string]mount.Drive{}
	for _, d := range got {
		byPath[d.Path] = d
	}
	if byPath["/2"].Volume != fresh.ID {
		t.Errorf("the mount given does not take the place of the snapshot's: %+v", byPath["/2"])
	}
	if x, r := b.read("r", byPath["/1"].Volume, 4096), b.read("r", byPath["/ro"].Volume, 4096); x != 'a' || r != 'r' {
		t.Errorf("restored: %q %q", x, r)
	}
	b.ok(b.Delete(t.Context(), box("r")))
	b.ok(b.Delete(t.Context(), id))
	b.empty()
}

// what the store does not take stays here, and nothing is released before it is published.
func TestAPauseThatFailsLosesNothingAndCanBeGivenUp(t *testing.T) {
	c := newCrew(t)
	sick := &outage{Store: c.st}
	a := c.hostAt("a", t.TempDir(), sick)
	one, two := a.volume("one"), a.volume("two")
	a.drives(a.Create(t.Context(), box("s"), []mount.Mount{{Path: "/1", Volume: one.ID}, {Path: "/2", Volume: two.ID}}))
	a.write("s", one.ID, 4096, 'x')
	a.write("s", two.ID, 4096, 'y')
	sick.blobs.Store(true)
	err := a.Pause(t.Context(), box("s"))
	if err == nil || !strings.Contains(err.Error(), "/1") || !strings.Contains(err.Error(), "/2") {
		t.Fatalf("pause with the store down: %v, want an error that names both drives", err)
	}
	if err := a.Delete(t.Context(), box("s")); err == nil {
		t.Fatal("deleted with the store down")
	}
	if v := a.made(a.m.Get(t.Context(), one.ID)); v.Reservation.Grant.Owner != "s" || v.Reservation.Phase != "mounted" {
		t.Errorf("reservation after the failed pause: %+v", v.Reservation)
	}
	a.drives(a.Resume(t.Context(), box("s"))) // given up
	if x, y := a.read("s", one.ID, 4096), a.read("s", two.ID, 4096); x != 'x' || y != 'y' {
		t.Errorf("after giving up: %q %q", x, y)
	}
	a.write("s", one.ID, 4096, 'z')
	if err := a.Pause(t.Context(), box("s")); err == nil {
		t.Fatal("paused with the store down")
	}
	sick.blobs.Store(false)
	a.ok(a.Pause(t.Context(), box("s")))
	b := c.host("b")
	b.drives(b.Resume(t.Context(), box("s")))
	if x, y := b.read("s", one.ID, 4096), b.read("s", two.ID, 4096); x != 'z' || y != 'y' {
		t.Errorf("on the other node: %q %q", x, y)
	}
	b.ok(b.Delete(t.Context(), box("s")))
	b.empty()
}
