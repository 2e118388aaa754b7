package genlog

import (
	"fmt"
	"strconv"
	"strings"
)

// digits is the length of a generation's name. The complement of a 64-bit number always fills it, so names sort as
// numbers.
const digits = 16

// Key returns the key of generation n, 1 or more, in the log under prefix.
func Key(prefix string, n uint64) string {
	return fmt.Sprintf("%s%0*x", prefix, digits, ^n)
}

// ParseKey splits a generation's key into the log's prefix, which ends in a slash, and the number. It reports false
// for a key that Key does not make.
func ParseKey(key string) (prefix string, n uint64, ok bool) {
	cut := strings.LastIndexByte(key, '/') + 1
	prefix, name := key[:cut], key[cut:]
	complement, err := strconv.ParseUint(name, 16, 64)
	// ParseUint also takes upper-case digits, signs and other lengths: compare with the one spelling.
	if n = ^complement; err != nil || n == 0 || Key(prefix, n) != key {
		return "", 0, false
	}
	return prefix, n, true
}
