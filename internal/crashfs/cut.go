package crashfs

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// afterCut kills the disk and returns what is found on it when the power is back. Seed 0 keeps what was synced and
// nothing else. Any other seed chooses, of what was not synced, a part that a disk may have written all the same.
func (d *disk) afterCut(seed int64) *disk {
	d.dead = true
	var rng *rand.Rand
	if seed != 0 {
		rng = rand.New(rand.NewPCG(uint64(seed), 1))
		d.survive(rng)
	}
	next := &disk{nodes: map[uint64]*node{}, lastID: d.lastID, ops: d.ops}
	next.root = d.revive(next, d.root, rng)
	next.root.parent = next.root
	next.root.links = 1
	return next
}

// erase kills the disk and returns an empty one.
func (d *disk) erase() *disk {
	d.dead = true
	next := newDisk()
	next.ops = d.ops
	return next
}

// survive applies some of the pending changes to the durable directories.
func (d *disk) survive(rng *rand.Rand) {
	all := d.allPending()
	// None, all, those up to a moment, or any: the second and the third are what a journal does.
	var keep func(i int) bool
	switch moment := rng.IntN(len(all) + 1); rng.IntN(4) {
	case 0:
		return
	case 1:
		keep = func(int) bool { return true }
	case 2:
		keep = func(i int) bool { return i < moment }
	case 3:
		keep = func(int) bool { return rng.IntN(2) == 0 }
	}
	type place struct {
		dir  *node
		name string
	}
	missing := map[place]bool{}
	for i, c := range all {
		// What a name stood for is only replaced by its successor: without a change, later ones of the same name are
		// not there either.
		ok := keep(i) && !slices.ContainsFunc(c.sets, func(b binding) bool { return missing[place{b.dir, b.name}] })
		for _, b := range c.sets {
			if ok {
				set(b.dir.durable, b.name, b.to)
			} else {
				missing[place{b.dir, b.name}] = true
			}
		}
	}
}

// allPending returns the pending changes of all directories, each once, oldest first.
func (d *disk) allPending() []*change {
	var all []*change
	for _, n := range d.nodes {
		all = append(all, n.pending...)
	}
	slices.SortFunc(all, func(a, b *change) int { return cmp.Compare(a.seq, b.seq) })
	return slices.Compact(all)
}

// revive copies the durable state of a node, and of what is below it, into another disk. A file with several names is
// copied once.
func (d *disk) revive(next *disk, n *node, rng *rand.Rand) *node {
	if c := next.nodes[n.id]; c != nil {
		return c
	}
	c := &node{id: n.id, mode: n.onDisk, onDisk: n.onDisk, uid: n.uid, gid: n.gid, modified: n.modified}
	if rng != nil && rng.IntN(2) == 0 {
		c.mode, c.onDisk = n.mode, n.mode
	}
	next.nodes[c.id] = c
	if !n.isDir() {
		c.data = n.data.afterCut(rng)
		return c
	}
	c.entries = map[string]*node{}
	c.durable = map[string]*node{}
	// In the order of names, so that equal seeds give equal disks.
	for _, name := range sortedNames(n.durable) {
		child := d.revive(next, n.durable[name], rng)
		child.links++
		child.parent = c
		c.entries[name] = child
		c.durable[name] = child
	}
	return c
}
