package volume_test

import (
	"maps"
	"slices"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// spec is what the volumes ought to be: plain maps, and for each operation the state that it leads to. A call whose
// outcome was not learned leaves several states possible, until the store is looked at or a delayed request has
// landed.
type spec struct {
	volumes     map[string]volumeState
	checkpoints map[string]checkpointState
	pins        map[heldPin]bool // those that a sandbox relies on
	cuts        map[string]cutState

	// maybe holds what else a volume or checkpoint may turn out to be. The zero state stands for absent.
	maybe           map[string][]volumeState
	maybeCheckpoint map[string][]checkpointState
	// born holds volumes whose ids were not learned.
	born []volumeState
}

// cutState is what a device held when it was sealed.
type cutState struct {
	seq     int
	content content
	clean   bool
}

func newSpec() *spec {
	return &spec{volumes: map[string]volumeState{}, checkpoints: map[string]checkpointState{}, pins: map[heldPin]bool{},
		cuts: map[string]cutState{}, maybe: map[string][]volumeState{}, maybeCheckpoint: map[string][]checkpointState{}}
}

// doubt notes what a volume may have become.
func (s *spec) doubt(id string, after ...volumeState) { s.maybe[id] = append(s.maybe[id], after...) }

// adopt compares the spec with the store. What is there must be what is known, or one of the states that are possible.
func (s *spec) adopt(t failer, now seen) {
	t.Helper()
	for id := range unionOf(s.volumes, now.volumes) {
		want, got := s.volumes[id], now.volumes[id]
		switch {
		case got == want || slices.Contains(s.maybe[id], got) || (want == volumeState{} && s.adoptBorn(got)):
			putState(s.volumes, id, got)
		default:
			t.Fatalf("volume %s\nis   %+v\nwant %+v\nor   %+v", id, got, want, s.maybe[id])
		}
	}
	for id := range unionOf(s.checkpoints, now.checkpoints) {
		want, got := s.checkpoints[id], now.checkpoints[id]
		if got != want && !slices.Contains(s.maybeCheckpoint[id], got) {
			t.Fatalf("checkpoint %s\nis   %+v\nwant %+v\nor   %+v", id, got, want, s.maybeCheckpoint[id])
		}
		putState(s.checkpoints, id, got)
	}
	for p := range s.pins {
		if _, live := now.volumes[p.volume]; !live || !now.pins[p] {
			t.Fatalf("a reader relies on %+v: pin there %t, volume %+v", p, now.pins[p], now.volumes[p.volume])
		}
	}
	for id, r := range now.records {
		cut, known := s.cuts[r.Content.Cut]
		v, live := now.volumes[id]
		if live && known && (v.Content != cut.content || r.Content.Consistency == volume.Clean && !s.wasClean(v.Content)) {
			t.Fatalf("volume %s says that it holds cut %+v (%s) and holds %v", id, cut, r.Content.Consistency, v.Content)
		}
	}
}

// wasClean reports whether a disk with this content was ever at rest. Nothing written since a clean cut is as clean.
func (s *spec) wasClean(c content) bool {
	for _, cut := range s.cuts {
		if cut.clean && cut.content == c {
			return true
		}
	}
	return c == formatted
}

func (s *spec) adoptBorn(got volumeState) bool {
	got.Epoch = 0 // a creation that was carried on has another one
	i := slices.Index(s.born, got)
	if i >= 0 {
		s.born = slices.Delete(s.born, i, i+1)
	}
	return i >= 0
}

// certain forgets what was possible: no request is under way any more.
func (s *spec) certain() {
	clear(s.maybe)
	clear(s.maybeCheckpoint)
	s.born = nil
}

func unionOf[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func putState[V comparable](m map[string]V, id string, v V) {
	var absent V
	if m[id] = v; v == absent {
		delete(m, id)
	}
}

func (s *spec) named(tenant, name string) (id string, taken bool) {
	for id, v := range s.volumes {
		if v.Tenant == tenant && v.Name == name && name != "" {
			return id, true
		}
	}
	return "", false
}

// acquire says what an acquisition leads to, or which class of error refuses it. A grant whose answer was lost is this
// sandbox's already.
func (v volumeState) acquire(node, sandbox string) (volumeState, error) {
	ours := v.Owner == sandbox
	switch {
	case v == volumeState{}:
		return v, volume.ErrNotFound
	case v.Mode == volume.ReadOnly && v.Status == volume.StatusReady:
		return v, volume.ErrUnsupported
	case v.Mode == volume.ReadOnly:
		return v, volume.ErrNotReady
	case ours && v.Node == node && v.Phase == reservation.Preparing:
		return v, nil
	case v.Phase != reservation.Free && !(ours && v.Phase == reservation.Paused):
		return v, volume.ErrConflict
	}
	v.Owner, v.Node, v.Phase = sandbox, node, reservation.Preparing
	v.Epoch++
	return v, nil
}

// undone is the state after an acquisition that led to it from v was given up.
func (v volumeState) undone(acquired volumeState) volumeState {
	v.Epoch = acquired.Epoch
	if v.Phase == reservation.Paused {
		v.Node = acquired.Node
	}
	return v
}

func (v volumeState) holding(c content) volumeState { v.Content = c; return v }

func (v volumeState) paused(c content) volumeState {
	v.Content, v.Phase = c, reservation.Paused
	return v
}

func (v volumeState) released(c content) volumeState {
	v.Content, v.Phase, v.Owner, v.Node = c, reservation.Free, "", ""
	return v
}

func (v volumeState) mounted() volumeState {
	if v.Phase == reservation.Preparing {
		v.Phase = reservation.Mounted
	}
	return v
}
