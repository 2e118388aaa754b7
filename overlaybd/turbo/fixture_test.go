package turbo

import (
	"encoding/binary"
	"hash/crc32"
)

// fixHeader makes sizes and checksum of an index what they must be, so that what is behind them is looked at.
func fixHeader(b []byte, gzipSize int) {
	le := binary.LittleEndian
	copy(b, indexMagic)
	le.PutUint64(b[offGzipSize:], uint64(gzipSize))
	le.PutUint64(b[offIndexSize:], uint64(len(b)))
	if table := le.Uint64(b[offTable:]); table <= uint64(len(b)) {
		le.PutUint64(b[offTableBytes:], uint64(len(b))-table)
	}
	le.PutUint32(b[indexCRC:], ^crc32.Update(^uint32(0), castagnoli, b[:indexCRC]))
}
