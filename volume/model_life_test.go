package volume_test

import (
	"slices"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// The steps about the life of a node: its death, its recovery, and what is left in the end.

// crash ends a node's process. What its devices acknowledged is on its disk.
func (x *machine) crash(i int) {
	p := x.nodes[i]
	if p == nil {
		return
	}
	x.nodes[i] = nil
	for _, r := range x.readers {
		if r.node == i {
			_ = r.reader.Close() // a killed process closes without asking
		}
	}
	x.readers = slices.DeleteFunc(x.readers, func(r *openReader) bool { return r.node == i })
	for _, d := range x.drives {
		if d.node == i {
			d.session, d.cuts, d.final = nil, nil, nil
		}
	}
	if err := p.kill(); err != nil {
		x.Fatalf("close node %s: %v", p.name, err)
	}
}

// restart kills a node that is up, starts it again and lets it recover, perhaps several times.
func (x *machine) restart(i int) {
	x.crash(i)
	p := x.c.mustStart(nodeName(i))
	x.nodes[i] = p
	p.line.arm(x.trouble())
	found, err := p.recoverAll(x.ctx)
	x.mayHaveRecovered(i)
	if err != nil && !p.wasHit() {
		x.Fatalf("recover node %s: %v", p.name, err)
	}
	p.line.arm(trouble{})
	if p.line.isDead() {
		x.check()
		x.crash(i)
		return
	}
	if err != nil {
		x.check()
		x.mayHaveRecovered(i)
		if found, err = p.recoverAll(x.ctx); err != nil {
			x.Fatalf("recover node %s again: %v", p.name, err)
		}
	}
	x.check()
	x.reconcile(i, found)
}

// mayHaveRecovered tells the spec what a recovery may have done: sealed cuts were paused, acquisitions undone, pins
// removed.
func (x *machine) mayHaveRecovered(i int) {
	for _, d := range x.drives {
		if v, ok := x.spec.volumes[d.volume]; ok && d.node == i && v.Owner == d.sandbox && v.Epoch == d.epoch {
			x.spec.doubt(d.volume, v.paused(d.live))
		}
	}
	for id, v := range x.spec.volumes {
		if v.Phase == reservation.Preparing && v.Node == nodeName(i) {
			x.spec.doubt(id, v.paused(v.Content), v.released(v.Content))
		}
	}
	held := x.journalled(i)
	for p := range x.spec.pins {
		if held[p.nonce] || !slices.Contains(x.left, p) && !x.mountedElsewhere(i, p) {
			delete(x.spec.pins, p)
		}
	}
}

func (x *machine) mountedElsewhere(i int, p heldPin) bool {
	return slices.ContainsFunc(x.readers, func(r *openReader) bool { return r.pin == p && r.node != i })
}

// journalled returns the pins that a node's journal still has.
func (x *machine) journalled(i int) map[string]bool {
	out := map[string]bool{}
	pending, _ := x.nodes[i].repo.Journal()
	for _, e := range pending {
		out[e.Pin] = e.Pin != ""
	}
	return out
}

// reconcile compares the drives that a recovery opened with those that were open when the node died.
func (x *machine) reconcile(i int, found []recoveredDrive) {
	for _, d := range slices.Clone(x.drives) {
		if d.node != i {
			continue
		}
		if x.fenced(d) {
			x.lostDrive(d)
			continue
		}
		j := slices.IndexFunc(found, func(r recoveredDrive) bool {
			return r.session != nil && r.volume == d.volume && r.sandbox == d.sandbox
		})
		if j >= 0 {
			d.session = found[j].session
			found[j].session = nil
			continue
		}
		v := x.spec.volumes[d.volume]
		if v.Epoch == d.epoch && v.Owner == d.sandbox && v.Phase != reservation.Paused {
			x.Fatalf("node %s lost its drive of volume %s: %+v", nodeName(i), d.volume, v)
		}
		if v.Epoch == d.epoch && v.Content != d.live {
			x.Fatalf("volume %s was given back with %v, and its drive held %v", d.volume, v.Content, d.live)
		}
		x.gone(d)
	}
	// Granted, and the process died before it could say so.
	for _, r := range found {
		if r.session != nil {
			v := x.spec.volumes[r.volume]
			x.drives = append(x.drives, &openDrive{node: i, tenant: r.tenant, volume: r.volume, sandbox: r.sandbox,
				epoch: v.Epoch, session: r.session, live: v.Content})
		}
	}
}

// drain ends everything and checks that nothing is left behind.
func (x *machine) drain() {
	x.c.land(x.ctx)
	x.check()
	x.spec.certain()
	for i := range x.nodes {
		x.crash(i)
		x.nodes[i] = x.c.mustStart(nodeName(i))
		found, err := x.nodes[i].recoverAll(x.ctx)
		if err != nil {
			x.Fatalf("recover node %s: %v", nodeName(i), err)
		}
		x.mayHaveRecovered(i)
		x.check()
		x.reconcile(i, found)
	}
	x.settleDebts()
	for _, d := range x.drives {
		c := x.cut(d, true)
		if err := d.session.Release(x.ctx, c.sealed); err != nil {
			x.Fatalf("release volume %s: %v", d.volume, err)
		}
		x.spec.volumes[d.volume] = x.spec.volumes[d.volume].released(d.live)
	}
	x.drives = nil
	x.check()
	x.deleteAll(x.nodes[0])
	x.c.advance(25 * time.Hour)
	age := time.Duration(0)
	all := volume.CollectOptions{MinAge: &age, TakeOver: true, DropUnusedBases: true}
	for range 3 {
		if _, err := x.nodes[1].repo.Collect(x.ctx, all); err != nil {
			x.Fatalf("collect: %v", err)
		}
	}
	x.now = x.look.look(x.ctx)
	if len(x.look.layers) > 0 {
		x.Fatalf("everything is deleted and collected, and %v is left", sortedKeys(x.look.layers))
	}
}

func (x *machine) deleteAll(p *process) {
	// A pin whose put landed after it was given up is an operator's to remove.
	for q := range x.now.pins {
		if err := x.c.raw.Delete(x.ctx, "v1/pins/"+q.volume+"/"+q.sandbox+"/"+q.nonce); err != nil {
			x.Fatalf("remove pin: %v", err)
		}
	}
	clear(x.spec.pins)
	for id, v := range x.spec.volumes {
		m := p.team[v.Tenant]
		if v.Phase == reservation.Paused {
			if err := m.Free(x.ctx, id, v.Owner); err != nil {
				x.Fatalf("free %s: %v", id, err)
			}
		}
		if err := m.Delete(x.ctx, id); err != nil {
			x.Fatalf("delete %s: %v", id, err)
		}
	}
	for id, c := range x.spec.checkpoints {
		if err := p.team[c.Tenant].DeleteCheckpoint(x.ctx, id); err != nil {
			x.Fatalf("delete checkpoint %s: %v", id, err)
		}
	}
	x.spec.volumes, x.spec.checkpoints = map[string]volumeState{}, map[string]checkpointState{}
	x.check()
}
