package volume_test

import (
	"slices"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// The steps about takeovers: one node takes a volume from another that lives, hangs or is dead, and what the other had not
// published is kept.

// grantOf names one grant.
type grantOf struct {
	volume string
	epoch  uint64
}

// debt is what a fenced drive held when it stopped taking writes. It has to be found again: in the stack that was taken over,
// or in a salvage.
type debt struct {
	tenant string
	size   int64
	live   content
}

// takeOver takes a volume, mostly naming the right epoch.
func (x *machine) takeOver(p *process, node int) {
	id, v := x.volumeOf(volume.Exclusive)
	sandbox := x.sandbox()
	known := slices.ContainsFunc(x.drives, func(d *openDrive) bool {
		return d.volume == id && d.node == node && d.sandbox == sandbox && d.epoch == v.Epoch
	})
	if v.Owner == sandbox && v.Node == nodeName(node) && !known {
		x.skip("an earlier try is in doubt, or the drive is paused here")
	}
	epoch := max(v.Epoch, 1)
	var refuse []error
	switch {
	case v.Mode == volume.ReadOnly && v.Status != volume.StatusReady:
		refuse = []error{volume.ErrNotReady}
	case v.Phase == reservation.Free:
		refuse = []error{volume.ErrConflict}
	case x.index("wrong epoch", 5) == 0:
		epoch++
		refuse = []error{volume.ErrConflict}
	}
	after := v
	after.Owner, after.Node, after.Phase, after.Epoch = sandbox, nodeName(node), reservation.Preparing, v.Epoch+1
	if len(refuse) == 0 {
		x.taken[grantOf{id, v.Epoch}] = v.Content
	}
	s, err := p.team[v.Tenant].TakeOver(x.ctx, x.ref(id, v),
		volume.TakeOverOptions{Epoch: epoch, Sandbox: sandbox, Reason: "the model wants it"})
	if x.settled(p, "take over "+id+" for "+sandbox, err, refuse...) {
		x.spec.volumes[id] = after
		x.drives = append(x.drives, &openDrive{node: node, tenant: v.Tenant, volume: id, sandbox: sandbox, epoch: after.Epoch,
			session: s, live: v.Content})
	} else if len(refuse) == 0 {
		x.spec.doubt(id, after, after.paused(v.Content))
	}
	x.noteLost()
}

// fenced reports whether the volume of a drive went to somebody else without the drive's having given it back.
func (x *machine) fenced(d *openDrive) bool {
	_, taken := x.taken[grantOf{d.volume, d.epoch}]
	return taken && x.now.records[d.volume].Reservation.Epoch > d.epoch
}

// lostDrive ends a drive that takes no writes any more.
func (x *machine) lostDrive(d *openDrive) {
	x.gone(d)
	x.debts[grantOf{d.volume, d.epoch}] = debt{d.tenant, x.now.records[d.volume].Stack.VirtualSize, d.live}
	if d.session != nil && x.index("close", 2) == 0 {
		if err := d.session.Close(); err != nil {
			x.Fatalf("close a lost drive of volume %s: %v", d.volume, err)
		}
	}
}

// noteLost moves the drives that have learned that they are lost.
func (x *machine) noteLost() {
	for _, d := range slices.Clone(x.drives) {
		if d.session != nil && d.session.Err() != nil {
			x.lostDrive(d)
		}
	}
}

// onFenced does something with a drive whose volume is gone: nothing of it may reach the volume, and it learns of it at its
// next append at the latest.
func (x *machine) onFenced(p *process, d *openDrive) {
	c := d.final
	if c == nil {
		final := x.index("final", 2) == 0
		if c = x.cut(d, final); final {
			d.final = c
		}
	}
	err := d.session.Publish(x.ctx, c.sealed)
	if err == nil {
		err = d.session.Mounted(x.ctx)
	}
	if err == nil && c.sealed.Empty() {
		return // nothing was to be said: it was mounted before
	}
	if !x.settled(p, "go on with "+d.volume+" after a takeover", err, volume.ErrFenced) && d.session.Err() == nil && !p.wasHit() {
		x.Fatalf("volume %s was taken over from epoch %d, its drive was refused with %v and is not lost", d.volume, d.epoch, err)
	}
	if d.session.Err() != nil {
		x.lostDrive(d)
	}
}

// learn has a node read its notices and keep what it has lost.
func (x *machine) learn(p *process, _ int) {
	x.settled(p, "heartbeat", p.repo.Beat(x.ctx))
	x.noteLost()
	for _, s := range p.repo.Salvage(x.ctx) {
		x.settled(p, "salvage of "+s.Volume, s.Err)
	}
}

// adoptSalvages compares the salvages that have come to be with what is owed.
func (x *machine) adoptSalvages() {
	for id, r := range x.now.records {
		from := grantOf{r.Origin.Volume, r.Origin.Fenced}
		if from.epoch == 0 || r.Status != record.StatusReady || x.salvages[id] {
			continue
		}
		want, owed := x.debts[from]
		if !owed { // its drive is not known to be lost yet
			for _, d := range x.drives {
				if d.volume == from.volume && d.epoch == from.epoch {
					want, owed = debt{d.tenant, r.Stack.VirtualSize, d.live}, true
				}
			}
		}
		state := volumeState{Tenant: want.tenant, Mode: volume.Exclusive, Status: volume.StatusReady, Phase: reservation.Free,
			Size: r.Stack.VirtualSize, Content: want.live}
		if got := x.now.volumes[id]; !owed || got.Content != state.Content || got.Tenant != state.Tenant {
			x.Fatalf("I13: salvage %s of %+v\nis   %+v\nwant %+v, owed %t", id, from, got, state, owed)
		}
		x.salvages[id] = true
		x.rescued[from] = want.live
		x.spec.volumes[id] = state
	}
}

// settleDebts has every node keep what it has, and checks that all of it is there. I13, I7.
func (x *machine) settleDebts() {
	for i, p := range x.nodes {
		if err := p.repo.Beat(x.ctx); err != nil {
			x.Fatalf("heartbeat of node %s: %v", nodeName(i), err)
		}
		x.noteLost()
		for _, s := range p.repo.Salvage(x.ctx) {
			if s.Err != nil {
				x.Fatalf("I7: what was fenced cannot be kept: %v", s.Err)
			}
		}
	}
	x.check()
	for from, d := range x.debts {
		kept, ok := x.rescued[from]
		if !(ok && kept == d.live) && x.taken[from] != d.live {
			x.Fatalf("I13: %+v had %v, taken over was %v, kept is %v (%t)", from, d.live, x.taken[from], kept, ok)
		}
	}
	for id, r := range x.now.records {
		if len(r.Fenced) > 0 {
			x.Fatalf("volume %s still keeps %+v", id, r.Fenced)
		}
	}
}

// unpinAll is an operator's word that a sandbox is gone.
func (x *machine) unpinAll(p *process, _ int) {
	var from []heldPin
	for q := range x.now.pins {
		if !slices.ContainsFunc(x.readers, func(r *openReader) bool { return r.pin.volume == q.volume && r.pin.sandbox == q.sandbox }) {
			from = append(from, q)
		}
	}
	slices.SortFunc(from, func(a, b heldPin) int {
		return slices.Compare([]string{a.volume, a.sandbox, a.nonce}, []string{b.volume, b.sandbox, b.nonce})
	})
	q := pick(x, "pin", from)
	gone := func(o heldPin) bool { return o.volume == q.volume && o.sandbox == q.sandbox }
	for o := range x.spec.pins {
		if gone(o) {
			delete(x.spec.pins, o)
		}
	}
	x.left = slices.DeleteFunc(x.left, gone)
	v, live := x.spec.volumes[q.volume]
	if !live {
		x.skip("a pin of a volume that is gone")
	}
	_, err := p.team[v.Tenant].Unpin(x.ctx, q.volume, q.sandbox, "the model wants it")
	x.settled(p, "unpin "+q.volume, err)
}
