package volume_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// a volume that is paused and resumed for ever keeps a short stack, what others copied of the long one stays,
// and what nobody needs goes.
func TestALongStackIsShortenedAtAttach(t *testing.T) {
	w := newWorld(t)
	w.opts = append(w.opts, volume.WithCompaction(6, 3))
	a, b := w.node("a"), w.node("b")
	v := create(t, a, volume.CreateOptions{Name: "v"})
	var fork volume.Volume
	for i := range 20 {
		m := []*volume.Manager{a, b}[i%2]
		s := attach(t, m, v.ID, "sb")
		write(t, s.Device(), int64(8192+i*512), byte('a'+i))
		write(t, s.Device(), 65536, byte('a'+i))
		pause(t, s)
		now := must[volume.Volume](t)(m.Get(t.Context(), v.ID))
		if n := len(now.Stack.Layers); n > 7 {
			t.Fatalf("%d layers after %d pauses", n, i+1)
		}
		if i == 5 {
			fork = must[volume.Volume](t)(a.Fork(t.Context(), v.ID, volume.ForkOptions{}))
		}
	}
	for range 4 {
		collectNow(t, a)
	}
	s := attach(t, a, v.ID, "sb")
	for i := range 20 {
		if got := at(t, s.Device(), int64(8192+i*512)); got != byte('a'+i) {
			t.Fatalf("sector of pause %d reads %q", i, got)
		}
	}
	if got := at(t, s.Device(), 65536); got != 'a'+19 {
		t.Errorf("the sector written each time reads %q", got)
	}
	release(t, s)
	s = attach(t, b, fork.ID, "child")
	if x, y := at(t, s.Device(), 8192+5*512), at(t, s.Device(), 65536); x != 'f' || y != 'f' {
		t.Errorf("the child reads %q %q", x, y)
	}
	release(t, s)
	for range 4 { // the child's stack was shortened too
		collectNow(t, a)
	}
	live := map[string]bool{}
	for _, ref := range []string{v.ID, fork.ID} {
		for _, l := range must[volume.Volume](t)(a.Get(t.Context(), ref)).Stack.Layers {
			live[l.Key] = true
		}
	}
	for e, err := range w.st.List(t.Context(), "v1/layers/", "", 0) {
		ok(t, err)
		if !live[e.Key] {
			t.Errorf("layer %s is left, and nobody refers to it", e.Key)
		}
	}
}

func collectNow(t *testing.T, m *volume.Manager) volume.CollectReport {
	t.Helper()
	return must[volume.CollectReport](t)(m.Repository().Collect(t.Context(), volume.CollectOptions{MinAge: new(0 * volume.DefaultMinAge)}))
}

// the node dies at every request of a compaction. The volume holds what it held, and goes on.
func TestACompactionMayDieAnywhere(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied=%t", applied), func(t *testing.T) {
			t.Parallel() // most of the time a store that is down is asked again
			for n := 1; dieCompacting(t, n, applied); n++ {
			}
		})
	}
}

// dieCompacting reports whether the attach makes as many as n requests that change something.
func dieCompacting(t *testing.T, n int, applied bool) (more bool) {
	w := newWorld(t)
	a := w.node("a")
	v := create(t, a, volume.CreateOptions{})
	for i := range 6 {
		s := attach(t, a, v.ID, "sb")
		write(t, s.Device(), int64(8192+i*512), byte('a'+i))
		pause(t, s)
	}
	stopped := storetest.StopAt(w.st, n, applied)
	st, dir := w.st, t.TempDir()
	w.opts = append(w.opts, volume.WithCompaction(3, 2))
	dying, err := volume.Open(t.Context(), volume.Config{Store: stopped, Dir: dir, Node: "b"}, w.opts...)
	ok(t, err)
	s, answer := w.tenant(dying, "team").Attach(t.Context(), v.ID, "sb")
	more = stopped.Mutations() >= n
	if answer == nil {
		write(t, s.Device(), 65536, 'z')
		ok(t, s.Device().Flush())
	}
	ok(t, dying.Close())

	w.st = st
	b := w.nodeAt("b", dir)
	where := fmt.Sprintf("request %d, applied %t, answer %v", n, applied, answer)
	s = attach(t, b, v.ID, "sb")
	for i := range 6 {
		if got := at(t, s.Device(), int64(8192+i*512)); got != byte('a'+i) {
			t.Fatalf("%s: sector %d reads %q", where, i, got)
		}
	}
	if answer == nil && at(t, s.Device(), 65536) != 'z' {
		t.Fatalf("%s: a flushed write is gone", where)
	}
	pause(t, s)
	for range 4 {
		collectNow(t, b)
	}
	s = attach(t, b, v.ID, "sb")
	if got := at(t, s.Device(), 8192); got != 'a' {
		t.Fatalf("%s: after the collector: %q", where, got)
	}
	release(t, s)
	return more
}

func TestCompactionLimitsAreChecked(t *testing.T) {
	w := newWorld(t)
	for _, bad := range [][2]int{{0, 0}, {3, 4}, {241, 16}, {16, 0}} {
		_, err := volume.Open(t.Context(), volume.Config{Store: w.st, Dir: t.TempDir(), Node: "a"}, volume.WithCompaction(bad[0], bad[1]))
		if !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("compaction above %d to %d: %v", bad[0], bad[1], err)
		}
	}
}
