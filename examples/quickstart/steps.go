package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// The sandboxes of the demonstration, and where each of them sees its volume.
const (
	first    = "sandbox-1"
	second   = "sandbox-2"
	fork     = "sandbox-1-fork"
	restored = "sandbox-3"
	path     = "/workspace"
)

func id(sandbox string) mount.ID { return mount.ID{Tenant: tenant, Sandbox: sandbox} }

// deed does one step. Its note is for people.
type deed func(context.Context) (note string, err error)

// action is one step before it is done.
type action struct {
	name string
	run  deed
	// cost: the step is in the table at the end.
	cost bool
}

// script is the demonstration from beginning to end.
func (d *demo) script() []action {
	fill, prove := d.content.fill, d.content.prove
	return []action{
		{"create a 64 GiB volume", d.create("workspace"), true},
		{"create another one", d.create("scratch"), true},
		{"mount it in sandbox-1 on A", d.a.start(first, "workspace"), true},
		{"copy the tree into it", d.a.within(first, fill), true},
		{"mount it in sandbox-2 on B: refused", d.conflict, false},
		{"pause sandbox-1 on A", d.pause, true},
		{"resume sandbox-1 on B", d.b.resume(first), true},
		{"prove every byte", d.b.within(first, prove), false},

		{"fork sandbox-1", d.fork, true},
		{"resume the fork on A", d.a.resume(fork), false},
		{"change the fork", d.spoil(d.a, fork), false},
		{"prove sandbox-1 unchanged", d.b.within(first, prove), false},

		{"snapshot sandbox-1", d.snapshot, true},
		{"damage sandbox-1", d.spoil(d.b, first), false},
		{"restore the snapshot to sandbox-3 on A", d.restore, true},
		{"prove every byte", d.a.within(restored, prove), false},

		{"make an ro volume of the snapshot", d.share, true},
		{"mount it in reader-1 on A", d.a.start("reader-1", "dataset"), false},
		{"mount it in reader-2 on A", d.a.start("reader-2", "dataset"), false},
		{"mount it in reader-3 on B", d.b.start("reader-3", "dataset"), false},
		{"write to it in each of them: refused", d.refuse, false},
		{"prove every byte in reader-3", d.b.within("reader-3", prove), false},

		{"delete sandboxes, snapshot and volumes", d.deleteAll, false},
		{"run the collector twice", d.collect, false},
		{"stop both nodes, look for what is left", d.nothingLeft, false},
	}
}

// steps runs the script, printing how long each step took, what it moved and what it has to say.
func (d *demo) steps(ctx context.Context) error {
	for _, a := range d.script() {
		if err := errors.Join(ctx.Err(), d.print.failed); err != nil {
			return err
		}
		d.print.start(a.name)
		stored, fetched, began := d.store.in.Load(), d.store.out.Load(), time.Now()
		note, err := a.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		d.print.done(step{
			Name: a.name, Seconds: time.Since(began).Seconds(), Note: note, cost: a.cost,
			Stored: d.store.in.Load() - stored, Fetched: d.store.out.Load() - fetched,
		})
	}
	return nil
}

// create makes an empty volume. The first one of its size formats a hidden volume, all of them are copies of that.
func (d *demo) create(name string) deed {
	return func(ctx context.Context) (string, error) {
		v, err := d.a.volumes.Create(ctx, volume.CreateOptions{Name: name, Size: 64 * volume.GiB})
		return name + ", volume " + v.ID, err
	}
}

// start creates a sandbox with a volume.
func (n *node) start(sandbox, ref string) deed {
	return func(ctx context.Context) (string, error) {
		drives, err := n.Create(ctx, id(sandbox), []mount.Mount{{Path: path, Volume: ref}})
		return n.place(drives), err
	}
}

// place says where a sandbox sees its drive.
func (n *node) place(drives []mount.Drive) string {
	if len(drives) == 0 || drives[0].Target == "" {
		return ""
	}
	return "at ..." + strings.TrimPrefix(drives[0].Target, n.work)
}

// within does something in a sandbox: with its drive.
func (n *node) within(sandbox string, f func(context.Context, mount.Drive) (string, error)) deed {
	return func(ctx context.Context) (string, error) {
		drives, err := n.Drives(ctx, id(sandbox))
		if err != nil {
			return "", err
		}
		return f(ctx, drives[0])
	}
}

// conflict is what a second sandbox is told that wants the same volume.
func (d *demo) conflict(ctx context.Context) (string, error) {
	_, err := d.b.start(second, "workspace")(ctx)
	var held *reservation.ConflictError
	if !errors.As(err, &held) || held.Owner != first {
		return "", fmt.Errorf("want a conflict that names %s, got %w", first, noError(err))
	}
	return held.Error(), nil
}

// noError makes a missing error one that can be wrapped.
func noError(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

func (d *demo) pause(ctx context.Context) (string, error) {
	return "flushed, sealed, published; the volume stays its own", d.a.Pause(ctx, id(first))
}

func (n *node) resume(sandbox string) deed {
	return func(ctx context.Context) (string, error) {
		drives, err := n.Resume(ctx, id(sandbox))
		return n.place(drives), err
	}
}

func (d *demo) fork(ctx context.Context) (string, error) {
	_, err := d.b.Fork(ctx, id(first), []string{fork})
	return "a copy-on-write child; sandbox-1 goes on", err
}

// spoil changes a sandbox's content, and makes sure that the proof would find it.
func (d *demo) spoil(n *node, sandbox string) deed {
	return n.within(sandbox, func(ctx context.Context, drive mount.Drive) (string, error) {
		note, err := d.content.spoil(ctx, drive)
		if err != nil {
			return "", err
		}
		var differs *differenceError
		if _, err := d.content.prove(ctx, drive); !errors.As(err, &differs) {
			return "", fmt.Errorf("the proof should find the change, got %w", noError(err))
		}
		return note + "; the proof finds it", nil
	})
}

func (d *demo) snapshot(ctx context.Context) (string, error) {
	id, set, err := d.b.Snapshot(ctx, id(first))
	if err != nil {
		return "", err
	}
	d.kept, d.set = id, set
	return "checkpoint " + set.Drives[0].Checkpoint, nil
}

func (d *demo) restore(ctx context.Context) (string, error) {
	drives, err := d.a.CreateFrom(ctx, id(restored), d.set, nil)
	return d.a.place(drives), err
}

func (d *demo) share(ctx context.Context) (string, error) {
	v, err := d.a.volumes.Create(ctx, volume.CreateOptions{
		Name: "dataset", Mode: volume.ReadOnly, Source: volume.FromCheckpoint(d.set.Drives[0].Checkpoint),
	})
	return "dataset, volume " + v.ID, err
}

// readers are the sandboxes that share a volume, and their nodes.
func (d *demo) readers() map[string]*node {
	return map[string]*node{"reader-1": d.a, "reader-2": d.a, "reader-3": d.b}
}

func (d *demo) refuse(ctx context.Context) (note string, err error) {
	for sandbox, n := range d.readers() {
		note, err = n.within(sandbox, func(_ context.Context, drive mount.Drive) (string, error) {
			return d.content.refused(drive)
		})(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: %w", sandbox, err)
		}
	}
	return note, nil
}
