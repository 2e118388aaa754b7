package mount_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// what the host recorded before the claim counts: an extension keeps the sandbox, and nothing of it is touched.
func TestAnExtensionBeforeTheClaimKeepsTheSandbox(t *testing.T) {
	h := newCrew(t).host("a")
	v := h.volume("one")
	h.drives(h.Create(t.Context(), box("s"), []mount.Mount{{Path: "/1", Volume: v.ID}}))
	broken := errors.New("the host's records are not to be read")
	for _, answer := range []error{nil, broken} {
		claimed, err := h.Expire(t.Context(), box("s"), func(context.Context) (bool, error) { return false, answer })
		if claimed || !errors.Is(err, answer) {
			t.Errorf("expire answers %t, %v; want false, %v", claimed, err, answer)
		}
	}
	h.write("s", v.ID, 4096, 'x')
	if p := h.phase("s"); p != mount.Running {
		t.Errorf("phase %s", p)
	}
	if claimed, err := h.Expire(t.Context(), box("other"), nil); claimed || !errors.Is(err, mount.ErrNotFound) {
		t.Errorf("expiry of nothing: %t, %v", claimed, err)
	}
	h.ok(h.Delete(t.Context(), box("s")))
	h.empty()
}

// claim, then flush, then delete. While the flush fails the sandbox stays claimed with its reservation
// and its data, and nobody else gets at it.
func TestAnExpiryThatCannotFlushKeepsEverything(t *testing.T) {
	c := newCrew(t)
	sick := &outage{Store: c.st}
	a, b := c.hostAt("a", t.TempDir(), sick), c.host("b")
	v := a.volume("one")
	a.drives(a.Create(t.Context(), box("s"), []mount.Mount{{Path: "/1", Volume: v.ID}}))
	a.write("s", v.ID, 4096, 'x')

	sick.blobs.Store(true)
	claimed, err := a.Expire(t.Context(), box("s"), nil)
	if !claimed || err == nil {
		t.Fatalf("expire with the store down: %t, %v", claimed, err)
	}
	if p := a.phase("s"); p != mount.Expiring {
		t.Errorf("the sandbox is %s", p)
	}
	if r := a.made(a.m.Get(t.Context(), v.ID)).Reservation; r.Phase != reservation.Expiring || r.Grant.Owner != "s" {
		t.Errorf("the reservation is %+v", r)
	}
	for what, op := range map[string]func() error{
		"resume": func() error { _, err := a.Resume(t.Context(), box("s")); return err },
		"create": func() error {
			_, err := a.Create(t.Context(), box("s"), []mount.Mount{{Path: "/1", Volume: v.ID}})
			return err
		},
		"pause":         func() error { return a.Pause(t.Context(), box("s")) },
		"fork":          func() error { _, err := a.Fork(t.Context(), box("s"), []string{"c"}); return err },
		"snapshot":      func() error { _, _, err := a.Snapshot(t.Context(), box("s")); return err },
		"resume on b":   func() error { _, err := b.Resume(t.Context(), box("s")); return err },
		"expire on b":   func() error { _, err := b.Expire(t.Context(), box("s"), nil); return err },
		"delete on b":   func() error { return b.Delete(t.Context(), box("s")) },
		"attach by two": func() error { _, err := b.m.Attach(t.Context(), v.ID, "two"); return err },
	} {
		if err := op(); !errors.Is(err, mount.ErrConflict) && !errors.Is(err, mount.ErrExists) {
			t.Errorf("%s of a claimed sandbox: %v", what, err)
		}
	}
	sick.blobs.Store(false)
	claimed, err = a.Expire(t.Context(), box("s"), nil)
	if a.ok(err); !claimed {
		t.Error("carried on without a claim")
	}
	b.drives(b.Create(t.Context(), box("next"), []mount.Mount{{Path: "/1", Volume: v.ID}}))
	if got := b.read("next", v.ID, 4096); got != 'x' {
		t.Errorf("after the expiry the volume holds %q", got)
	}
	b.ok(b.Delete(t.Context(), box("next")))
	b.empty()
}

// reapers on two nodes and a user who resumes on a third race for a paused sandbox. It is either running, with all its drives, or
// gone; never both, and never something in between.
func TestReapersAndAResumeRaceForAPausedSandbox(t *testing.T) {
	c := newCrew(t)
	a, b, other := c.host("a"), c.host("b"), c.host("other")
	v := a.volume("one")
	want := []mount.Mount{{Path: "/1", Volume: v.ID}}
	var resumed, expired int
	for round := range 60 {
		a.drives(a.Create(t.Context(), box("s"), want))
		a.write("s", v.ID, 4096, 'x')
		a.ok(a.Pause(t.Context(), box("s")))
		var runs []mount.Drive
		var race sync.WaitGroup
		for _, h := range []*host{a, other} {
			race.Go(func() {
				time.Sleep(time.Duration(round) * 500 * time.Microsecond) // the later, the more of them find it running
				_, err := h.Expire(t.Context(), box("s"), nil)
				if err != nil && !errors.Is(err, mount.ErrNotFound) && !errors.Is(err, mount.ErrConflict) &&
					!errors.Is(err, volume.ErrInUse) && !errors.Is(err, volume.ErrFenced) {
					t.Errorf("expire: %v", err)
				}
			})
		}
		race.Go(func() { runs, _ = b.Resume(t.Context(), box("s")) })
		race.Wait()
		switch p := a.phase("s"); {
		case runs != nil && p == mount.Running:
			resumed++
			if got := b.read("s", v.ID, 4096); got != 'x' {
				t.Fatalf("resumed with %q", got)
			}
			b.ok(b.Delete(t.Context(), box("s")))
		case runs == nil && p == mount.Deleted:
			expired++
		case runs == nil && p == mount.Expiring: // the resume held the volume just then, and has given it back
			_, err := a.Expire(t.Context(), box("s"), nil)
			a.ok(err)
			expired++
		default:
			t.Fatalf("resumed: %t, and the sandbox is %s", runs != nil, p)
		}
	}
	t.Logf("%d resumed, %d expired", resumed, expired)
	a.empty()
}
