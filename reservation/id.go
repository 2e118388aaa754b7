package reservation

import "unicode/utf8"

// Limits of what a caller names.
const (
	// MaxID is the length of the longest identifier, in bytes.
	MaxID = 128
	// MaxReason is the length of the longest reason of a takeover, in bytes.
	MaxReason = 1024

	idRule     = "must match ^[A-Za-z0-9_-]{1,128}$"
	reasonRule = "must be 1 to 1024 bytes of UTF-8"
)

// ValidID reports whether s may name a grant, an owner or a node: 1 to MaxID letters, digits, underscores and hyphens
// of ASCII. Hosts encode other forms.
func ValidID(s string) bool {
	if len(s) == 0 || len(s) > MaxID {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

func (g Grant) validate() error {
	for _, f := range []struct{ field, value string }{{"grant id", g.ID}, {"owner", g.Owner}, {"node", g.Node}} {
		if !ValidID(f.value) {
			return &InvalidError{Field: f.field, Value: f.value, Limit: idRule}
		}
	}
	return nil
}

func validateReason(reason string) error {
	if reason == "" || len(reason) > MaxReason || !utf8.ValidString(reason) {
		return &InvalidError{Field: "reason", Value: reason, Limit: reasonRule}
	}
	return nil
}
