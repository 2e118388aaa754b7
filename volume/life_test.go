package volume_test

import (
	"testing"

	"github.com/sandvol/sandvol/volume"
)

// the main job, at block level.
func TestVolumeOutlivesItsSandboxAndMovesToAnotherNode(t *testing.T) {
	outlivesItsSandbox(t, newWorld(t))
}

func outlivesItsSandbox(t *testing.T, w *world) {
	t.Helper()
	a, b := w.node("a"), w.node("b")
	v := create(t, a, volume.CreateOptions{Name: "data"})

	s := attach(t, a, "data", "sb1")
	if got := at(t, s.Device(), 4096); got != 'F' {
		t.Fatalf("an empty volume has no file system: %q", got)
	}
	ok(t, s.Mounted(t.Context()))
	write(t, s.Device(), 8192, 'x')
	pause(t, s)

	_, err := b.Attach(t.Context(), "data", "sb2")
	wantErr(t, err, volume.ErrConflict)

	s = attach(t, b, v.ID, "sb1")
	if got := at(t, s.Device(), 8192); got != 'x' {
		t.Fatalf("written before the pause, read after the resume: %q", got)
	}
	write(t, s.Device(), 12288, 'y')
	release(t, s)

	s = attach(t, a, "data", "sb3")
	if x, y := at(t, s.Device(), 8192), at(t, s.Device(), 12288); x != 'x' || y != 'y' {
		t.Fatalf("the next sandbox reads %q %q", x, y)
	}
	release(t, s)
	ok(t, b.Delete(t.Context(), "data"))
	_, err = a.Get(t.Context(), "data")
	wantErr(t, err, volume.ErrNotFound)
}
