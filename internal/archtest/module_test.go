package archtest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

const root = "../.."

var loadOnce = sync.OnceValues(func() ([]Package, error) { return Load(root) })

func loadModule(t *testing.T) []Package {
	t.Helper()
	packages, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 5 {
		t.Fatalf("found only %d packages under %s", len(packages), root)
	}
	return packages
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// names returns what is in a directory of the module.
func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, p := range loadModule(t) {
		var imports []string
		found := false
		for _, f := range p.Files {
			if !f.Test {
				imports, found = append(imports, f.Imports...), true
			}
		}
		if found {
			report(t, Imports(p.Dir, imports))
		}
	}
}

func TestPackagesAreNamedForWhatTheyHold(t *testing.T) {
	for _, p := range loadModule(t) {
		report(t, Name(p))
	}
}

func TestExportedNamesAndPackagesAreDocumented(t *testing.T) {
	for _, p := range loadModule(t) {
		report(t, Docs(p))
	}
}

func TestFilesAndFunctionsAreFormattedAndShort(t *testing.T) {
	for _, p := range loadModule(t) {
		report(t, Sizes(p))
	}
}

func TestTopLevelHoldsOnlyWhatBelongsThere(t *testing.T) {
	report(t, TopLevel(names(t, ".")))
}

func TestEveryExampleIsACommand(t *testing.T) {
	report(t, Examples(loadModule(t), names(t, "examples")))
}
