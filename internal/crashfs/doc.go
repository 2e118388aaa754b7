// Package crashfs is a disk that can lose power: a real file system, mounted through FUSE, whose content lives in the
// memory of a second process. That process knows at any moment what a power cut would leave, and leaves exactly that
// when a test asks for one.
//
//	func TestMain(m *testing.M) { crashfs.Main(m) }
//
//	func TestSurvivesPowerCut(t *testing.T) {
//		fs := crashfs.New(t)
//		fs.StopAt(fs.Ops() + k) // the machine dies at the k-th operation from here
//		err := work(fs.Dir())
//		fs.PowerCut(seed)
//		// reopen fs.Dir(): what work acknowledged is there
//	}
//
// # What is durable
//
//	bytes and size of a file     after fsync or fdatasync of that file
//	a name in a directory        after fsync of that directory
//	mode of a file or directory  after fsync of it; times always, owners never change
//
// PowerCut(0) leaves that and nothing else: a name whose directory was never synced is gone or back, a file that was
// never synced is empty under a name that was. Any other seed chooses, of the rest, something that a disk may have
// written as well:
//
//	names   none, all, those changed before some moment, or any; a rename is whole or not at all, and no change
//	        survives without the earlier ones of the same name
//	bytes   each 4 KiB page not at all, whole, or up to some 512-byte sector
//	size    the old one, the new one, or between them
//
// After FailSync the next fsync fails with EIO, and what it should have written is never written, as kernels do that
// mark the pages clean after a failed write: programs still read the new bytes, a later fsync answers success, and a
// power cut brings the old ones back.
//
// # What it does not do
//
// Bytes written through a shared mapping belong to the disk only once the kernel has written them back, which msync,
// fsync and the last close do; before that no seed keeps them. Symbolic links, extended attributes and O_TMPFILE are
// not there. Locks are the kernel's own. Memory is given back at a cut.
//
// A second process is needed because a page fault on a mapped file stops a thread in a way the Go runtime cannot see: a
// program that serves the file itself would wait for its own garbage collector for ever.
package crashfs
