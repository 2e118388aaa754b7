package ext4

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumStart is the register before the first byte of a checksum that has no other seed.
const checksumStart = ^uint32(0)

// checksum continues a CRC-32C as ext4 and its journal do: the register itself goes in and out, where the usual form, and
// Go's, invert it at both ends. That is what lets one checksum be the seed of the next.
func checksum(register uint32, p []byte) uint32 { return ^crc32.Update(^register, castagnoli, p) }

// checksum32 continues a checksum with a number in little-endian order.
func checksum32(register, v uint32) uint32 {
	var b [4]byte
	le.PutUint32(b[:], v)
	return checksum(register, b[:])
}

// inodeSeed starts every checksum that belongs to an inode. Generations are zero in all that a Writer makes.
func inodeSeed(seed, ino uint32) uint32 { return checksum32(checksum32(seed, ino), 0) }
