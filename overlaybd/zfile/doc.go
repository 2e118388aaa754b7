// Package zfile reads and writes ZFile, OverlayBD's block-compressed container: a stream of bytes is cut into blocks of
// one size, each block is compressed by itself, and an index of their stored sizes makes any place of the stream
// reachable with one read. A layer is such a stream. The bytes are those of the OverlayBD project, both ways.
//
//	w, err := zfile.NewWriter(f, zfile.Options{})   // LZ4, 4 KiB, checksums
//	io.Copy(w, layer)
//	w.Close()                                       // index and trailer; then f is a whole file, to be synced
//
//	r, err := zfile.Open(f, size)                   // header, trailer and index are checked
//	r.ReadAt(p, off)                                // each block is checked when it is read
//	r.Verify(ctx)                                   // all of them, with the names of those that are damaged
//
// # Layout
//
// All integers are little-endian.
//
//	0        header, 512 bytes
//	512+d    block 0, block 1, ... block n-1, without gaps; d is the dictionary's size, which is 0
//	index    n times 4 bytes: how many bytes block i is stored in, its checksum included
//	...      trailer, 512 bytes, to the end of the file
//
// Block i holds the content from i times the block size on; only the last may be shorter. It is one raw LZ4 block or
// one zstd frame, whatever the content: nothing marks a block as not compressed. With checksums, 4 bytes follow it.
//
// Header and trailer are the same 512 bytes, but for flags and what was not known when the header was written:
//
//	off size
//	  0   24  magic "ZFile\0\1\0tuji.yyf@Alibaba"
//	 24    4  96, up to where the fields end; not checked
//	 28    4  digest of these 512 bytes with this field as zeroes, if flag 4 is set
//	 32    8  flags: 0 header (else trailer), 1 data file, 2 sealed (trailers), 3 the header has the final values,
//	          4 digest and index checksum are valid; the others are ignored
//	 40    8  offset of the index in bytes
//	 48    8  n, the number of blocks
//	 56    8  bytes of content
//	 64    4  checksum of the index, if flag 4 is set
//	 68    4  0
//	 72    4  block size in bytes
//	 76    1  codec: 1 LZ4, 2 zstd
//	 77    1  level, 0 and ignored
//	 78    1  1: a dictionary is used; no file does
//	 79    5  0
//	 84    4  size of the dictionary in front of block 0
//	 88    1  1: each block is followed by its checksum
//	 89  423  0
//
// Flags are 0x13 in a header, 0x16 in a trailer and 0x1b in a header that was written again with the final values (see
// Writer.WriteFinalHeader), in which case no trailer is needed to read. In the plain header the fields from 40 to 71
// are 0.
//
// All checksums are CRC-32C without the usual inversions: the register begins with 0 for digest and index, with 100007
// for a block, and is stored as it ends. Files from before 2023 have neither digest nor index checksum, and some of
// them have garbage in every byte that is said to be 0 here, so none of those is looked at.
//
// # What is checked
//
// Open believes no number before it was compared with the others: the number of blocks is what the content needs, the
// index is inside the file, no stored size is larger than a codec can make it, and together they end at the index. So a
// hostile file costs no more memory than an index of its own length. A damaged byte is a CorruptError that names part,
// block and place, and never other content, as long as the file has digests and checksums. Two things are stricter here
// than in the reference implementation: the digest of the trailer is checked, and so are the sums.
//
// # What is written
//
// The same bytes for the same content and options, whatever the number of cores. With LZ4 they are those of the
// reference, byte for byte; with zstd the frames are those of another encoder. Blocks of 64 KiB that do not compress
// would be stored in more bytes than the reference can read, and are refused unless Options.Oversize allows them.
//
// # What is left to others
//
// Bytes that turn out to be damaged are not fetched again: a cache between the Reader and a remote store can drop the
// range that the error names and ask its store once more. A Writer does not sync. A tar envelope around the file, and
// the layer inside it, belong to other packages.
package zfile
