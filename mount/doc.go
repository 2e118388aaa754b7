// Package mount is about the drives of a sandbox: how a volume's device becomes something that a sandbox can use, and
// how all drives of one sandbox live and die together.
//
// # Sandboxes
//
// A [Node] brings all drives of a sandbox to it, or none, and takes them away together. Its methods are the sandbox's life,
// by the id that the host gave it:
//
//	node := mount.NewNode(repo, exposer)
//	recovered, err := node.Recover(ctx)           // after a restart, before anything else
//	drives, err := node.Create(ctx, id, []mount.Mount{{Path: "/data", Volume: "dataset"}, {Path: "/work", Volume: "ws"}})
//	err = node.Pause(ctx, id)                     // published; the volumes stay the sandbox's own
//	drives, err = node.Resume(ctx, id)            // on this or any other node
//	children, err := node.Fork(ctx, id, []string{"child-1", "child-2"})
//	snapshotID, set, err := node.Snapshot(ctx, id)
//	err = node.Delete(ctx, id)                    // published, then freed; the volumes stay
//
// A drive set is the value that names a sandbox's drives. It is written before the first volume is acquired and changed
// after the last one has changed, so that any node can go on from it; who owns a volume is in the volume's record alone.
// All drives of a fork or snapshot are cut under one freeze. An operation that fails names every drive that failed, loses
// nothing, and may be repeated. The node mounts nothing inside a virtual machine: that is the host's, who gets the paths.
//
// # Exposers
//
// An [Exposer] gives a device of package overlaybd a path: mount/fuse as a file. A VMM opens the path; a host that
// shares its kernel with its sandboxes mounts it with [MountKernel]. Package mount/mounttest defines what an exposer
// has to do.
//
//	exposure, err := exposer.Expose(ctx, "sb1-data", dev, false)
//	m, err := mount.MountKernel(ctx, exposure.Path(), "/sandboxes/sb1/data", mount.KernelOptions{})
//	...
//	err = m.Unmount(ctx)      // the device holds every write now
//	err = exposure.Close(ctx) // and nothing has it open
//
// The order matters: the file system, then the exposure, then the device. Each step returns when the one below it is
// no longer used, so that a device can be sealed after Unmount and closed after Close.
//
// # Kernel mounts
//
// A [KernelMount] is a loop device with direct I/O over the exposed file, and the file system on it. Freeze gives a
// consistent cut of a drive in use; Unmount gives a clean one. Read-only mounts are refused writes by the file system
// and by the block device, both with EROFS or EPERM, and by the exposer. Targets are walked without following
// symbolic links and held open while mounting, since a sandbox may own the directories on the way. It takes root and
// Linux 5.8.
//
// # Time limits
//
// A device that does not answer hangs whoever asked the kernel, beyond the reach of signals. Every call here gives up
// at its limit, or earlier with its context, and returns [ErrTimeout]; what the kernel does later is undone. Nothing
// is taken from a user without saying so: [ErrBusy] means that it is still there and the call can be repeated,
// [ErrDetached] that it was cut off.
package mount
