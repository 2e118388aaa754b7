package genlog

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestGoldenKey(t *testing.T) {
	for n, want := range map[uint64]string{
		1:              "v1/format/fffffffffffffffe",
		2:              "v1/format/fffffffffffffffd",
		0x123:          "v1/format/fffffffffffffedc",
		math.MaxUint64: "v1/format/0000000000000000",
	} {
		if got := Key("v1/format/", n); got != want {
			t.Errorf("Key(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestKeysSortNewestFirstAndParseBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint64Min(1).Draw(t, "a")
		b := rapid.Uint64Min(1).Draw(t, "b")
		if (a > b) != (Key("p/", a) < Key("p/", b)) {
			t.Fatalf("%d and %d sort wrongly", a, b)
		}
		if prefix, n, ok := ParseKey(Key("p/q/", a)); !ok || prefix != "p/q/" || n != a {
			t.Fatalf("ParseKey = %q %d %v, want p/q/ %d", prefix, n, ok, a)
		}
	})
}

func TestParseKeyRefusesEveryOtherSpelling(t *testing.T) {
	for _, key := range []string{
		"", "p/", "p/fffffffffffffff", "p/0fffffffffffffffe", "p/FFFFFFFFFFFFFFFE", "p/+ffffffffffffffe",
		"p/ffffffffffffffff", "p/fffffffffffffffe/", "p/fffffffffffffffe.tmp", "p/ffffffffffff_ffe",
	} {
		if prefix, n, ok := ParseKey(key); ok {
			t.Errorf("ParseKey(%q) = %q %d", key, prefix, n)
		}
	}
}
