package blockcache

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
)

const (
	// ChunkSize is how much of a layer is fetched, kept and evicted at a time, in bytes.
	ChunkSize = 256 << 10
	blockSize = 4 << 10
	blocks    = ChunkSize / blockSize

	mapVersion  = 1
	headerSize  = 36
	entriesFrom = 64
	entrySize   = 4 + 4*blocks
)

var (
	mapMagic   = []byte("sandvolc")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// errMap: a map that is damaged, of another version or of another layer. It is as good as none.
var errMap = errors.New("not a map of this layer")

// sums are the checksums of a chunk's blocks; 0 for those behind the end of the layer.
type sums [blocks]uint32

// sumsOf computes the checksums of a chunk's bytes.
func sumsOf(p []byte) (s sums) {
	for i := 0; len(p) > 0; i++ {
		n := min(len(p), blockSize)
		s[i] = crc32.Checksum(p[:n], castagnoli)
		p = p[n:]
	}
	return s
}

func encodeHeader(size int64, verified bool) []byte {
	b := make([]byte, headerSize)
	copy(b, mapMagic)
	binary.LittleEndian.PutUint32(b[8:], mapVersion)
	binary.LittleEndian.PutUint32(b[12:], ChunkSize)
	binary.LittleEndian.PutUint32(b[16:], blockSize)
	if verified {
		binary.LittleEndian.PutUint32(b[20:], 1)
	}
	binary.LittleEndian.PutUint64(b[24:], uint64(size))
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	return b
}

// readHeader returns whether the layer was verified, or errMap.
func readHeader(r io.ReaderAt, size int64) (verified bool, err error) {
	b := make([]byte, headerSize)
	if _, err := r.ReadAt(b, 0); err != nil {
		return false, errMap
	}
	for _, v := range []bool{false, true} {
		if string(b) == string(encodeHeader(size, v)) {
			return v, nil
		}
	}
	return false, errMap
}

func encodeEntry(b []byte, chunk int64, s *sums) {
	for i, v := range s {
		binary.LittleEndian.PutUint32(b[4+4*i:], v)
	}
	binary.LittleEndian.PutUint32(b, entryCheck(chunk, b))
}

// entryCheck covers the chunk's number, so that an entry that landed in another's place is none.
func entryCheck(chunk int64, b []byte) uint32 {
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(chunk))
	c := crc32.Update(crc32.Checksum(number[:], castagnoli), castagnoli, b[4:entrySize])
	return max(c, 1) // 0 is what a hole in the file reads as
}

// decodeEntry returns false for a chunk that is not kept, and for an entry that is torn or damaged.
func decodeEntry(b []byte, chunk int64) (s sums, ok bool) {
	check := binary.LittleEndian.Uint32(b)
	if check == 0 || check != entryCheck(chunk, b) {
		return s, false
	}
	for i := range s {
		s[i] = binary.LittleEndian.Uint32(b[4+4*i:])
	}
	return s, true
}

func entryAt(chunk int64) int64 { return entriesFrom + chunk*entrySize }

// writeEntries writes the entries of chunks that lie side by side.
func writeEntries(f *os.File, first int64, all []sums) error {
	b := make([]byte, len(all)*entrySize)
	for i := range all {
		encodeEntry(b[i*entrySize:(i+1)*entrySize], first+int64(i), &all[i])
	}
	_, err := f.WriteAt(b, entryAt(first))
	return err
}

var noEntry [entrySize]byte

func clearEntry(f *os.File, chunk int64) error {
	_, err := f.WriteAt(noEntry[:], entryAt(chunk))
	return err
}

// eachEntry calls yield with the chunks that a map says are kept. A map that ends early has no more of them.
func eachEntry(r io.ReaderAt, n int64, yield func(chunk int64, s sums)) error {
	const batch = 256
	b := make([]byte, batch*entrySize)
	for first := int64(0); first < n; first += batch {
		p := b[:min(batch, n-first)*entrySize]
		got, err := r.ReadAt(p, entryAt(first))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(p[got:])
		for i := int64(0); i*entrySize < int64(len(p)); i++ {
			if s, ok := decodeEntry(p[i*entrySize:(i+1)*entrySize], first+i); ok {
				yield(first+i, s)
			}
		}
	}
	return nil
}

func chunksOf(size int64) int64 { return (size + ChunkSize - 1) / ChunkSize }
