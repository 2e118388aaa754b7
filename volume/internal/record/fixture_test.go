package record

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
)

var t0 = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func layer(key string) Layer {
	return Layer{Layer: overlaybd.Layer{Key: key, Digest: "sha256:" + key, Size: 7, UUID: "uuid-" + key}}
}

func stack(keys ...string) Stack {
	s := Stack{VirtualSize: 1 << 30, Layers: []Layer{}}
	for _, k := range keys {
		s.Layers = append(s.Layers, layer(k))
	}
	return s
}

func key(epoch uint64, nonce string) string { return LayerKey("v", epoch, nonce) }

// held is a ready volume with one layer that sb1 on node n1 holds under epoch 3, with the declared key k.
func held(phase reservation.Phase) Volume {
	return Volume{
		Head: Head{ID: "v", Tenant: "team", Name: "data", Status: StatusReady, CreatedAt: t0, Stack: stack("base"),
			Origin: Origin{Volume: "src", Generation: 4}, Content: Content{Cut: "c0", Consistency: Crash}},
		Mode: Exclusive, Keys: []string{key(3, "k")},
		Reservation: reservation.State{Epoch: 3, Phase: phase, Since: t0,
			Grant: reservation.Grant{ID: "g3", Owner: "sb1", Node: "n1", At: t0}},
	}
}

func uploading(epoch uint64, keys ...string) Volume {
	v := held(reservation.Free)
	v.Status, v.Reservation, v.Keys = StatusUploading, reservation.State{Epoch: epoch, Phase: reservation.Free}, nil
	v.Stack = stack(keys...)
	return v
}

func with(v Volume, change func(*Volume)) Volume {
	change(&v)
	return v
}

// apply applies an op, and checks what holds of every op: it is pure, it changes nothing when it is refused, and on its own
// effect it reports no change.
func apply[S any](t *testing.T, op genlog.Op[S], s S) (S, bool, error) {
	t.Helper()
	before := clone(t, s)
	next, changed, err := op.Apply(s)
	if diff := cmp.Diff(before, s); diff != "" {
		t.Fatalf("%s changed its argument: %s", op.Name, diff)
	}
	if changed && err != nil {
		t.Fatalf("%s: changed and refused: %v", op.Name, err)
	}
	if changed && op.Name != "touch" {
		again, twice, err := op.Apply(next)
		if diff := cmp.Diff(next, again); twice || err != nil || diff != "" {
			t.Fatalf("%s on its own effect: changed %v, %v, %s", op.Name, twice, err, diff)
		}
	}
	if !changed {
		if diff := cmp.Diff(before, next); diff != "" {
			t.Fatalf("%s reports no change and returns another state: %s", op.Name, diff)
		}
	}
	return next, changed, err
}

// verdict puts what an op did into a word.
func verdict(changed bool, err error) string {
	for name, class := range map[string]error{"fenced": ErrFenced, "conflict": ErrConflict, "not-ready": ErrNotReady,
		"not-found": ErrNotFound, "in-use": ErrInUse, "unsupported": ErrUnsupported, "invalid": ErrInvalid} {
		if errors.Is(err, class) {
			return name
		}
	}
	switch {
	case err != nil:
		return err.Error()
	case changed:
		return "changed"
	}
	return "same"
}
