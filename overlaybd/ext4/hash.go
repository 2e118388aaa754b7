package ext4

import "math/bits"

// nameHash is the hash that orders the names of an indexed directory: half an MD4, seeded, with bytes taken as unsigned.
// The low bit is kept free for the index, and the two largest values mean the end of a directory.
func nameHash(seed [4]uint32, name string) (major, minor uint32) {
	state := seed
	if state == ([4]uint32{}) {
		state = [4]uint32{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476}
	}
	for first := true; first || len(name) > 0; first = false {
		in := hashWords(name)
		halfMD4(&state, &in)
		name = name[min(len(name), 32):]
	}
	major, minor = state[1]&^1, state[2]
	const end = 0x7FFFFFFF << 1
	if major == end {
		major = end - 2
	}
	return major, minor
}

// hashWords is up to 32 bytes of a name, big-endian, filled up with the number of bytes that are left.
func hashWords(name string) (words [8]uint32) {
	pad := uint32(len(name)) | uint32(len(name))<<8
	pad |= pad << 16
	for i := range words {
		words[i] = pad
		for j := 4 * i; j < 4*i+4 && j < len(name); j++ {
			words[i] = words[i]<<8 | uint32(name[j])
		}
	}
	return words
}

func halfMD4(state *[4]uint32, in *[8]uint32) {
	choose := func(x, y, z uint32) uint32 { return z ^ x&(y^z) }
	most := func(x, y, z uint32) uint32 { return x&y + (x^y)&z }
	parity := func(x, y, z uint32) uint32 { return x ^ y ^ z }
	s := *state
	round := func(f func(x, y, z uint32) uint32, constant uint32, order [8]int, shifts [4]int) {
		for i, word := range order {
			// The four registers take turns: a, d, c, b.
			a, b, c, d := -i&3, (1-i)&3, (2-i)&3, (3-i)&3
			s[a] = bits.RotateLeft32(s[a]+f(s[b], s[c], s[d])+in[word]+constant, shifts[i&3])
		}
	}
	round(choose, 0, [8]int{0, 1, 2, 3, 4, 5, 6, 7}, [4]int{3, 7, 11, 19})
	round(most, 0x5A827999, [8]int{1, 3, 5, 7, 0, 2, 4, 6}, [4]int{3, 5, 9, 13})
	round(parity, 0x6ED9EBA1, [8]int{3, 7, 2, 6, 1, 5, 0, 4}, [4]int{3, 9, 11, 15})
	for i := range s {
		state[i] += s[i]
	}
}
