package record

import (
	"fmt"
	"slices"

	"github.com/sandvol/sandvol/volume/genlog"
)

// Compact is what a holder asks for when it has uploaded a run of the volume's layers merged into one.
type Compact struct {
	Epoch uint64
	Owner string
	// Run are the keys of the layers that were merged, bottom first. Exactly they are replaced, or nothing is.
	Run    []string
	Merged Layer // its Key is the declared key it was uploaded under
	// Last is the generation that the op is applied to: the last one whose stack holds the run.
	Last uint64
}

// Op returns the operation, to be appended only as the direct successor of generation Last. The run moves to former: a child
// that has copied it already may still refer to it.
func (c Compact) Op() genlog.Op[Volume] { return genlog.Op[Volume]{Name: "compact", Apply: c.apply} }

func (c Compact) apply(v Volume) (Volume, bool, error) {
	if v.Status != StatusReady {
		return v, false, statusError(&v, "compact")
	}
	if v.Stack.Contains(c.Merged.Key) {
		return v, false, nil
	}
	if err := v.Reservation.Check(c.Epoch, c.Owner); err != nil {
		return v, false, err
	}
	at := v.Stack.find(c.Run)
	if at < 0 {
		return v, false, fmt.Errorf("%w: volume %s: the layers that were merged are not in its stack as they were", ErrConflict, v.ID)
	}
	key := slices.Index(v.Keys, c.Merged.Key)
	if key < 0 {
		return v, false, fmt.Errorf("%w: upload key %s of volume %s is not declared", ErrConflict, c.Merged.Key, v.ID)
	}
	v.Keys = slices.Delete(slices.Clone(v.Keys), key, key+1)
	v.Former = slices.Clone(v.Former)
	for _, l := range v.Stack.Layers[at : at+len(c.Run)] {
		v.Former = append(v.Former, Former{Layer: l, First: 1, Last: c.Last})
	}
	v.Stack = v.Stack.Clone()
	v.Stack.Layers = slices.Replace(v.Stack.Layers, at, at+len(c.Run), c.Merged)
	return v, true, nil
}

// find returns where the keys stand in the stack, side by side and in this order, or -1.
func (s Stack) find(run []string) int {
	for at := 0; at+len(run) <= len(s.Layers) && len(run) > 0; at++ {
		same := slices.EqualFunc(s.Layers[at:at+len(run)], run, func(l Layer, key string) bool { return l.Key == key })
		if same {
			return at
		}
	}
	return -1
}

// Retire moves layers, by key, from former to leaving: no generation that needs them is kept any more. From then on nobody
// may copy them.
func Retire(keys []string) genlog.Op[Volume] {
	return genlog.Op[Volume]{Name: "retire", Apply: func(v Volume) (Volume, bool, error) {
		if v.Status == StatusDeleted {
			return v, false, nil // all of a tombstone is leaving
		}
		var former []Former
		leaving := slices.Clone(v.Leaving)
		for _, f := range v.Former {
			if slices.Contains(keys, f.Key) {
				leaving = append(leaving, Left{Layer: f.Layer})
			} else {
				former = append(former, f)
			}
		}
		changed := len(former) != len(v.Former)
		v.Former, v.Leaving = former, leaving
		return v, changed, nil
	}}
}
