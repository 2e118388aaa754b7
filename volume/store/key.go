package store

import (
	"fmt"
	"strings"
)

// Limits of a key, in bytes.
const (
	MaxKey     = 1024
	MaxSegment = 255
)

// KeyError says what is wrong with a key or prefix. It answers errors.Is for ErrInvalidKey.
type KeyError struct {
	// Key is the key or prefix as it was given.
	Key string
	// Reason is the rule that it breaks.
	Reason string
}

func (e *KeyError) Error() string {
	const shown = 80
	if len(e.Key) > shown {
		return fmt.Sprintf("store: invalid key %q (%d of %d bytes): %s", e.Key[:shown], shown, len(e.Key), e.Reason)
	}
	return fmt.Sprintf("store: invalid key %q: %s", e.Key, e.Reason)
}

// Is reports whether target is ErrInvalidKey.
func (e *KeyError) Is(target error) bool { return target == ErrInvalidKey }

// ValidKey returns nil for a key that follows the rules of the package comment, and a *KeyError otherwise.
func ValidKey(key string) error {
	if reason := keyFault(key); reason != "" {
		return &KeyError{Key: key, Reason: reason}
	}
	return nil
}

// ValidPrefix returns nil for a prefix that follows the rules of the package comment, and a *KeyError otherwise.
func ValidPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	dir, ok := strings.CutSuffix(prefix, "/")
	reason := "a prefix that is not empty must end in a slash"
	if ok {
		reason = keyFault(dir)
	}
	if reason != "" {
		return &KeyError{Key: prefix, Reason: reason}
	}
	return nil
}

// ValidSegment reports whether s may stand between the slashes of a key.
func ValidSegment(s string) bool { return segmentFault(s) == "" }

func keyFault(key string) string {
	if len(key) > MaxKey {
		return fmt.Sprintf("%d bytes, limit is %d", len(key), MaxKey)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if reason := segmentFault(segment); reason != "" {
			return reason
		}
	}
	return ""
}

func segmentFault(s string) string {
	switch {
	case s == "":
		return "a segment is empty"
	case len(s) > MaxSegment:
		return fmt.Sprintf("a segment has %d bytes, limit is %d", len(s), MaxSegment)
	case s[0] == '.':
		return "a segment begins with a dot"
	}
	for i := range len(s) {
		if !keyByte(s[i]) {
			return fmt.Sprintf("byte %#02x is not one of A-Z a-z 0-9 . _ -", s[i])
		}
	}
	return ""
}

func keyByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}
