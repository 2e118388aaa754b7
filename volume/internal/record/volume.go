package record

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/reservation"
)

// Mode says who may mount a volume. It is fixed for life.
type Mode string

// Exclusive: one sandbox, reading and writing. ReadOnly: any number of sandboxes, reading.
const (
	Exclusive Mode = "exclusive"
	ReadOnly  Mode = "ro"
)

// Volume is the one record of a volume.
type Volume struct {
	Head `json:",embed"`

	Mode        Mode              `json:"mode"`
	Renaming    *Renaming         `json:"renaming,omitzero"`
	Reservation reservation.State `json:"reservation,omitzero"`
	// Keys are the declared upload keys: one for every upload under way or next.
	Keys []string `json:"keys,omitempty"`
	// Former are layers that a kept generation still needs; they may be copied.
	Former []Former `json:"former,omitempty"`
	// Leaving are layers that nobody may copy any more; the collector removes the entry.
	Leaving []Left `json:"leaving,omitempty"`
	// Fenced are stacks that a takeover took away from their holder, kept until the holder's writes are settled.
	Fenced []Fenced `json:"fenced,omitempty"`
	// Token and Request are the client token of the create call and the digest of what it asked for.
	Token   string `json:"token,omitzero"`
	Request string `json:"request,omitzero"`

	Extra jsontext.Value `json:",embed"`
}

// Renaming is a rename under way: the claim on the new name carries the same claim id.
type Renaming struct {
	Name  string         `json:"name"`
	Claim string         `json:"claim"`
	Extra jsontext.Value `json:",embed"`
}

// Former is a layer that left the stack, with the first and last generation that held it.
type Former struct {
	Layer `json:",embed"`

	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// Left is a layer on its way out. Fenced is the epoch of the fenced stack that it was part of, 0 if it comes from former. An
// entry is known by key and epoch together: the same layer can leave several times, and a collector that has read it once
// must not remove it a second time.
type Left struct {
	Layer `json:",embed"`

	Fenced uint64 `json:"fenced,omitzero"`
}

// same reports whether both are one entry.
func (l Left) same(o Left) bool { return l.Key == o.Key && l.Fenced == o.Fenced }

// Fenced is the stack that a fenced holder worked on, and who that was.
type Fenced struct {
	Epoch uint64         `json:"epoch"`
	Stack Stack          `json:"stack"`
	Grant string         `json:"grant,omitzero"` // its id
	Owner string         `json:"owner,omitzero"`
	Node  string         `json:"node,omitzero"`
	At    time.Time      `json:"at,omitzero"` // of the takeover
	Extra jsontext.Value `json:",embed"`
}

// LayerKey is the store key of one upload.
func LayerKey(volume string, epoch uint64, nonce string) string {
	return fmt.Sprintf("v1/layers/%s/%d-%s", volume, epoch, nonce)
}

func layerKeys(volume string, epoch uint64, nonces []string) []string {
	keys := make([]string, len(nonces))
	for i, n := range nonces {
		keys[i] = LayerKey(volume, epoch, n)
	}
	return keys
}

// References yields the store key of every layer that the volume refers to, in any of the five ways. A layer may be
// yielded more than once.
func (v Volume) References() iter.Seq[string] {
	return func(yield func(string) bool) {
		_ = v.eachLayer(yield) && v.eachKey(yield)
	}
}

func (v Volume) eachLayer(yield func(string) bool) bool {
	stacks := [][]Layer{v.Stack.Layers}
	for _, l := range v.Leaving {
		stacks = append(stacks, []Layer{l.Layer})
	}
	for _, f := range v.Former {
		stacks = append(stacks, []Layer{f.Layer})
	}
	for _, f := range v.Fenced {
		stacks = append(stacks, f.Stack.Layers)
	}
	for _, s := range stacks {
		for _, l := range s {
			if !yield(l.Key) {
				return false
			}
		}
	}
	return true
}

func (v Volume) eachKey(yield func(string) bool) bool {
	for _, k := range v.Keys {
		if !yield(k) {
			return false
		}
	}
	return true
}

// MayCopy reports whether a child may refer to the stack: every layer is in the volume's stack or former. Leaving does not
// count, nor does a volume that is not ready or deleting.
func (v Volume) MayCopy(s Stack) bool {
	if v.Status != StatusReady && v.Status != StatusDeleting {
		return false
	}
	for _, l := range s.Layers {
		former := slices.ContainsFunc(v.Former, func(f Former) bool { return f.Key == l.Key })
		if !former && !v.Stack.Contains(l.Key) {
			return false
		}
	}
	return true
}

// Carries reports whether the volume holds the name, now or by a rename under way. A failed volume still holds it.
func (v Volume) Carries(name string) bool {
	if v.Status == StatusDeleted {
		return false
	}
	return v.Name == name || (v.Renaming != nil && v.Renaming.Name == name)
}

// holders returns who holds an exclusive volume: nobody or one.
func (v Volume) holders() []Holder {
	if v.Reservation.Phase == reservation.Free {
		return nil
	}
	return []Holder{{Sandbox: v.Reservation.Grant.Owner, Node: v.Reservation.Grant.Node}}
}
