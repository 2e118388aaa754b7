// Package archtest keeps the shape of the module as a test: which package may import which, where a large dependency
// may be used, what a package is called and what it documents, and how large files and functions grow.
//
// Load reads every Go file of the module by its syntax alone, whatever its build constraints. The rules are pure
// functions over what Load returns, so that each is also tested with a tree that breaks it.
package archtest
