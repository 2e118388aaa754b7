package archtest

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Package is one directory of Go files.
type Package struct {
	// Dir is relative to the module's root, with slashes; "." is the root.
	Dir   string
	Files []File
}

// File is what the rules need to know of one Go file.
type File struct {
	Name string
	// Package is the name in the package clause.
	Package string
	Test    bool
	// Doc is the package comment.
	Doc     string
	Imports []string
	Lines   int
	// Formatted says that gofmt would not change the file.
	Formatted bool
	Funcs     []Func
	// Exported are the exported declarations of the package's top level.
	Exported []Exported
}

// Func is one function or method with its length in lines.
type Func struct {
	Name  string
	Lines int
}

// Exported is one exported name with the comment that documents it.
type Exported struct {
	Name string
	Doc  string
	// Group says that Doc belongs to a group of constants or variables.
	Group  bool
	Method bool
}

// Load reads the module whose root is given, nested modules and testdata excepted.
func Load(root string) ([]Package, error) {
	byDir := map[string]*Package{}
	var dirs []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return enter(root, name, d.Name())
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		file, err := load(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		if byDir[dir] == nil {
			byDir[dir] = &Package{Dir: dir}
			dirs = append(dirs, dir)
		}
		byDir[dir].Files = append(byDir[dir].Files, file)
		return nil
	})
	var packages []Package
	for _, dir := range dirs {
		packages = append(packages, *byDir[dir])
	}
	return packages, err
}

// enter says whether the go command would look into a directory.
func enter(root, name, base string) error {
	if name == root {
		return nil
	}
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func load(name string) (File, error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return File{}, err
	}
	return parse(filepath.Base(name), source)
}

// parse reads one file.
func parse(name string, source []byte) (File, error) {
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return File{}, err
	}
	formatted, err := format.Source(source)
	if err != nil {
		return File{}, err
	}
	f := File{
		Name:      name,
		Package:   syntax.Name.Name,
		Test:      strings.HasSuffix(name, "_test.go"),
		Doc:       syntax.Doc.Text(),
		Lines:     bytes.Count(source, []byte("\n")),
		Formatted: bytes.Equal(source, formatted),
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return File{}, err
		}
		f.Imports = append(f.Imports, imported)
	}
	for _, decl := range syntax.Decls {
		f.add(fset, decl)
	}
	return f, nil
}

// add notes what decl declares.
func (f *File) add(fset *token.FileSet, decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		lines := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line + 1
		f.Funcs = append(f.Funcs, Func{Name: d.Name.Name, Lines: lines})
		if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
			f.Exported = append(f.Exported, Exported{Name: d.Name.Name, Doc: d.Doc.Text(), Method: d.Recv != nil})
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			f.addSpec(d, spec)
		}
	}
}

func (f *File) addSpec(d *ast.GenDecl, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		doc := s.Doc
		if !d.Lparen.IsValid() {
			doc = d.Doc
		}
		if s.Name.IsExported() {
			f.Exported = append(f.Exported, Exported{Name: s.Name.Name, Doc: doc.Text()})
		}
	case *ast.ValueSpec:
		e := Exported{Doc: s.Doc.Text()}
		switch {
		case e.Doc == "" && d.Lparen.IsValid():
			e.Doc, e.Group = d.Doc.Text(), true
		case e.Doc == "":
			e.Doc = d.Doc.Text()
		}
		for _, name := range s.Names {
			if e.Name = name.Name; name.IsExported() {
				f.Exported = append(f.Exported, e)
				e.Group = true // one comment for several names can begin with only one of them
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(t ast.Expr) string {
	switch x := t.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
