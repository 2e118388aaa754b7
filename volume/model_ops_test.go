package volume_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// The steps about volumes as a whole. Each calls one method and tells the spec what may have come of it.

var volumeNames = []string{"", "", "alpha", "beta"}

// anyVolume draws a live volume, most recent ones included.
func (x *machine) anyVolume() (string, volumeState) {
	id := pick(x, "volume", sortedKeys(x.spec.volumes))
	return id, x.spec.volumes[id]
}

// volumeOf draws one that most likely has the mode.
func (x *machine) volumeOf(mode volume.Mode) (string, volumeState) {
	id, v := x.anyVolume()
	for tries := x.index("tries", 8); tries > 0 && v.Mode != mode; tries-- {
		id, v = x.anyVolume()
	}
	return id, v
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// ref is how the volume is called: by id, or by name if it has one.
func (x *machine) ref(id string, v volumeState) string {
	if v.Name != "" && x.index("by name", 2) == 0 {
		return v.Name
	}
	return id
}

func (x *machine) tenant() string {
	if x.index("tenant", 5) == 0 {
		return modelTenants[1]
	}
	return modelTenants[0]
}

func (x *machine) create(p *process, _ int) {
	if len(x.spec.volumes) > 6 {
		x.skip("enough volumes")
	}
	tenant, name := x.tenant(), volumeNames[x.index("name", len(volumeNames))]
	o := volume.CreateOptions{Name: name, Size: volume.MinSize}
	if name != "" && x.index("token", 2) == 0 {
		o.Token = "token-" + name
	}
	after := volumeState{Tenant: tenant, Name: name, Mode: volume.Exclusive, Status: volume.StatusReady,
		Phase: reservation.Free, Size: o.Size, Content: formatted}
	x.made(p, "create "+name, o, after)
}

// made sends a Create and compares.
func (x *machine) made(p *process, what string, o volume.CreateOptions, after volumeState, refuse ...error) {
	id, taken := x.spec.named(after.Tenant, after.Name)
	same := taken && o.Token != "" && x.now.records[id].Token == o.Token && len(refuse) == 0
	if taken && !same {
		refuse = append(refuse, volume.ErrExists)
	}
	source := x.sourceRecord(after.Tenant, o.Source)
	v, err := p.team[after.Tenant].Create(x.ctx, o)
	if !taken && x.carried(after.Tenant, after.Name) && errors.Is(err, volume.ErrExists) {
		return // a creation or rename that is not complete has the name
	}
	if !x.settled(p, what, err, refuse...) {
		x.spec.born = append(x.spec.born, after)
		return
	}
	if same {
		if v.ID != id {
			x.Fatalf("repeated with token %s: volume %s, want %s", o.Token, v.ID, id)
		}
		return
	}
	after.Epoch = v.Reservation.Epoch // above 0 if an earlier try with this token was carried on
	x.spec.volumes[v.ID] = after
	if o.Flush {
		return
	}
	if now := x.sourceRecord(after.Tenant, o.Source); now != source {
		x.Fatalf("I6: the source's record changed:\nbefore %s\nafter  %s", source, now)
	}
}

// carried reports whether a record that is not deleted carries the name.
func (x *machine) carried(tenant, name string) bool {
	for _, r := range x.now.records {
		if r.Tenant == tenant && name != "" && r.Carries(name) {
			return true
		}
	}
	return false
}

// fork copies a volume, sometimes as ro, sometimes larger.
func (x *machine) fork(p *process, node int) {
	id, src := x.anyVolume()
	o := volume.CreateOptions{Name: volumeNames[x.index("name", len(volumeNames))], Mode: volume.Exclusive,
		Source: volume.FromVolume(x.ref(id, src))}
	if x.index("larger", 4) == 0 {
		o.Size = src.Size + 16*volume.MiB
	}
	if x.index("ro", 3) == 0 {
		o.Mode = volume.ReadOnly
	}
	var refuse []error
	if o.Mode == volume.Exclusive && x.index("flush", 3) == 0 {
		o.Flush = true
		refuse = x.expectFlush(node, id, &src)
	}
	after := volumeState{Tenant: src.Tenant, Name: o.Name, Mode: o.Mode, Status: volume.StatusReady,
		Phase: reservation.Free, Size: max(src.Size, o.Size), Content: src.Content}
	if o.Mode == volume.ReadOnly && x.now.records[id].Content.Consistency != volume.Clean {
		refuse = append(refuse, volume.ErrNotReady)
	}
	if o.Flush {
		// The flush is done before anything else can be refused, the name excepted.
		x.spec.doubt(id, src)
	}
	x.made(p, "fork "+id, o, after, refuse...)
}

// expectFlush makes src what it is after its holder has published its newest writes, or returns what refuses that.
func (x *machine) expectFlush(node int, id string, src *volumeState) []error {
	if src.Phase == reservation.Free || src.Phase == reservation.Paused || src.Mode != volume.Exclusive {
		return nil
	}
	for _, d := range x.drives {
		if d.volume == id && d.node == node && d.session != nil && d.epoch == src.Epoch { // not one that was fenced
			src.Content = d.live
			return nil
		}
	}
	return []error{volume.ErrNotReady}
}

func (x *machine) restore(p *process, _ int) {
	id := pick(x, "checkpoint", sortedKeys(x.spec.checkpoints))
	c := x.spec.checkpoints[id]
	o := volume.CreateOptions{Name: volumeNames[x.index("name", len(volumeNames))], Source: volume.FromCheckpoint(id)}
	x.made(p, "restore "+id, o, volumeState{Tenant: c.Tenant, Name: o.Name, Mode: volume.Exclusive,
		Status: volume.StatusReady, Phase: reservation.Free, Size: c.Size, Content: c.Content})
}

func (x *machine) snapshot(p *process, _ int) {
	id, v := x.anyVolume()
	o := volume.SnapshotOptions{ID: x.checkpointID(id)}
	_, err := p.team[v.Tenant].Snapshot(x.ctx, x.ref(id, v), o)
	x.kept(p, o.ID, checkpointState{Tenant: v.Tenant, Volume: id, Size: v.Size, Content: v.Content}, err)
}

func (x *machine) kept(p *process, id string, c checkpointState, err error, refuse ...error) {
	if x.settled(p, "checkpoint "+id, err, refuse...) {
		x.spec.checkpoints[id] = c
		return
	}
	x.spec.maybeCheckpoint[id] = append(x.spec.maybeCheckpoint[id], c)
}

func (x *machine) deleteCheckpoint(p *process, _ int) {
	id := pick(x, "checkpoint", sortedKeys(x.spec.checkpoints))
	err := p.team[x.spec.checkpoints[id].Tenant].DeleteCheckpoint(x.ctx, id)
	if x.settled(p, "delete checkpoint "+id, err) {
		delete(x.spec.checkpoints, id)
		return
	}
	x.spec.maybeCheckpoint[id] = append(x.spec.maybeCheckpoint[id], checkpointState{})
}

func (x *machine) delete(p *process, _ int) {
	id, v := x.anyVolume()
	var refuse []error
	if v.Phase != reservation.Free || x.pinned(id) {
		refuse = []error{volume.ErrInUse}
	}
	err := p.team[v.Tenant].Delete(x.ctx, x.ref(id, v))
	if x.settled(p, "delete "+id, err, refuse...) {
		delete(x.spec.volumes, id)
		return
	}
	deleting, ready := v, v
	ready.Status = volume.StatusReady
	x.spec.doubt(id, ready)
	if p.wasHit() {
		if v.Mode == volume.ReadOnly {
			deleting.Status = volume.StatusDeleting
		}
		x.spec.doubt(id, volumeState{}, deleting)
	}
}

func (x *machine) pinned(id string) bool {
	for p := range x.now.pins {
		if p.volume == id {
			return true
		}
	}
	return false
}

// update renames, grows or relabels.
func (x *machine) update(p *process, _ int) {
	id, v := x.anyVolume()
	var u volume.Update
	var refuse []error
	after := v
	if v.Status != volume.StatusReady {
		refuse = append(refuse, volume.ErrNotReady)
	}
	switch x.index("what", 3) {
	case 0:
		after.Name = volumeNames[2+x.index("name", len(volumeNames)-2)]
		u.Name = &after.Name
		if other, taken := x.spec.named(v.Tenant, after.Name); taken && other != id {
			refuse = append(refuse, volume.ErrExists)
		}
		if after.Name == v.Name {
			refuse = nil
		}
	case 1:
		after.Size = v.Size + volume.MiB
		u.Size = &after.Size
		if v.Mode == volume.ReadOnly {
			refuse = append(refuse, volume.ErrUnsupported)
		} else if v.Phase != reservation.Free {
			refuse = append(refuse, volume.ErrInUse)
		}
	case 2:
		x.seq++
		after.Label = string(rune('a' + x.seq%26))
		u.Labels = &map[string]string{"n": after.Label}
		refuse = nil
	}
	_, err := p.team[v.Tenant].Update(x.ctx, x.ref(id, v), u)
	if u.Name != nil && errors.Is(err, volume.ErrExists) && x.carried(v.Tenant, after.Name) {
		return
	}
	if x.settled(p, "update "+id, err, refuse...) {
		x.spec.volumes[id] = after
		return
	}
	x.spec.doubt(id, after)
}

func (x *machine) pin(p *process, node int) {
	id, v := x.volumeOf(volume.ReadOnly)
	sandbox := x.sandbox()
	for _, r := range x.readers {
		if r.pin.volume == id && r.pin.sandbox == sandbox && r.node == node {
			x.skip("mounted")
		}
	}
	var refuse []error
	if v.Mode != volume.ReadOnly {
		refuse = []error{volume.ErrUnsupported}
	}
	r, err := p.team[v.Tenant].Pin(x.ctx, x.ref(id, v), sandbox)
	ready := v
	ready.Status = volume.StatusReady
	if !x.settled(p, "pin "+id, err, refuse...) {
		x.spec.doubt(id, ready)
		return
	}
	x.spec.volumes[id] = ready
	o := &openReader{node: node, reader: r, pin: heldPin{id, sandbox, r.Pin()}}
	x.readers = append(x.readers, o)
	x.spec.pins[o.pin] = true
}

// unpin ends a mount, or ends it and leaves the pin, or removes a pin that was left.
func (x *machine) unpin(p *process, node int) {
	if len(x.left) > 0 && x.index("left", 2) == 0 {
		l := pick(x, "pin", x.left)
		x.left = slices.DeleteFunc(x.left, func(o heldPin) bool { return o == l })
		delete(x.spec.pins, l)
		m := p.team[x.spec.volumes[l.volume].Tenant]
		x.settled(p, "remove pin of "+l.volume, m.RemovePin(x.ctx, l.volume, l.sandbox, l.nonce))
		return
	}
	here := slices.Clone(x.readers)
	here = slices.DeleteFunc(here, func(r *openReader) bool { return r.node != node })
	r := pick(x, "reader", here)
	x.readers = slices.DeleteFunc(x.readers, func(o *openReader) bool { return o == r })
	if x.index("leave", 3) == 0 {
		x.settled(p, "leave "+r.pin.volume, r.reader.Leave())
		x.left = append(x.left, r.pin)
		return
	}
	delete(x.spec.pins, r.pin)
	x.settled(p, "unpin "+r.pin.volume, r.reader.Release(x.ctx))
}

func (x *machine) collect(p *process, _ int) {
	age := time.Duration(0)
	o := volume.CollectOptions{MinAge: &age, TakeOver: true, DropUnusedBases: x.index("drop", 2) == 0}
	r, err := p.repo.Collect(x.ctx, o)
	x.settled(p, "collect", err)
	x.Logf("collected %+v", r)
}

// checkpointID is not random, so that a run that is repeated picks the same checkpoints.
func (x *machine) checkpointID(id string) string {
	x.seq++
	return fmt.Sprintf("%s_%06d", id, x.seq)
}

// sourceRecord returns the newest generation of a source volume as it is stored.
func (x *machine) sourceRecord(tenant string, s volume.Source) string {
	for id, v := range x.spec.volumes {
		if v.Tenant != tenant || s != volume.FromVolume(id) && (v.Name == "" || s != volume.FromVolume(v.Name)) {
			continue
		}
		newest := x.look.list("v1/volumes/" + v.Tenant + "/" + id + "/")[0]
		body, err := x.c.raw.Get(x.ctx, newest.Key)
		if err != nil {
			x.Fatalf("read %s: %v", newest.Key, err)
		}
		return string(body)
	}
	return ""
}
