// Package lsmt reads and writes the log-structured layers of the OverlayBD project, byte for byte: sealed layers, the
// append-only upper above them, and layers compacted from others.
//
// A layer maps runs of 512-byte sectors of a disk, its segments, to stored bytes or to zeroes. A sector that a layer
// does not map is a hole, and belongs to the layer below.
//
//	log, err := lsmt.CreateLog(paths, options)    // an upper
//	err = log.Append(p, lba)                      // survives a kill
//	err = log.Sync()                              // survives a power cut
//	freed, err := log.Reclaim(ctx, begin)         // space of overwritten data
//	segs, err := log.Seal()                       // a sealed layer, in place
//
//	layer, err := lsmt.OpenLayer(file, size)
//	merged, err := lsmt.Merge(segments)           // several layers, bottom first
//	view := lsmt.View{Logs: logs, Base: lsmt.NewIndex(merged), Files: files}
//	err = view.ReadAt(p, off)
//	err = lsmt.Compact(ctx, w, merged, files, options)
//
// # Files
//
// All numbers are little-endian. A sealed layer, and the data file of an upper without its last two parts:
//
//	header 4096 | data, whole sectors | index, 16 bytes an entry | trailer 4096
//
// The index of a compacted layer is filled up to a multiple of 256 entries with padding entries, that of a log sealed
// in place to a whole sector with zeroes. What counts is the trailer. Header and trailer have the same fields:
//
//	  0  24  magic
//	 24   4  390, the size of this table
//	 28   4  flags: 1 header, 2 data file, 4 sealed, 16 sparse
//	 32   8  index offset, bytes
//	 40   8  index entries, padding included
//	 48   8  virtual size, bytes
//	 56  37  uuid, text with a NUL
//	 93  37  parent's uuid
//	130   2  reserved
//	132   2  version 1, 1
//	134 256  user tag
//
// An entry, and a record of an upper's index file, is two words; see Segment. The index file of an upper is a header
// and records in write order; later ones win.
//
// # How an upper survives
//
// Three files make an upper: data, index and pending. docs/formats/upper.md has their bytes.
//
// Append writes the data, puts the record into pending, which is a shared mapping, and returns. The page cache keeps
// all of that when the process is killed. Sync makes the data durable, then appends the waiting records to the index
// file, then makes that durable. So the index file never holds a record whose data a power cut can take; such a record
// would hide what an earlier flush had made durable at the same address, and nothing would show it.
//
// Each append to the index file, but the first, begins with a flush mark: a padding entry, which other readers skip,
// with the number of entries in front of it. All of those were durable when the mark was written. OpenLog takes
// records up to the first unusable one (outside the data, of length 0, or half there). If a flush mark stands behind
// it, that record was durable and something else destroyed it: ErrCorrupt. Else a power cut interrupted the Sync that
// wrote it, no flush was acknowledged, and it is dropped with all behind it. Then the records that pending holds
// beyond the last one in the index file are added, if it carries the boot id of this boot; after a power cut pending
// says nothing.
//
// # How an upper stays small
//
// Reclaim replaces the index file by one with the live segments alone, behind a base mark that says how many records they
// stand for, and then punches holes into the data where none of them is stored. The new index file is durable, with its
// name, before the first hole: until then a power cut may leave the old one, which points to data that is dead now.
//
// # What is assumed
//
// fsync and fdatasync are honest; a disk writes a 512-byte sector as a whole or not at all (no record straddles two);
// bytes in the page cache survive the process. After a failed fsync a Log refuses writes and flushes, because the
// kernel reports lost pages once and then forgets them.
//
// # What it does not do
//
// There is no checksum in the format: a flipped bit in data goes unnoticed here, and whoever stores layers keeps
// digests. Sparse uppers are read and sealed, but not written; of layers with remote data, the index is read.
package lsmt
