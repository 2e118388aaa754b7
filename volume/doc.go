// Package volume is about disks that outlive the sandboxes they are mounted in: what a volume is, every rule about it, and
// the Manager that applies the rules for a tenant.
//
// A Repository is one node's handle on a Store that any number of nodes share. No node talks to another, and there is no
// coordinator: everything rests on the store's one promise, that of many who create a key one wins.
//
//	repo, err := volume.Open(ctx, volume.Config{Store: st, Dir: "/var/lib/sandvol", Node: "node-a"},
//		volume.WithFormatter(ext4.Formatter{}))
//	team, err := repo.Tenant("team")
//	v, err := team.Create(ctx, volume.CreateOptions{Name: "workspace"})
//
//	s, err := team.Attach(ctx, v.ID, "sandbox-1") // exclusive: the epoch rises
//	s.Device()                                    // reads and writes; hand it to an exposer
//	cut, err := s.Seal(ctx, volume.NewCut(volume.Clean, true))
//	err = s.Pause(ctx, cut)                       // published; Attach by sandbox-1 on any node goes on
//
// # Words
//
// A volume's content is a stack of immutable layers and a size. Fork, Snapshot and Restore copy that value: no data moves.
// A cut is one freeze of the devices of a sandbox; publishing it uploads what was sealed and then appends the new stack to
// the volume's record. A reservation is the right of one sandbox to write; it survives a pause. A pin is one sandbox's
// read-only mount of an ro volume. A checkpoint is a kept stack. A generation is one immutable state of a record.
//
// # What is promised
//
//   - At most one sandbox owns an exclusive volume. The epoch of its grant is checked in the very append that publishes its
//     data, so a node that was stalled, or that lost the volume, can waste its time but never another's data.
//   - A write that a device acknowledged survives the death of the process, a flush that it acknowledged survives a power
//     cut, and a publish that returned survives the loss of the node.
//   - A volume can be taken from a node that is lost, or thought to be: TakeOver is somebody's decision and never the
//     library's. What the former holder had written and not published is kept as a volume of its own.
//   - The order is always: layer durable, record durable, acknowledge, release, clean up. An operation that dies anywhere
//     in between is found in the node's journal or in the record, and is finished or undone; it never takes effect twice.
//   - The collector deletes a layer only when no record can refer to it any more, whatever the clocks say.
//   - Records that a newer version wrote are listed as unreadable and left alone; members that this version does not know
//     are written back unchanged.
//
// # What is not promised
//
// Clocks decide nothing that loses data, and so nothing is released because of its age: a sandbox that is gone without
// having been deleted keeps its volume. A fork or snapshot of a volume that somebody writes holds the last published
// generation, not the newest write, unless its holder flushes. Names are unique within a tenant, and a name that was freed
// may be taken by anybody.
package volume
