// Package nbd offers drives over the NBD protocol, one unix socket a drive, for QEMU, for the kernel's nbd driver in a guest or
// on a host, and for tools such as qemu-img and nbdcopy. It is an exposer of package mount and needs no privilege:
//
//	server, err := nbd.New("/run/sandboxes/nbd")
//	exposure, err := server.Expose(ctx, "sb1-data", dev, false)
//	// -blockdev driver=nbd,node-name=data,server.type=unix,server.path=<exposure.Path()>,discard=unmap
//
// # What it speaks
//
// Fixed newstyle negotiation without TLS, with the options GO, INFO, EXPORT_NAME, LIST and ABORT; simple replies; the commands
// READ, WRITE, FLUSH, TRIM, WRITE_ZEROES and DISC, with the flag FUA. The export is called as the drive is, or by the empty
// name. Any number of clients may connect, and a flush on one connection covers what was acknowledged on the others. Offsets
// and lengths may be any; sectors are merged here. One request carries up to 32 MiB, and writing zeroes up to the whole drive:
// it takes as little space as a trim, also with the flag NO_HOLE, since space cannot be reserved ahead in a layer.
//
// A read-only drive says so in its flags and answers EPERM to every change. A request past the end is EINVAL for a read
// and ENOSPC for a write. The protocol has no way to tell a connected client of a new size: requests into a grown part are
// served at once, and a client that connects sees it. QEMU takes it with block_resize.
//
// # Closing
//
// Close takes the socket away and waits for clients to disconnect; a paused virtual machine keeps its connection, so the VMM is
// to be ended or told to drop the drive first. Whoever is still connected when the time is over loses the connection.
package nbd
