// Package blockcache keeps ranges of immutable remote layers on a node's own disk, within a budget. A layer is known by an
// id that stands for its bytes, such as their digest; the cache fetches what a read lacks, once, and drops what was not
// used for longest.
//
//	c, err := blockcache.Open(dir, blockcache.WithBudget(50<<30))
//	l, err := c.Layer(id, size, blob)             // sends nothing
//	err = l.Prefetch(ctx, size-tail, tail)        // one request
//	n, err := l.ReadWithin(p, off, timeout, done) // from disk, or fetched and kept
//	err = l.Close()
//
// # Words
//
// A chunk is 256 KiB of a layer: the unit that is fetched, kept and evicted. A block is 4 KiB of a chunk: the unit that has
// a checksum. A fetch is one ranged request for a run of adjacent chunks. A layer is open while somebody has a handle on
// it. The two sizes are a compromise: a chunk is large enough that its request costs little more than a round trip, and
// that the bookkeeping of a large cache fits into memory; a block is small enough to be checked at each read.
//
// # The directory
//
//	<id>.data   the layer's bytes where they belong; what is not kept is a hole
//	<id>.map    which chunks are kept, and the checksums of their blocks
//	<id>        a whole copy from elsewhere; it becomes the two files above when it is opened
//	.tmp-*      being written; removed at Open
//
// All integers in a map are little-endian, all checksums CRC-32C:
//
//	off size
//	  0    8  "sandvolc"
//	  8    4  version: 1
//	 12    4  bytes of a chunk: 262144
//	 16    4  bytes of a block: 4096
//	 20    4  1: the whole was compared with its digest, and no chunk was dropped since
//	 24    8  bytes of the layer
//	 32    4  checksum of the 32 bytes before
//	 64       an entry for each chunk, 260 bytes: a checksum of the chunk's number (8 bytes) and the rest of the entry, and the
//	          checksum of each of its 64 blocks, 0 where the layer ends before. An entry of zeroes: not kept.
//
// # What holds
//
//   - Nothing in the directory is believed. Every read of a block is compared with its checksum, and every entry with its own,
//     so a power cut, a flipped bit, a lost or shortened file and a file of another format cost a fetch and never give other
//     bytes. That is why nothing is synced. Any file may be removed at any time.
//   - A read of what is kept takes no lock, starts no goroutine, allocates nothing and does not depend on the store.
//   - However many readers lack a chunk, it is fetched once; a run of chunks that a read lacks is one request. Sequential
//     reads fetch ahead, up to 4 MiB.
//   - A store that fails is asked by one fetch a layer at a time, at intervals that grow to five seconds. Readers get an error
//     when their own time is up, and data once the store answers again. A fetch that nobody waits for any more is given up.
//   - The directory holds no more than the budget, but for maps (0.1 %). Closed layers go first,
//     whole, the one closed longest ago before the others; then chunks of open layers that were not used since the last
//     round (CLOCK). What finds no room is handed to its readers and not kept.
//
// # What is left to others
//
// That the store sends the right bytes is for the reader to check, by block checksums of its format (Refetch asks again) or,
// where the format has none, by Verify. One Cache uses a directory at a time.
package blockcache
