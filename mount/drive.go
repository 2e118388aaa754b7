package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// Drive is a volume attached to a sandbox on this node.
type Drive struct {
	Path     string
	Volume   string
	Mode     volume.Mode
	ReadOnly bool
	// Device is the file or socket to hand to the VMM.
	Device string
	// Target is where the node has mounted the drive itself, or empty.
	Target string
	// Epoch is the number of the grant, 0 for an ro volume.
	Epoch uint64
}

// drive is the same while it is in the node's hands, at any stage of being attached or taken away.
type drive struct {
	SetDrive

	session  *volume.Session // exclusive
	reader   *volume.Reader  // ro
	exposure Exposure
	kernel   *KernelMount
	cut      *volume.Sealed // sealed for good and not yet published
	shot     *volume.Sealed // of the newest snapshot or fork
}

func (d *drive) wrap(err error) error {
	return fmt.Errorf("drive %s, volume %s: %w", d.Path, d.Volume, err)
}

func (d *drive) device() overlaybd.Device {
	if d.reader != nil {
		return d.reader.Device()
	}
	return d.session.Device()
}

// open acquires or pins the volume, unless that is done.
func (d *drive) open(ctx context.Context, sb *sandbox) (err error) {
	switch {
	case d.Mode == volume.ReadOnly && d.reader == nil:
		if d.reader, err = sb.m.Pin(ctx, d.Volume, sb.id.Sandbox); err != nil {
			return err
		}
		// The pin that the drive had while it was paused goes once the new one holds.
		if old := d.Pin; old != "" && old != d.reader.Pin() {
			if err := sb.m.RemovePin(ctx, d.Volume, sb.id.Sandbox, old); err != nil {
				return err
			}
		}
		d.Pin = d.reader.Pin()
	case d.Mode != volume.ReadOnly && d.session == nil:
		d.session, err = sb.m.Attach(ctx, d.Volume, sb.id.Sandbox)
	case d.cut != nil:
		// A pause is given up: the device takes writes again.
		err = d.session.Thaw(ctx)
		if errors.Is(err, ErrConflict) {
			// It had landed, without an answer: the volume is paused, and resumed like any other.
			d.session, err = sb.m.Attach(ctx, d.Volume, sb.id.Sandbox)
		}
		if err == nil {
			d.cut = nil
		}
	}
	return err
}

// exposeName is unique among the sandboxes of a node, and a file name.
func exposeName(id ID, volume string) string { return volume + "-" + id.Sandbox }

// show exposes the device, mounts it where the node is to do that, and records that it is in use.
func (d *drive) show(ctx context.Context, n *Node, sb *sandbox) (err error) {
	if d.exposure == nil {
		if d.exposure, err = n.exposer.Expose(ctx, exposeName(sb.id, d.Volume), d.device(), d.ReadOnly); err != nil {
			return err
		}
	}
	if n.root != nil && d.kernel == nil {
		o := n.kernel
		o.ReadOnly = d.ReadOnly
		d.kernel, err = MountKernel(ctx, d.exposure.Path(), filepath.Join(n.root(sb.id), d.Path), o)
		if err != nil {
			return err
		}
		// The volume may have grown since the file system was last mounted.
		if err := d.kernel.Grow(ctx); err != nil && !errors.Is(err, ErrUnsupported) {
			return err
		}
	}
	if d.session == nil {
		return nil
	}
	d.session.OnFlush(func(ctx context.Context) (func() error, error) { return n.rest(ctx, sb.id, []*drive{d}) })
	return d.session.Mounted(ctx)
}

// unmount ends what this node has mounted of the drive.
func (d *drive) unmount(ctx context.Context) error {
	if d.kernel == nil {
		return nil
	}
	err := d.kernel.Unmount(ctx)
	if err == nil {
		d.kernel = nil
	}
	return err
}

// hide takes the drive away from the sandbox: unmounted, and closed when nobody has it open any more.
func (d *drive) hide(ctx context.Context, n *Node) error {
	if err := d.unmount(ctx); err != nil || d.exposure == nil {
		return err
	}
	return d.closeExposure(ctx, n)
}

func (d *drive) closeExposure(ctx context.Context, n *Node) error {
	if d.exposure == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.closeWait)
	defer cancel()
	err := d.exposure.Close(ctx)
	if errors.Is(err, ErrDetached) {
		// The device is cut off from whoever had it open, which is what was wanted.
		n.log.Warn("drive taken away while open", "drive", d.Path, "volume", d.Volume, "error", err)
		err = nil
	}
	if err == nil {
		d.exposure = nil
	}
	return err
}

// giveBack returns a volume under which the sandbox never ran, to where it came from.
func (d *drive) giveBack(ctx context.Context, n *Node) error {
	if err := d.hide(ctx, n); err != nil {
		return err
	}
	if d.reader != nil {
		err := d.reader.Release(ctx)
		d.reader = nil
		return err
	}
	if d.session == nil {
		return nil
	}
	cut, err := d.session.Seal(ctx, volume.NewCut(volume.Crash, true))
	if err != nil {
		return err
	}
	if d.session.From() == reservation.Paused {
		err = d.session.Pause(ctx, cut)
	} else {
		err = d.session.Release(ctx, cut)
	}
	if err == nil {
		d.session = nil
	}
	return err
}

// suspend closes the drive and leaves the volume with the sandbox.
func (d *drive) suspend(ctx context.Context, n *Node) error {
	err := d.hide(ctx, n)
	if d.reader != nil {
		err = errors.Join(err, d.reader.Close())
	}
	if d.session != nil {
		err = errors.Join(err, d.session.Close())
	}
	d.reader, d.session = nil, nil
	return err
}

// set returns the drives as a set, in volume order.
func (sb *sandbox) set() []SetDrive {
	out := make([]SetDrive, len(sb.drives))
	for i, d := range sb.drives {
		out[i] = d.SetDrive
	}
	return out
}

// list returns the drives for the host, in path order.
func (sb *sandbox) list() []Drive { return listOf(sb.drives) }

func listOf(drives []*drive) []Drive {
	out := make([]Drive, 0, len(drives))
	for _, d := range drives {
		v := Drive{Path: d.Path, Volume: d.Volume, Mode: d.Mode, ReadOnly: d.ReadOnly}
		if d.exposure != nil {
			v.Device = d.exposure.Path()
		}
		if d.kernel != nil {
			v.Target = d.kernel.Target()
		}
		if d.session != nil {
			v.Epoch = d.session.Epoch()
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Drive) int { return cmp.Compare(a.Path, b.Path) })
	return out
}
