package mount_test

import (
	"errors"
	"testing"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// a scheduler moves a sandbox from a node that is lost. The old node lives after all: its drives fail, and what
// they held and nobody has published is in volumes of their own.
func TestTakeOverMovesASandboxFromALostNode(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	home, data := a.volume("home"), a.volume("data")
	ro := a.made(a.m.Fork(t.Context(), a.volume("seed").ID, volume.ForkOptions{Mode: volume.ReadOnly}))
	mounts := []mount.Mount{{Path: "/home", Volume: home.ID}, {Path: "/data", Volume: data.ID}, {Path: "/ro", Volume: ro.ID}}
	if _, err := a.Create(t.Context(), box("sb"), mounts); err != nil {
		t.Fatal(err)
	}
	device := func(h *host, v volume.Volume) exposed { return h.bench.devices[v.ID+"-sb"] }
	if _, err := device(a, home).WriteAt(sector('u'), 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Resume(t.Context(), box("sb")); !errors.Is(err, mount.ErrConflict) {
		t.Fatalf("resume without a takeover: %v", err)
	}
	for range 2 {
		drives, err := b.TakeOver(t.Context(), box("sb"), "node a does not answer")
		if err != nil || len(drives) != 3 {
			t.Fatalf("%d drives, %v", len(drives), err)
		}
	}
	if _, err := device(b, home).WriteAt(sector('w'), 4096); err != nil {
		t.Fatal(err)
	}
	// The old node finds out when it next wants something.
	if err := a.Pause(t.Context(), box("sb")); !errors.Is(err, volume.ErrFenced) {
		t.Fatalf("pause on the lost node: %v", err)
	}
	if err := a.Abandon(t.Context(), box("sb")); err != nil {
		t.Fatal(err)
	}
	if n := len(a.bench.devices); n > 0 {
		t.Errorf("%d devices are left on the lost node", n)
	}
	for _, s := range a.repo.Salvage(t.Context()) {
		if s.Err != nil {
			t.Error(s.Err)
		}
	}
	if err := b.Pause(t.Context(), box("sb")); err != nil {
		t.Fatal(err)
	}
	if v := a.made(a.m.Get(t.Context(), home.ID)); v.Reservation.Phase != reservation.Paused {
		t.Errorf("home is %s", v.Reservation.Phase)
	}
	if err := b.Delete(t.Context(), box("sb")); err != nil {
		t.Fatal(err)
	}
	for _, v := range []volume.Volume{home, data, ro} {
		if err := b.m.Delete(t.Context(), v.ID); err != nil { // no reservation and no pin is left
			t.Error(err)
		}
	}
}

// A sandbox that expired, or was never acknowledged, when its node was lost is taken over to be deleted.
func TestTakeOverOfAnExpiringSandboxIsForItsDeletion(t *testing.T) {
	c := newCrew(t)
	st := &outage{Store: c.st}
	a, b := c.hostAt("a", memoryDir(t), st), c.host("b")
	v := a.volume("home")
	if _, err := a.Create(t.Context(), box("sb"), []mount.Mount{{Path: "/home", Volume: v.ID}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.bench.devices[v.ID+"-sb"].WriteAt(sector('u'), 8192); err != nil {
		t.Fatal(err)
	}
	st.blobs.Store(true)
	if claimed, err := a.Expire(t.Context(), box("sb"), nil); !claimed || err == nil {
		t.Fatalf("claimed %t, %v", claimed, err)
	}
	if err := b.Delete(t.Context(), box("sb")); !errors.Is(err, mount.ErrConflict) {
		t.Fatalf("delete without a takeover: %v", err)
	}
	if drives, err := b.TakeOver(t.Context(), box("sb"), "node a does not answer"); err != nil || len(drives) > 0 {
		t.Fatalf("%d drives, %v", len(drives), err)
	}
	if err := b.Delete(t.Context(), box("sb")); err != nil {
		t.Fatal(err)
	}
	if v := b.made(b.m.Get(t.Context(), v.ID)); v.Reservation.Phase != reservation.Free {
		t.Errorf("home is %s", v.Reservation.Phase)
	}
}

// A node that comes back tells what it has lost.
func TestRecoverTellsWhatWasTakenOver(t *testing.T) {
	c := newCrew(t)
	dir := memoryDir(t)
	a, b := c.hostAt("a", dir, c.st), c.host("b")
	v := a.volume("home")
	if _, err := a.Create(t.Context(), box("sb"), []mount.Mount{{Path: "/home", Volume: v.ID}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.bench.devices[v.ID+"-sb"].WriteAt(sector('u'), 8192); err != nil {
		t.Fatal(err)
	}
	if err := a.repo.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.TakeOver(t.Context(), box("sb"), "node a does not answer"); err != nil {
		t.Fatal(err)
	}
	a = c.hostAt("a", dir, c.st)
	found, err := a.Recover(t.Context())
	if err != nil || len(found) != 1 || found[0].Err != nil {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, err := a.Resume(t.Context(), box("sb")); !errors.Is(err, mount.ErrConflict) {
		t.Errorf("resume: %v", err)
	}
	if drives, err := b.Drives(t.Context(), box("sb")); err != nil || len(drives) != 1 {
		t.Errorf("the sandbox has %d drives where it runs, %v", len(drives), err)
	}
}

// A node that is to go pauses what runs on it.
func TestDrainPausesWhatRuns(t *testing.T) {
	c := newCrew(t)
	a, b := c.host("a"), c.host("b")
	for _, name := range []string{"one", "two"} {
		v := a.volume(name)
		if _, err := a.Create(t.Context(), box(name), []mount.Mount{{Path: "/home", Volume: v.ID}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := a.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		if _, err := b.Resume(t.Context(), box(name)); err != nil {
			t.Error(err)
		}
	}
}
