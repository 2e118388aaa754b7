// Package turbo reads TurboOCI layers. Such a layer is made for an existing OCI layer, a tar file that is mostly
// compressed with gzip: it stores the metadata of a file system (ext4.fs.meta, an LSMT file), and its file contents are
// where they always were, in the tar file, its target. A gzip index (gzip.meta) gives random access to a target that is
// compressed. Nothing here writes such layers.
//
//	index, err := turbo.OpenIndex(gzipMeta, size)
//	target, err := index.Open(layerTarGz)        // the tar file inside, at random
//	layer, err := turbo.Open(fsMeta, target)     // one plain LSMT file: a Source of overlaybd
//
// [Open] presents the layer as the plain one that it stands for: own data, then the target, then an index that points to
// both. Stacks, merges and verification need not know what it is, and a copy of it is an ordinary layer.
//
// # gzip.meta
//
// Numbers are little-endian; the table is packed.
//
//	  0    8  "ddgzidx\0"
//	  8    2  version: 1, 0
//	 10    1  compression of windows and table: 0 none, 1 zlib
//	 11    2  its level; 0
//	 13    4  span, the content between two entries, in bytes
//	 17    4  bytes of a window, 32768
//	 21    4  29, bytes of an entry
//	 25    8  number of entries
//	 33    8  bytes of the gzip file
//	 41    8  bytes of this file
//	 49    8  bytes of content
//	 57  256  0
//	313    8  offset of the table of entries
//	321    8  bytes of the table as it is stored, to the end of the file
//	329    4  CRC-32C of bytes 0 to 328, without the usual inversions
//	333       windows, then the table
//
// An entry is a place where decompression can start: 8 bytes content offset, 8 bytes offset in the gzip file, 8 bytes
// offset of the window, 1 byte number of bits that belong to the byte before, 4 bytes stored length of the window. A
// window is the content in front of the place, to which what follows may refer.
//
// # What is checked
//
// Sizes in the index against the files, entries against each other and their limits, before anything is allocated for
// them. The content of a gzip file has one checksum at its end, so a random read finds damage only if it breaks the
// compression: [Reader.Verify], or the target's digest, finds all. A segment that runs over the end of the target reads
// as zeroes behind it, as the makers of such layers expect; one that starts there is corrupt.
package turbo
