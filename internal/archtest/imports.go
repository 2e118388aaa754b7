package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// module is the import path of the module.
const module = "github.com/sandvol/sandvol"

// arrows says what each unit may import of the module besides itself. A unit is a directory with all below it, as far
// as they are not units of their own.
var arrows = map[string][]string{
	"overlaybd":     {},
	"reservation":   {},
	"volume/store":  {},
	"volume/genlog": {"volume/store"},
	"volume":        {"reservation", "overlaybd", "volume/store", "volume/genlog"},
	"mount":         {"volume", "volume/genlog", "reservation", "overlaybd"},
	"e2bhttp":       {"volume", "mount"},
	"k8sadapter":    {"volume", "mount"},
}

// adapters are the packages that carry a large dependency. Only examples, which choose, and tests import them: whoever
// does not use one does not link it.
var adapters = []string{"volume/store/s3store", "mount/fuse", "overlaybd/image", "k8sadapter"}

// homes says which directories may import a large dependency. All others go through what these offer.
var homes = map[string][]string{
	"github.com/aws":                         {"volume/store/s3store"},
	"github.com/hanwen/go-fuse":              {"mount/fuse"},
	"github.com/google/go-containerregistry": {"overlaybd/image"},
	"github.com/containerd":                  {"mount", "overlaybd/image"},
	"github.com/prometheus":                  {"e2bhttp/metrics", "k8sadapter/metrics"},
	"k8s.io":                                 {"k8sadapter"},
	"sigs.k8s.io":                            {"k8sadapter"},
	// A server belongs in e2bhttp alone. The others are clients.
	"net/http": {"e2bhttp", "volume/store/s3store", "overlaybd/image", "k8sadapter", "mount/guest"},
}

// Imports checks the non-test imports of one directory of the module: the arrows, the adapters and the homes of large
// dependencies. Examples may import anything public, and internal packages serve tests only.
func Imports(dir string, imports []string) (problems []string) {
	free := within(dir, "internal") || within(dir, "examples")
	if !free && unit(dir) == "" {
		return []string{fmt.Sprintf("%s: not one of the module's packages", dir)}
	}
	for _, imported := range imports {
		own, ours := strings.CutPrefix(imported, module+"/")
		switch {
		case ours && free:
			if within(dir, "examples") && strings.Contains(own+"/", "internal/") {
				problems = append(problems, fmt.Sprintf("%s: imports %s, which users cannot", dir, own))
			}
		case ours:
			problems = append(problems, arrow(dir, own)...)
		case !free:
			problems = append(problems, home(dir, imported)...)
		}
	}
	return problems
}

// arrow checks that dir may import own, both of this module.
func arrow(dir, own string) (problems []string) {
	from, to := unit(dir), unit(own)
	if from != to && !slices.Contains(arrows[from], to) {
		problems = append(problems, fmt.Sprintf("%s: imports %s; of the module, %s may import %v",
			dir, own, from, arrows[from]))
	}
	for _, adapter := range adapters {
		if within(own, adapter) && !within(dir, adapter) {
			problems = append(problems, fmt.Sprintf("%s: imports %s, which links a large dependency", dir, own))
		}
	}
	return problems
}

// home checks that dir may import a package from outside the module.
func home(dir, imported string) (problems []string) {
	for dependency, dirs := range homes {
		if within(imported, dependency) && !slices.ContainsFunc(dirs, func(h string) bool { return within(dir, h) }) {
			problems = append(problems, fmt.Sprintf("%s: imports %s, which belongs in %v", dir, imported, dirs))
		}
	}
	return problems
}

// unit returns the unit that a directory belongs to, or "" if it belongs to none.
func unit(dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, ok := arrows[dir]; ok {
			return dir
		}
	}
	return ""
}

// within reports whether a directory or import path is parent or lies below it.
func within(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }
