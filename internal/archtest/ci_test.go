package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// what decides about a change formats, vets, lints, builds without cgo, and runs every test with the race detector, in
// random order, with coverage, and with no real part left out.
func TestCIValidatesEverything(t *testing.T) {
	for file, wants := range map[string][]string{
		"run":      {"gofmt -l .", "go vet ./...", "staticcheck ./...", "go mod tidy -diff", "CGO_ENABLED=0 go build ./...", "SANDVOL_REQUIRE_REAL=1 bash .ci/test"},
		"test":     {"-race", "-shuffle=on", "-cover", "./...", "bash .ci/packages"},
		"packages": {"apt-get install"},
	} {
		script, err := os.ReadFile(filepath.Join("..", "..", ".ci", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(script), want) {
				t.Errorf(".ci/%s does not have %q", file, want)
			}
		}
		if !strings.Contains(string(script), "set -euo pipefail") {
			t.Errorf(".ci/%s goes on after a failure", file)
		}
	}
}
