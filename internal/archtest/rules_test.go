package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// expect checks that exactly the wanted problems are found, each given by a part of its text.
func expect(t *testing.T, problems []string, want ...string) {
	t.Helper()
	if len(problems) != len(want) {
		t.Errorf("problems %q, want %d", problems, len(want))
		return
	}
	for i, w := range want {
		if !strings.Contains(problems[i], w) {
			t.Errorf("problem %q, want %q", problems[i], w)
		}
	}
}

func TestWrongArrowsAreFound(t *testing.T) {
	for _, c := range []struct{ dir, imported, want string }{
		{"overlaybd", module + "/overlaybd/lsmt", ""},
		{"overlaybd/lsmt", module + "/overlaybd/zfile", ""},
		{"overlaybd/lsmt", module + "/volume/store", "imports volume/store"},
		{"overlaybd", module + "/reservation", "imports reservation"},
		{"overlaybd", module + "/overlaybd/image", "large dependency"},
		{"overlaybd/image", module + "/overlaybd/lsmt", ""},
		{"reservation", module + "/overlaybd", "imports overlaybd"},
		{"volume/store/memstore", module + "/volume/store", ""},
		{"volume/store", module + "/volume", "imports volume"},
		{"volume/store/posixstore", module + "/volume/genlog", "imports volume/genlog"},
		{"volume/genlog", module + "/volume/store", ""},
		{"volume/genlog", module + "/volume/internal/record", "imports volume/internal/record"},
		{"volume", module + "/volume/internal/record", ""},
		{"volume", module + "/volume/genlog", ""},
		{"volume/internal/record", module + "/reservation", ""},
		{"volume", module + "/mount", "imports mount"},
		{"volume", module + "/volume/store/s3store", "large dependency"},
		{"mount", module + "/volume", ""},
		{"mount", module + "/volume/store", "imports volume/store"},
		{"mount", module + "/mount/fuse", "large dependency"},
		{"mount/fuse", module + "/mount", ""},
		{"mount", module + "/internal/crashfs", "imports internal/crashfs"},
		{"e2bhttp", module + "/mount", ""},
		{"e2bhttp", module + "/volume/genlog", "imports volume/genlog"},
		{"k8sadapter", module + "/e2bhttp", "imports e2bhttp"},
		{"examples/quickstart", module + "/mount/fuse", ""},
		{"examples/quickstart", module + "/internal/crashfs", "which users cannot"},
		{"internal/crashfs", module + "/volume/store", ""},
		{".", "fmt", "not one of the module's packages"},
		{"volumes", "fmt", "not one of the module's packages"},
	} {
		var want []string
		if c.want != "" {
			want = []string{c.want}
		}
		t.Run(c.dir+" to "+c.imported, func(t *testing.T) { expect(t, Imports(c.dir, []string{c.imported}), want...) })
	}
}

func TestLargeDependenciesOutsideTheirHomeAreFound(t *testing.T) {
	for dependency, homes := range map[string][2]string{
		"github.com/aws/aws-sdk-go-v2/service/s3":             {"volume/store/s3store", "volume/store/posixstore"},
		"github.com/hanwen/go-fuse/v2/fuse":                   {"mount/fuse", "mount"},
		"github.com/google/go-containerregistry/pkg/v1/empty": {"overlaybd/image", "overlaybd"},
		"github.com/containerd/containerd/v2/core/mount":      {"mount", "volume"},
		"k8s.io/client-go/dynamic":                            {"k8sadapter", "e2bhttp"},
		"sigs.k8s.io/yaml":                                    {"k8sadapter", "mount"},
		"net/http":                                            {"e2bhttp/client", "volume"},
	} {
		expect(t, Imports(homes[0], []string{dependency}))
		expect(t, Imports(homes[1], []string{dependency}), "which belongs in")
		expect(t, Imports("internal/crashfs", []string{dependency}))
	}
	expect(t, Imports("volume", []string{"k8s.iox/other", "net/http/httptest/x"}), "imports net/http/httptest/x")
}

func TestVagueNamesAreFound(t *testing.T) {
	expect(t, Name(Package{Dir: "mount/utils", Files: []File{{Package: "mountutils"}}}), "called utils")
	expect(t, Name(Package{Dir: "volume/x", Files: []File{{Package: "types_test"}, {Package: "types"}}}), "called types")
	expect(t, Name(Package{Dir: "volume/store", Files: []File{{Package: "store"}}}))
}

func TestForeignNamesAtTheRootAreFound(t *testing.T) {
	expect(t, TopLevel([]string{"go.mod", "volume", "pkg", "notes.txt"}), "pkg", "notes.txt")
}

func TestExamplesWithoutMainAreFound(t *testing.T) {
	packages := []Package{
		{Dir: "examples/a", Files: []File{{Name: "main.go"}}},
		{Dir: "examples/b", Files: []File{{Name: "b.go"}}},
	}
	expect(t, Examples(packages, []string{"a", "b", "c"}), "examples/b", "examples/c")
}

const documented = `// Package x does one thing.
package x

import "fmt"

// T is a type.
type T[S any] struct{ F fmt.Stringer }

// M is a method.
func (t *T[S]) M() {}

func (t *T[S]) Error() string { return "" }

func (t hidden) M() {}

type hidden struct{}

// Limits of something.
const (
	A = 1
	B = 2
)

var (
	// C: of its own.
	C int
)

// D and E share a comment.
var D, E int
`

const undocumented = `package x

type T struct{}

// Does something.
func (T) M() {}

// Is it?
func (T) Error() {}

func Error() {}

// Finder is close, but another word.
func Find() {}

const A = 1

var (
	B = 2
)

type (
	// Group comment of nobody.
	G int
)
`

func parsed(t *testing.T, name, source string) File {
	t.Helper()
	f, err := parse(name, []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMissingCommentsAreFound(t *testing.T) {
	expect(t, Docs(Package{Dir: "x", Files: []File{parsed(t, "doc.go", documented)}}))
	expect(t, Docs(Package{Dir: "x", Files: []File{parsed(t, "x.go", undocumented)}}),
		"no package comment", "of T ", "of M ", "of Error ", "of Error ", "of Find ", "of A ", "of B ", "of G ")
	// A package comment elsewhere does not count, except in a command.
	expect(t, Docs(Package{Dir: "x", Files: []File{parsed(t, "x.go", documented)}}), "no package comment")
	command := parsed(t, "main.go", "// Command x does one thing.\npackage main\n\nfunc Exported() {}\n")
	expect(t, Docs(Package{Dir: "examples/x", Files: []File{command}}))
	expect(t, Docs(Package{Dir: "x", Files: []File{parsed(t, "x_test.go", undocumented)}}))
}

func TestLongAndUnformattedCodeIsFound(t *testing.T) {
	long := parsed(t, "long.go", "package x\n\nfunc f() {\n"+strings.Repeat("\tg()\n", 99)+"}\n")
	expect(t, Sizes(Package{Dir: "x", Files: []File{long}}), "f has 101 lines")
	long.Test = true
	expect(t, Sizes(Package{Dir: "x", Files: []File{long}}))
	expect(t, Sizes(Package{Dir: "x", Files: []File{
		parsed(t, "a.go", "package x\n"+strings.Repeat("\n// c\n", 300)),
		parsed(t, "a_test.go", "package x\n"+strings.Repeat("\n// c\n", 450)),
		parsed(t, "b_test.go", "package x\n"+strings.Repeat("\n// c\n", 449)),
		parsed(t, "c.go", "package x\nvar  a int\n"),
	}}), "a.go: 601 lines", "a_test.go: 901 lines", "c.go: not formatted")
}

func TestLoadFindsPackagesAndSkipsNestedModules(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/a.go": "package a\n\nimport \"fmt\"\n", "a/b/b_test.go": "package b_test\n", "a/testdata/x.go": "not go",
		"tools/go.mod": "module tools\n", "tools/main.go": "not go", ".hidden/x.go": "not go", "_x/x.go": "not go",
		"docs/page.md": "",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packages, err := Load(dir)
	if err != nil || len(packages) != 2 || packages[0].Dir != "a" || packages[1].Dir != "a/b" {
		t.Fatalf("packages %+v, %v", packages, err)
	}
	if a, b := packages[0].Files[0], packages[1].Files[0]; len(a.Imports) != 1 || a.Test || !b.Test {
		t.Errorf("files %+v and %+v", a, b)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "bad.go"), []byte("package"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a file that does not parse is passed over")
	}
}
