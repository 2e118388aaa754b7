// Package fuse exposes devices as files of one FUSE mount: for VMMs that take a file, and for loop devices.
//
//	server, err := fuse.New("/run/sandvol/drives")           // one mount, fsname=sandvol
//	exposure, err := server.Expose(ctx, "sb1-data", dev, false)
//	// hand exposure.Path() to a VMM, or to mount.MountKernel
//	err = exposure.Close(ctx)                                // waits until nothing has it open
//	err = server.Close(ctx)
//
// # What a drive's file does
//
// Its size is the device's. Reads, writes, fsync and fallocate (punch hole, zero range) become ReadAt, WriteAt, Flush
// and Discard. Nothing else changes it: truncation, also by O_TRUNC, is refused with EPERM. Requests that do not
// cover whole sectors are widened here. A write past the end is refused whole with ENOSPC. Device errors arrive as
// EINVAL (overlaybd.ErrInvalid), EROFS (ErrReadOnly), ENOSPC, or EIO for everything else.
//
// Read-only drives have mode 0400 and refuse to be opened for writing with EROFS; no write ever reaches their device.
// Other drives have mode 0600. The kernel checks permissions; chown and chmod work, so that an unprivileged VMM can
// be given its drive and no other.
//
// # What is cached where
//
// Nothing, on this level. Files are opened for direct I/O: a write has reached the device when it returns, whoever
// dies next, and there is no page cache that could be stale. Names and attributes have no validity in the kernel
// either, and each Expose uses a new inode, so that a name used again never shows another device's content. Loop
// devices and guests have page caches of their own above this.
//
// Because nothing is held back, close(2) has nothing to write: the first flush request is answered with "not
// implemented", whereupon the kernel sends no more. That also takes away a deadlock: a child process that closes
// inherited files between fork and exec would wait for this process.
//
// # Opening drives from the process that serves them
//
// Never with os.Open or os.OpenFile: Go then adds the file to its poller, which asks the file system for its state,
// and a hung answer hangs the thread beyond reach of signals. Use unix.Open, as mount.MountKernel does.
//
// # When things hang
//
// Every wait ends with its context. What still has a drive open then gets EIO; a mount that is still in use is
// aborted and detached, and the error says so: mount.ErrDetached.
package fuse
