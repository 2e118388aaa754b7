package turbo

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Offsets and sizes of the gzip index; doc.go has the table.
const (
	indexHeader = 333
	indexCRC    = 329
	entryBytes  = 29

	offVersion    = 8
	offAlgo       = 10
	offWindow     = 17
	offEntryBytes = 21
	offEntries    = 25
	offGzipSize   = 33
	offIndexSize  = 41
	offSize       = 49
	offTable      = 313
	offTableBytes = 321
)

const (
	algoNone = 0
	algoZlib = 1

	windowSize = 32 << 10
	// maxWindow bounds a stored window: zlib adds a few bytes to what it cannot compress.
	maxWindow = windowSize + 1<<10
	// maxEntries is enough for a tebibyte at the usual span of 1 MiB.
	maxEntries = 1 << 20
	// maxRatio is more than deflate can make of a byte.
	maxRatio = 1040
)

var indexMagic = []byte("ddgzidx\x00")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Index says where in a gzip file decompression can start. Its methods may be called concurrently.
type Index struct {
	src     io.ReaderAt
	algo    byte
	entries []entry // by content offset; the first is 0
	gzip    int64   // bytes of the gzip file
	size    int64   // bytes of content
}

// entry is one place where decompression can start.
type entry struct {
	content   int64 // offset in the content
	stored    int64 // offset in the gzip file
	window    int64 // offset in the index file
	windowLen int64
	bits      uint8 // of the byte before stored, from its top, that come first
}

// OpenIndex reads and checks the gzip index in the size bytes of src. Windows are read when they are needed. Whatever
// src holds, it allocates at most 100 MiB, and only as far as the table of entries really is that long.
func OpenIndex(src io.ReaderAt, size int64) (*Index, error) {
	h := make([]byte, indexHeader)
	if size < indexHeader {
		return nil, badIndex(0, "%d bytes, shorter than a header", size)
	}
	if err := readFull(src, "gzip index", h, 0); err != nil {
		return nil, err
	}
	if err := checkHeader(h, size); err != nil {
		return nil, err
	}
	x := &Index{src: src, algo: h[offAlgo], gzip: number(h, offGzipSize), size: number(h, offSize)}
	table := number(h, offTable)
	entries, err := x.readTable(table, number(h, offTableBytes), number(h, offEntries))
	if err != nil {
		return nil, err
	}
	x.entries = entries
	return x, x.checkEntries(table)
}

// Size returns the number of bytes of content.
func (x *Index) Size() int64 { return x.size }

// Entries returns the number of places where decompression can start.
func (x *Index) Entries() int { return len(x.entries) }

// GzipSize returns the number of bytes that the gzip file must have.
func (x *Index) GzipSize() int64 { return x.gzip }

func number(h []byte, off int) int64 { return int64(binary.LittleEndian.Uint64(h[off:])) }

func checkHeader(h []byte, size int64) error {
	le := binary.LittleEndian
	if !bytes.HasPrefix(h, indexMagic) {
		return badIndex(0, "wrong magic")
	}
	if got, want := ^crc32.Update(^uint32(0), castagnoli, h[:indexCRC]), le.Uint32(h[indexCRC:]); got != want {
		return badIndex(indexCRC, "checksum is %08x, %08x is recorded", got, want)
	}
	table, tableBytes := number(h, offTable), number(h, offTableBytes)
	switch {
	case h[offVersion] != 1:
		return badIndex(offVersion, "version %d, 1 is known", h[offVersion])
	case h[offAlgo] > algoZlib:
		return badIndex(offAlgo, "compression %d, 0 and 1 are known", h[offAlgo])
	case le.Uint32(h[offWindow:]) != windowSize:
		return badIndex(offWindow, "windows of %d bytes, not %d", le.Uint32(h[offWindow:]), windowSize)
	case le.Uint32(h[offEntryBytes:]) != entryBytes:
		return badIndex(offEntryBytes, "entries of %d bytes, not %d", le.Uint32(h[offEntryBytes:]), entryBytes)
	case number(h, offIndexSize) != size:
		return badIndex(offIndexSize, "%d bytes, %d are there", number(h, offIndexSize), size)
	case table < indexHeader || table > size || tableBytes != size-table:
		return badIndex(offTable, "%d bytes of entries at %d, in %d bytes", tableBytes, table, size)
	case number(h, offEntries) < 1 || number(h, offEntries) > maxEntries:
		return badIndex(offEntries, "%d entries, 1 to %d can be", number(h, offEntries), maxEntries)
	case number(h, offGzipSize) < 0 || number(h, offSize) < 0 || number(h, offSize)/maxRatio > number(h, offGzipSize):
		return badIndex(offSize, "%d bytes of content in a gzip file of %d", number(h, offSize), number(h, offGzipSize))
	}
	return nil
}

// readTable reads n entries from the bytes of the table.
func (x *Index) readTable(off, length, n int64) ([]entry, error) {
	// Not allocated by n: the table has to yield that many bytes first.
	b, err := x.inflate(off, length, n*entryBytes)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, n)
	for i := range entries {
		e := b[i*entryBytes:]
		entries[i] = entry{
			content: number(e, 0), stored: number(e, 8), window: number(e, 16),
			bits: e[24], windowLen: int64(binary.LittleEndian.Uint32(e[25:])),
		}
	}
	return entries, nil
}

func (x *Index) checkEntries(table int64) error {
	before := entry{content: -1}
	for i, e := range x.entries {
		switch {
		case i == 0 && e.content != 0:
			return badIndex(table, "entry 0 is at byte %d of the content", e.content)
		case e.content <= before.content || e.content > x.size:
			return badIndex(table, "entry %d is at byte %d of %d, the one before at %d", i, e.content, x.size, before.content)
		case e.stored < before.stored || e.stored > x.gzip || e.bits > 7 || e.bits > 0 && e.stored == 0:
			return badIndex(table, "entry %d is at byte %d of %d in the gzip file, bit %d", i, e.stored, x.gzip, e.bits)
		case e.window < indexHeader || e.windowLen > maxWindow || e.window > table-e.windowLen:
			return badIndex(table, "window %d has %d bytes at %d", i, e.windowLen, e.window)
		}
		before = e
	}
	return nil
}

// before returns the last entry at or in front of a place in the content.
func (x *Index) before(off int64) entry {
	i := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].content > off })
	return x.entries[i-1]
}

// windowOf returns the content in front of an entry, as far as what follows can refer to it.
func (x *Index) windowOf(e entry) ([]byte, error) {
	if e.windowLen == 0 {
		return nil, nil
	}
	return x.inflate(e.window, e.windowLen, windowSize)
}

// inflate returns the want bytes that are stored in length bytes at off.
func (x *Index) inflate(off, length, want int64) ([]byte, error) {
	stored := bufferedSection(x.src, off, length)
	var r io.Reader = stored
	if x.algo == algoZlib {
		z, err := zlib.NewReader(stored)
		if err != nil {
			return nil, indexError(err, off)
		}
		r = z
	}
	// One byte more than is wanted: so a longer stream shows, and zlib gets to its checksum.
	b, err := io.ReadAll(io.LimitReader(r, want+1))
	if err != nil {
		return nil, indexError(err, off)
	}
	if int64(len(b)) != want {
		return nil, badIndex(off, "%d bytes in %d, %d are needed", len(b), length, want)
	}
	return b, nil
}

// indexError gives what a decoder says the class of corruption, and leaves errors of the medium as they are.
func indexError(err error, off int64) error {
	if isDamage(err) {
		return badIndex(off, "%v", err)
	}
	return err
}

func badIndex(off int64, format string, args ...any) error {
	return corrupt("gzip index", off, format, args...)
}

func corrupt(part string, off int64, format string, args ...any) error {
	return &lsmt.CorruptError{Part: part, Offset: off, Detail: fmt.Sprintf(format, args...)}
}

func readFull(r io.ReaderAt, part string, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupt(part, off+int64(n), "the file ends here, %d bytes too early", len(p)-n)
	}
	return err
}
