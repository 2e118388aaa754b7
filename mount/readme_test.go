package mount_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	shown, _, found := strings.Cut(rest, "```")
	if body := exampleBody(t); !found || shown != body {
		t.Errorf("README.md shows\n%s\nthe example is\n%s", shown, body)
	}
}

// exampleBody is the code of the function embed, without its indentation.
func exampleBody(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(source), "func embed(ctx context.Context, shared, local string) {\n")
	body, _, found := strings.Cut(rest, "\n}\n")
	if !found {
		t.Fatal("no function embed in example_test.go")
	}
	var b strings.Builder
	for line := range strings.Lines(body + "\n") {
		b.WriteString(strings.TrimPrefix(line, "\t"))
	}
	return b.String()
}

func TestExampleRuns(t *testing.T) {
	requireKernelMounts(t)
	dir := t.TempDir()
	embed(t.Context(), filepath.Join(dir, "shared"), filepath.Join(dir, "local"))
	if left := mountsBelow(t, dir); len(left) > 0 {
		t.Errorf("still mounted: %q", left)
	}
}
