// Package ext4 puts ext4 file systems onto devices: what an empty volume holds.
//
// [Mkfs] is a formatter over the tool mkfs.ext4 of package e2fsprogs. It formats a sparse temporary file of the
// device's size and copies what the tool wrote, so that a 64 GiB device costs a few MiB and well under a second:
//
//	m := ext4.Mkfs{TempDir: dir}
//	if err := m.Check(ctx); err != nil { ... } // before any record exists
//	err := m.Format(ctx, dev)
//
// The result is a function of the device's size and of the tool's version: identifiers, seeds and times are fixed,
// the features are listed here and not taken from the machine's configuration. All volumes made so share one file
// system UUID; ext4 does not mind when several are mounted at once.
//
// Choices that matter to a copy-on-write disk:
//
//   - Inode tables are marked as zeroed, which is true of a fresh device. Otherwise the kernel would write up to
//     1 GiB of zeroes into a 64 GiB volume after its first mount, and every one of them would be published.
//   - The journal has at most 64 MiB. It is written round and round, so that its size is a floor of what a busy volume
//     publishes at each pause.
//   - No blocks are reserved for root; sizes are whole MiB from 16 MiB, below which there would be no room for a
//     journal.
package ext4
