package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the module's, from here.
const root = "../.."

func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		check(t, err)
		all = append(all, found...)
	}
	return all
}

var link = regexp.MustCompile(`\]\(([^)#]+)\)`)

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		check(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
		}
	}
}

// the permissions that each exposer needs. A-119: no new volumes while versions are mixed.
func TestOperationsSayWhatIsNeededAndWhatToAvoid(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	check(t, err)
	words := strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{
		"`mount/fuse` | `/dev/fuse`", "an ordinary user", "`/dev/loop-control`", "do not create volumes", "`minWriter`",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("docs/operations.md does not say %q", want)
		}
	}
}
