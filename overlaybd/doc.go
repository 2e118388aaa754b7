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
//   - Rewriting the same blocks for ever takes a bounded space: overwritten data of the upper is given back while the
//     device is in use. See WithReclaim.
//   - Layers below a running device can be merged, and the device moved to what they became: see MergeParts and
//     ReplaceLayers.
//   - Hostile layers give ErrCorrupt: no panic, no allocation from an unchecked length, no wrong data from a short
//     file.
//   - After a failed fsync the device is ErrFailed for writes and flushes, for ever; reads go on.
//
// # The directory of a Writable
//
//	lock             flocked while the device is open
//	state.json       uppers, topmost first, and sealed layers, bottom first; replaced as a whole
//	<uuid>.data      an upper's data; the same file once it is sealed
//	<uuid>.index     an upper's records; .index.new while it is being rewritten
//	<uuid>.pending   an upper's records that are not in its index yet
//
// Files are made before state.json names them, and removed after it stops to. A device with as many segments in its
// upper as one layer may have starts a fresh upper by itself: for that while there are two uppers, of which the lower
// is being sealed. OpenWritable finishes what a crash interrupted.
//
// # What it does not do
//
// Opening a stack reads indexes, not data, and compares nothing with a digest: Verify does, and so may whoever implements
// Config.Open. Blocks of a ZFile are compared with their checksums when they are read. Only a layer that comes by range and
// has no such checksums is compared with its digest first: see RemoteSource.
//
// # Layers at hand
//
// Detect tells how a file wraps its layer: in a tar file, in a ZFile, in both, or not at all. Verify reads a layer whole
// and names what is wrong with it. Diff finds where two stacks may differ, from their indexes alone. Package turbo makes a
// plain layer of a TurboOCI layer as it is read.
package overlaybd
