package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Limits in lines.
const (
	maxFile     = 600
	maxTestFile = 900
	maxFunc     = 100
)

// vague are names that say nothing about what a package holds.
var vague = []string{
	"util", "utils", "common", "helper", "helpers", "types", "models", "consts", "misc", "base",
}

// topLevel is what the repository may hold at its root.
var topLevel = []string{
	"volume", "mount", "reservation", "overlaybd", "e2bhttp", "k8sadapter", "examples", "internal", "docs",
	".ci", ".git", ".gitignore", "go.mod", "go.sum",
	"README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile",
}

// TopLevel checks the names at the root of the repository.
func TopLevel(names []string) (problems []string) {
	for _, name := range names {
		if !slices.Contains(topLevel, name) {
			problems = append(problems, fmt.Sprintf("%s: does not belong at the root of the repository", name))
		}
	}
	return problems
}

// Name checks what a package is called.
func Name(p Package) (problems []string) {
	names := []string{path.Base(p.Dir)}
	for _, f := range p.Files {
		names = append(names, strings.TrimSuffix(f.Package, "_test"))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if slices.Contains(vague, name) {
			problems = append(problems, fmt.Sprintf("%s: a package called %s says nothing about what it holds", p.Dir, name))
		}
	}
	return problems
}

// plain are methods whose name says it all: the standard library fixes what they do.
var plain = []string{"Error", "Is", "As", "Unwrap", "String"}

// Docs checks that a package has its comment in doc.go (a command may have it in main.go), and that each exported name
// has one that begins with it. A group of constants or variables may share one.
func Docs(p Package) (problems []string) {
	files := slices.DeleteFunc(slices.Clone(p.Files), func(f File) bool { return f.Test })
	if len(files) == 0 {
		return nil
	}
	command := files[0].Package == "main"
	if !slices.ContainsFunc(files, func(f File) bool {
		return f.Doc != "" && (f.Name == "doc.go" || command && f.Name == "main.go")
	}) {
		problems = append(problems, fmt.Sprintf("%s: no package comment in doc.go", p.Dir))
	}
	if command {
		return problems
	}
	for _, f := range files {
		for _, e := range f.Exported {
			if e.Doc == "" && e.Method && slices.Contains(plain, e.Name) {
				continue
			}
			if e.Doc == "" || !e.Group && !begins(e.Doc, e.Name) {
				problems = append(problems, fmt.Sprintf("%s/%s: the comment of %s does not begin with its name",
					p.Dir, f.Name, e.Name))
			}
		}
	}
	return problems
}

// begins reports whether a comment's first word is name.
func begins(doc, name string) bool {
	rest, ok := strings.CutPrefix(doc, name)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], " \n:,.'"))
}

// Sizes checks that files and functions are short enough to be read at a time, and formatted.
func Sizes(p Package) (problems []string) {
	for _, f := range p.Files {
		limit := maxFile
		if f.Test {
			limit = maxTestFile
		}
		if f.Lines > limit {
			problems = append(problems, fmt.Sprintf("%s/%s: %d lines, limit %d", p.Dir, f.Name, f.Lines, limit))
		}
		if !f.Formatted {
			problems = append(problems, fmt.Sprintf("%s/%s: not formatted by gofmt", p.Dir, f.Name))
		}
		for _, fn := range f.Funcs {
			if fn.Lines > maxFunc && !f.Test {
				problems = append(problems, fmt.Sprintf("%s/%s: %s has %d lines, limit %d",
					p.Dir, f.Name, fn.Name, fn.Lines, maxFunc))
			}
		}
	}
	return problems
}

// Examples checks that each directory right below examples is a command.
func Examples(packages []Package, names []string) (problems []string) {
	for _, name := range names {
		dir := "examples/" + name
		if !slices.ContainsFunc(packages, func(p Package) bool {
			return p.Dir == dir && slices.ContainsFunc(p.Files, func(f File) bool { return f.Name == "main.go" })
		}) {
			problems = append(problems, fmt.Sprintf("%s: has no main.go", dir))
		}
	}
	return problems
}
