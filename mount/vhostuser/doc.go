// Package vhostuser offers drives as vhost-user-blk back-ends, one unix socket a drive: the VMM hands its virtio queues over,
// and requests go from the guest's memory to the engine and back without a copy through the VMM. It is an exposer of package
// mount and needs no privilege, but the VMM's memory has to be shared:
//
//	server, err := vhostuser.New("/run/sandboxes/vhost")
//	exposure, err := server.Expose(ctx, "sb1-data", dev, false)
//	// qemu -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
//	//   -chardev socket,id=d0,path=<exposure.Path()>,reconnect=1 -device vhost-user-blk-pci,chardev=d0
//
// # What it speaks
//
// The vhost-user protocol with the features MQ, REPLY_ACK, CONFIG, BACKEND_REQ, INFLIGHT_SHMFD and CONFIGURE_MEM_SLOTS; split
// virtqueues with indirect descriptors, up to [MaxQueues] of them; virtio-blk with flush, discard and write zeroes, a block size
// of 512 bytes and a physical one of 4096. A drive that grows is announced to the guest. A read-only drive says so, and
// answers an error to every change. The device id that the guest sees, as in /sys/block/vda/serial, is the beginning of the
// drive's name, as much of it as fits in 20 bytes.
//
// A VMM that loses its back-end, because the host process was restarted, connects again when the drive is exposed again, and
// requests that were under way are carried out again: the VMM keeps the note of them, in memory that both share.
//
// # Pausing
//
// A guest that is stopped leaves its requests in the queues, so that nothing is under way when a drive is sealed. A VMM that
// saves its state without the device, as Firecracker does, refuses vhost-user drives in snapshots: such hosts use package
// fuse. The dirty log of live migration is not offered: a drive moves by pause and resume.
//
// # Memory of the guest
//
// The guest's memory is read and written where the descriptors say, after each address was compared with the memory that the
// VMM has shared. A VMM that takes shared memory away while it is in use loses its connection; this process goes on. Memory that
// cannot be taken away, as a memfd that is sealed against shrinking, which is QEMU's default, goes to the engine without a copy.
package vhostuser
