// Package overlaybd opens a stack of OverlayBD layers as a block device: read-only, or with a writable upper in a local
// directory. It knows layers and devices; volumes, owners and stores are the business of others.
//
//	engine, err := overlaybd.New(overlaybd.Config{Open: openLayer})
//	disk, err := engine.OpenWritable(ctx, dir, stack)
//	_, err = disk.WriteAt(p, off)
//	err = disk.Flush()
//	layers, err := disk.Seal(ctx, overlaybd.SealOptions{})
//	for _, l := range layers {
//		err = l.Compact(ctx, upload)               // then append it to the published stack
//		disk.Published(l.UUID, published)
//	}
//	err = disk.Close()
//
// # What holds
//
//   - A write that was acknowledged survives the death of the process. After Flush it survives that of the machine. A
//     power cut keeps a prefix of the writes, at least up to the last acknowledged Flush.
//   - A layer that Seal returned is durable, and never changes.
//   - Published layers are shared, not copied: a child's stack names its parent's layers.
//   - Reads hold no lock during I/O and allocate nothing. A store that is gone makes them fail within ReadTimeout, and
//     Close ends them at once.
//   - Hostile layers give ErrCorrupt: no panic, no allocation from an unchecked length, no wrong data from a short
//     file.
//   - After a failed fsync the device is ErrFailed for writes and flushes, for ever; reads go on.
//
// # The directory of a Writable
//
//	lock             flocked while the device is open
//	state.json       uppers, topmost first, and sealed layers, bottom first; replaced as a whole
//	<uuid>.data      an upper's data; the same file once it is sealed
//	<uuid>.index     an upper's records
//	<uuid>.pending   an upper's records that are not in its index yet
//
// Files are made before state.json names them, and removed after it stops to. A device with as many segments in its
// upper as one layer may have starts a fresh upper by itself: for that while there are two uppers, of which the lower
// is being sealed. OpenWritable finishes what a crash interrupted.
//
// # What it does not do
//
// Layers are bare: wrapping in ZFile or tar, compaction of stacks and reclaiming space in an upper are not here yet.
// The content of a layer is not verified: whoever implements Config.Open checks digests.
package overlaybd
