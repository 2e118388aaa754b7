package soak

import (
	"fmt"
	"maps"
	"slices"
)

// Content is the number in each sector of a volume; 0 was never written.
type Content [Sectors]uint64

// account is what is known of one volume.
type account struct {
	live      Content // every write that was acknowledged
	published Content // what the repository has at least
	held      bool
}

// Ledger knows what acknowledged operations have made. The zero Ledger is of an empty repository.
type Ledger struct {
	volumes map[string]*account
	// doubt is the operation that was begun and not acknowledged: it may have taken effect or not.
	doubt *Event
	// Last is the greatest number that was to be written.
	Last uint64
}

// Note takes an event in, in the order in which they were said.
func (l *Ledger) Note(e Event) {
	l.Last = max(l.Last, e.Number)
	if !e.Done {
		l.doubt = &e
		return
	}
	l.doubt = nil
	a := l.volumes[e.Volume]
	switch e.Op {
	case Create:
		l.add(e.Made, Content{})
	case Fork:
		l.add(e.Made, a.published)
	case Attach:
		a.held = true
	case Write:
		a.live[e.Sector] = e.Number
	case Publish:
		a.published = a.live
	case Pause, Release:
		a.published, a.held = a.live, false
	case Delete:
		delete(l.volumes, e.Volume)
	}
}

func (l *Ledger) add(id string, c Content) {
	if l.volumes == nil {
		l.volumes = map[string]*account{}
	}
	l.volumes[id] = &account{live: c, published: c}
}

// Found is a volume as it was found after the process had died and its node had recovered.
type Found struct {
	Held      bool
	Live      Content // as the sandbox reads it if it is held, else as published
	Published Content // as the repository has it
}

// Settle compares what was found with what must be there, and goes on from what was found. What differs is an error of
// the volumes, not of the ledger.
func (l *Ledger) Settle(found map[string]Found) (wrong []error) {
	doubt := Event{}
	if l.doubt != nil {
		doubt = *l.doubt
	}
	for id, a := range l.volumes {
		f, there := found[id]
		if !there {
			if doubt.Op != Delete || doubt.Volume != id {
				wrong = append(wrong, fmt.Errorf("volume %s is lost", id))
			}
			continue
		}
		mine := Event{}
		if doubt.Volume == id {
			mine = doubt
		}
		wrong = append(wrong, a.settle(id, mine, f)...)
	}
	wrong = append(wrong, l.strangers(doubt, found)...)
	l.volumes, l.doubt = map[string]*account{}, nil
	for id, f := range found {
		l.volumes[id] = &account{live: f.Live, published: f.Published, held: f.Held}
	}
	return wrong
}

// settle checks one volume, of which the operation may or may not have taken effect.
func (a *account) settle(id string, doubt Event, f Found) (wrong []error) {
	want := a.live
	if doubt.Op == Write && f.Live[doubt.Sector] == doubt.Number {
		want[doubt.Sector] = doubt.Number
	}
	if f.Live != want {
		wrong = append(wrong, fmt.Errorf("volume %s after %+v: acknowledged %v, found %v", id, doubt, want, f.Live))
	}
	ends := doubt.Op == Pause || doubt.Op == Release
	if f.Published != a.published && !((ends || doubt.Op == Publish) && f.Published == a.live) {
		wrong = append(wrong, fmt.Errorf("volume %s after %+v: published %v, found %v", id, doubt, a.published, f.Published))
	}
	if f.Held != a.held && !(ends && !f.Held) && doubt.Op != Attach {
		wrong = append(wrong, fmt.Errorf("volume %s after %+v: held %t, found %t", id, doubt, a.held, f.Held))
	}
	return wrong
}

// strangers checks volumes that were not acknowledged: one at most, and only what was being made.
func (l *Ledger) strangers(doubt Event, found map[string]Found) (wrong []error) {
	var ids []string
	for id := range found {
		if l.volumes[id] == nil {
			ids = append(ids, id)
		}
	}
	var want Content
	if doubt.Op == Fork {
		want = l.volumes[doubt.Volume].published
	}
	made := doubt.Op == Create || doubt.Op == Fork
	for i, id := range ids {
		if i > 0 || !made || found[id].Published != want {
			wrong = append(wrong, fmt.Errorf("volume %s after %+v: nobody has made it: %v", id, doubt, found[id]))
		}
	}
	return wrong
}

// Volumes returns the ids of the volumes that there are.
func (l *Ledger) Volumes() []string { return slices.Sorted(maps.Keys(l.volumes)) }
