// Package posixstore is a store.Store in a directory that all nodes mount: a local file system for one machine, or NFS
// and its like for many.
//
//	s, err := posixstore.New("/srv/volumes")
//
// # On the disk
//
//	<root>/v1/names/acme/data/fffffffffffffffe   a record or blob: a file, mode 0600, never written again
//	<root>/v1/names/acme/data                    a directory, mode 0700; with the sticky bit: perhaps not durable
//	<root>/.tmp/<random>                         a file that is being written, or was when its writer died
//
// # How a write becomes durable
//
//	1  write the whole file in .tmp, fsync it
//	2  link(2) it to its key: exactly one writer gets there, and readers see it whole from here on
//	3  fsync the directory, and the parent of each directory that may be new
//	4  remove the name in .tmp; acknowledge
//
// A reader may come between 2 and 3 and act on a record that a power cut would take back. So it looks at the number of
// links: two mean that the writer has not come to step 4, and then the reader does step 3 itself before it shows what
// it read. A record at rest has one link and costs no fsync. The sticky bit does the same for directories: mkdir sets
// it, and whoever has synced the parent takes it away; a directory without it is durable, and so are all above it. Both
// marks are in the file system itself, so that they hold between processes and nodes, and no clock is asked.
//
// Delete syncs the directory after the unlink, since a tombstone that stays deleted below a record that comes back
// would raise the dead. Then it removes directories that it left empty: pins and heartbeats would else leave one each
// for ever. A writer that finds its directory gone makes it again.
//
// # What is assumed
//
// fsync of files and directories is honest, link(2) is atomic and fails when the name is taken, st_nlink is right, the
// sticky bit is kept. On NFS, nodes see each other's work only when nothing is cached: New reads mountinfo and refuses
// a mount without lookupcache=none and one of actimeo=0 and noac, unless WithUncheckedNFS is given.
//
// Temporary files of writers that died are removed by New when they are a day old, and by CleanTemp.
package posixstore
