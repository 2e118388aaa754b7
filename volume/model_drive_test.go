package volume_test

import (
	"errors"
	"slices"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// The steps about one volume in the hands of a sandbox.

func (x *machine) sandbox() string { return []string{"sb1", "sb2", "sb3"}[x.index("sandbox", 3)] }

// drive draws a drive that is open on the node. The one of the step before is the likeliest: what went wrong with it
// is to meet what comes next.
func (x *machine) drive(node int) *openDrive {
	here := slices.DeleteFunc(slices.Clone(x.drives), func(d *openDrive) bool {
		return d.node != node || d.session == nil
	})
	if !slices.Contains(here, x.last) || x.index("other", 4) == 0 {
		x.last = pick(x, "drive", here)
	}
	return x.last
}

func (x *machine) gone(d *openDrive) {
	x.drives = slices.DeleteFunc(x.drives, func(o *openDrive) bool { return o == d })
}

func (x *machine) attach(p *process, node int) {
	id, v := x.volumeOf(volume.Exclusive)
	sandbox := x.sandbox()
	for _, d := range x.drives {
		if d.volume == id && d.node == node && d.sandbox == sandbox {
			x.skip("attached")
		}
	}
	after, refuse := v.acquire(nodeName(node), sandbox)
	s, err := p.team[v.Tenant].Attach(x.ctx, x.ref(id, v), sandbox)
	var classes []error
	if refuse != nil {
		classes = []error{refuse}
	}
	if !x.settled(p, "attach "+id+" to "+sandbox, err, classes...) {
		// A volume that was granted without an answer may be given back by this very call.
		x.spec.doubt(id, after, v.undone(after))
		if v.Owner == sandbox {
			x.spec.doubt(id, v.paused(v.Content), v.released(v.Content))
		}
		return
	}
	x.spec.volumes[id] = after
	x.drives = append(x.drives, &openDrive{node: node, tenant: v.Tenant, volume: id, sandbox: sandbox, epoch: after.Epoch,
		session: s, live: v.Content})
}

// undo settles an acquisition whose answer was lost.
func (x *machine) undo(p *process, node int) {
	id, v := x.anyVolume()
	sandbox := x.sandbox()
	for _, d := range x.drives {
		if d.volume == id && d.sandbox == sandbox && d.node == node {
			x.skip("attached")
		}
	}
	for _, r := range x.readers {
		if r.pin.volume == id && r.pin.sandbox == sandbox && r.node == node {
			x.skip("mounted")
		}
	}
	x.settled(p, "undo "+id+" of "+sandbox, p.team[v.Tenant].Undo(x.ctx, id, sandbox))
	if v.Owner == sandbox && v.Phase == reservation.Preparing {
		x.spec.doubt(id, v.paused(v.Content), v.released(v.Content))
	}
}

func (x *machine) free(p *process, _ int) {
	id, v := x.anyVolume()
	sandbox := x.sandbox()
	after := v
	var refuse []error
	switch {
	case v.Owner == sandbox && v.Phase == reservation.Paused:
		after = v.released(v.Content)
	case v.Owner == sandbox:
		refuse = []error{volume.ErrInUse}
	}
	err := p.team[v.Tenant].Free(x.ctx, x.ref(id, v), sandbox)
	if x.settled(p, "free "+id+" of "+sandbox, err, refuse...) {
		x.spec.volumes[id] = after
		return
	}
	x.spec.doubt(id, after)
}

func (x *machine) write(p *process, node int) {
	d := x.drive(node)
	dev, block := d.session.Device(), x.index("block", len(blockAt))
	x.seq++
	b := byte(x.seq%60 + 128)
	var err error
	if x.index("discard", 4) == 0 {
		b, err = 0, dev.Discard(blockAt[block], blockSize)
	} else {
		_, err = dev.WriteAt(blockOf(b), blockAt[block])
	}
	if d.final != nil {
		if !errors.Is(err, overlaybd.ErrFinal) {
			x.Fatalf("write after the final seal: %v", err)
		}
		return
	}
	if err == nil && x.index("flush", 2) == 0 {
		err = dev.Flush()
	}
	if d.session.Err() != nil {
		x.lostDrive(d) // it was told that the volume is somebody else's
		return
	}
	if err != nil {
		x.Fatalf("write to volume %s: %v", d.volume, err)
	}
	x.Logf("node %s: write %s block %d: %d", p.name, d.volume, block, b)
	d.live[block] = b
}

func (x *machine) mounted(p *process, node int) {
	d := x.drive(node)
	if x.fenced(d) {
		x.onFenced(p, d)
		return
	}
	if d.leaving != "" {
		x.skip("leaving")
	}
	v := x.spec.volumes[d.volume]
	if x.settled(p, "mounted "+d.volume, d.session.Mounted(x.ctx)) {
		x.spec.volumes[d.volume] = v.mounted()
		return
	}
	x.spec.doubt(d.volume, v.mounted())
}

// cut seals the drive.
func (x *machine) cut(d *openDrive, final bool) *openCut {
	consistency := volume.Crash
	if final || x.index("clean", 2) == 0 {
		consistency = volume.Clean
	}
	x.Logf("seal %s %t %v", d.volume, final, d.live)
	sealed, err := d.session.Seal(x.ctx, volume.NewCut(consistency, final))
	if err != nil {
		x.Fatalf("seal volume %s: %v", d.volume, err)
	}
	x.seq++
	c := &openCut{sealed, cutState{x.seq, d.live, consistency == volume.Clean}}
	x.spec.cuts[sealed.ID()] = c.cutState
	return c
}

// publish publishes a fresh cut, or one that was kept: perhaps after a later one was published.
func (x *machine) publish(p *process, node int) {
	d := x.drive(node)
	if x.fenced(d) {
		x.onFenced(p, d)
		return
	}
	if d.leaving != "" {
		x.skip("leaving")
	}
	var c *openCut
	if len(d.cuts) > 0 && x.index("kept", 2) == 0 {
		c = pick(x, "cut", d.cuts)
	} else {
		c = x.cut(d, false)
		d.cuts = append(d.cuts, c)
		if x.index("keep", 4) == 0 {
			return
		}
	}
	v := x.spec.volumes[d.volume]
	after := v
	last := x.spec.cuts[x.now.records[d.volume].Content.Cut]
	x.Logf("publish %s cut %+v of %d, last published %d", d.volume, c.cutState, len(d.cuts), last.seq)
	if c.seq > last.seq {
		after = v.holding(c.content)
	}
	if !x.settled(p, "publish "+d.volume, d.session.Publish(x.ctx, c.sealed)) {
		x.spec.doubt(d.volume, after)
		return
	}
	x.spec.volumes[d.volume] = after
	if x.index("copy", 2) == 0 {
		x.copyCut(p, d, c, c.seq <= last.seq)
	}
}

// copyCut makes a checkpoint of a published cut.
func (x *machine) copyCut(p *process, d *openDrive, c *openCut, superseded bool) {
	id := x.checkpointID(d.volume)
	k, err := d.session.Checkpoint(x.ctx, c.sealed, volume.SnapshotOptions{ID: id})
	if superseded && errors.Is(err, volume.ErrNotReady) {
		return
	}
	size := x.spec.volumes[d.volume].Size
	x.kept(p, id, checkpointState{Tenant: d.tenant, Volume: d.volume, Size: size, Content: c.content}, err)
	if err == nil && k.Cut != c.sealed.ID() {
		x.Fatalf("checkpoint of cut %s says that it is of %s", c.sealed.ID(), k.Cut)
	}
}

// leave pauses or releases; what was tried before is tried again.
func (x *machine) leave(p *process, node int) {
	d := x.drive(node)
	if x.fenced(d) {
		x.onFenced(p, d)
		return
	}
	if d.final == nil {
		d.final = x.cut(d, true)
	}
	if x.index("only seal", 6) == 0 {
		return
	}
	kind := []string{"pause", "release"}[x.index("kind", 2)]
	if d.leaving != "" {
		kind = d.leaving
	}
	v := x.spec.volumes[d.volume]
	call, after := d.session.Pause, v.paused(d.live)
	if kind == "release" {
		call, after = d.session.Release, v.released(d.live)
	}
	err := call(x.ctx, d.final.sealed)
	if x.parted(d) {
		// An earlier try took effect, and others have had the volume since: success, or word that it is gone.
		if err != nil && !errors.Is(err, volume.ErrFenced) && !p.wasHit() {
			x.Fatalf("%s again, after it took effect: %v", kind, err)
		}
		if err == nil || errors.Is(err, volume.ErrFenced) {
			x.gone(d)
		}
		return
	}
	if x.settled(p, kind+" "+d.volume, err) {
		x.spec.volumes[d.volume] = after
		x.gone(d)
		return
	}
	d.leaving = kind
	x.spec.doubt(d.volume, after)
}

// parted reports whether a drive that was to be paused or released is not the sandbox's open one any more.
func (x *machine) parted(d *openDrive) bool {
	v := x.spec.volumes[d.volume]
	return d.leaving != "" && (v.Epoch != d.epoch || v.Owner != d.sandbox || v.Phase == reservation.Paused)
}

// thaw gives a pause up. One that took effect after all cannot be given up.
func (x *machine) thaw(p *process, node int) {
	d := x.drive(node)
	if x.fenced(d) {
		x.onFenced(p, d)
		return
	}
	if d.final == nil {
		x.skip("not sealed")
	}
	parted := x.parted(d)
	err := d.session.Thaw(x.ctx)
	x.Logf("node %s: thaw %s: %v", p.name, d.volume, err)
	switch {
	case parted && err == nil:
		x.Fatalf("volume %s was given back and its drive thawed", d.volume)
	case parted:
		x.gone(d)
		if cerr := d.session.Close(); cerr != nil {
			x.Fatalf("close: %v", cerr)
		}
	case err == nil:
		d.final, d.leaving = nil, ""
	case d.leaving == "" || !p.wasHit():
		x.Fatalf("thaw volume %s: %v", d.volume, err)
	}
}
