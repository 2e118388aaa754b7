// Package ext4 writes ext4 file systems straight onto devices, and brings those that were in use when they were copied
// into order. It needs no root, no tool and no mount.
//
//	w, err := ext4.NewWriter(ctx, dev, ext4.Options{Size: dev.Size(), Inodes: entries})
//	err = w.Add(ctx, ext4.Entry{Path: "etc/motd", Mode: unix.S_IFREG | 0o644, Size: n}, content) // for each entry
//	err = w.Finish(ctx)
//	err = dev.Flush()
//
// [Formatter] does the same without entries: what an empty volume holds. [Replayer] replays a journal, so that a volume
// that was sealed while its file system was mounted can be read without one more write.
//
// # What a Writer guarantees
//
//   - e2fsck -fn has nothing to say about the result, at any size from 16 MiB to 16 TiB. The one exception: times after
//     2310, which ext4 can keep, it takes for a mistake of old kernels.
//   - The bytes are a function of options and entries: no clock, no random numbers, no order of a map.
//   - Content is written once, in the order of entries and of addresses, in whole blocks; blocks of zeroes are holes.
//     With [Writer.Skip] the content of an entry is at a place that depends on nothing added before.
//   - Memory grows with entries, their names and attributes, not with content: about 400 bytes for each small file.
//     Files in more than four pieces take 16 bytes for each.
//   - The superblock is written last: a device where writing stopped has no file system.
//
// # Where things are
//
// Blocks have 4 KiB, groups 32,768 blocks, and 16 groups are a flex group. All fixed parts are at the start of a group;
// the rest of it is free, so that data flows through the disk in a few long runs.
//
//	group 0                superblock, descriptors, room for more descriptors
//	groups 1, 3ⁱ, 5ⁱ, 7ⁱ   copies of the same
//	first of each flex     block bitmaps, inode bitmaps, inode tables of its groups
//	after group 0's part   block of the resize inode, journal, content of files, then directories, maps of
//	                       fragmented files, blocks of extended attributes
//
// Inodes 1 to 10 are reserved, 11 is lost+found, and entries follow in their order. There is an inode for every 16 KiB,
// or more if [Options] ask for them.
//
// # Choices
//
// Every feature is understood by Linux 4.4 and later: 64bit, extents, flex_bg, metadata checksums, indexed directories,
// large inodes. Some matter to a copy-on-write disk:
//
//   - Inode tables are marked as zeroed, which is true of a fresh device, and bitmaps of groups without data are left
//     out. Otherwise the kernel would write up to 1 GiB of zeroes into a 64 GiB volume after its first mount, and every
//     one of them would be published. An empty 64 GiB volume costs about 1 MiB.
//   - There is always a journal, clean and empty, of at most 64 MiB. It is written round and round, so that its size is a
//     floor of what a busy volume publishes at each pause. It costs one block, since a journal of zeroes is an empty one.
//   - Room for descriptors lets the kernel grow a mounted file system to 16 times its size, and 64 GiB at least. Beyond
//     that the kernel scatters new descriptors over the disk.
//   - No blocks are reserved for root. A few MiB at the end of a device stay unused where a last group would have no room
//     for its own tables, as with mkfs.ext4.
//   - Leaves of directory indexes are full, which suits what is only read; the kernel splits them when names are added.
//   - File systems share one UUID unless options say otherwise; ext4 does not mind when several are mounted at once.
//
// # What it does not do
//
// Directories of more than 250,000 blocks, extended attributes that need more than one block beside the inode, and more
// than one inode for 4 KiB are refused. Content that does not fit fails when it does not fit, not before.
package ext4
