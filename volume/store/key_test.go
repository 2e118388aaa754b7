package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
)

func TestKeyRules(t *testing.T) {
	long := strings.Repeat("s", store.MaxSegment)
	full := strings.Repeat(long+"/", 4) // 1024 bytes with the last slash
	for _, c := range []struct {
		name, key string
		valid     bool
	}{
		{"plain", "v1/volumes/acme/0192-x_Y.z/fffffffffffffffe", true},
		{"one segment", "a", true},
		{"underscore alone", "v1/names/_/x", true},
		{"longest segment", long, true},
		{"longest key", full[:store.MaxKey-1], true},
		{"segment too long", long + "s", false},
		{"key too long", full + "ab", false},
		{"empty", "", false},
		{"slash first", "/a", false},
		{"slash last", "a/", false},
		{"two slashes", "a//b", false},
		{"dot", "a/./b", false},
		{"dot dot", "a/../b", false},
		{"leading dot", ".tmp/x", false},
		{"space", "a b", false},
		{"NUL", "a\x00b", false},
		{"backslash", `a\b`, false},
		{"not ASCII", "ä", false},
		{"glob", "a*", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, "ValidKey", store.ValidKey(c.key), c.key, c.valid)
			if c.valid && len(c.key) < store.MaxKey {
				check(t, "ValidPrefix", store.ValidPrefix(c.key+"/"), c.key+"/", true)
			}
		})
	}
}

func TestPrefixRules(t *testing.T) {
	for prefix, valid := range map[string]bool{
		"": true, "a/": true, "a/b/": true,
		"/": false, "a": false, "a//": false, ".tmp/": false, "../": false,
	} {
		check(t, "ValidPrefix", store.ValidPrefix(prefix), prefix, valid)
	}
}

// check also looks at what the error carries.
func check(t *testing.T, fn string, err error, key string, valid bool) {
	t.Helper()
	if valid {
		if err != nil {
			t.Errorf("%s(%q): %v", fn, key, err)
		}
		return
	}
	var ke *store.KeyError
	if !errors.Is(err, store.ErrInvalidKey) || !errors.As(err, &ke) || ke.Key != key || ke.Reason == "" {
		t.Errorf("%s(%q): %v, want a *KeyError with key and reason", fn, key, err)
	}
	if len(err.Error()) > 300 {
		t.Errorf("%s: a message of %d bytes", fn, len(err.Error()))
	}
}
