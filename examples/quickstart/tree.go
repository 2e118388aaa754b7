package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// tree is the real data: directories, regular files and symbolic links below one directory.
type tree struct {
	root    string
	entries []entry // in walking order: a directory before what is in it
	files   int
	bytes   int64
	skipped int // sockets, devices and the like
}

type entry struct {
	name string // relative to the root
	mode fs.FileMode
	size int64
}

// scan lists a tree, without what is in some directories.
func scan(ctx context.Context, root string, without []string) (*tree, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	t := &tree{root: root}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == root {
			return err
		}
		if slices.Contains(without, name) {
			return filepath.SkipDir
		}
		return t.add(name, d)
	})
	if err == nil && t.files == 0 {
		err = fmt.Errorf("no file in %s", root)
	}
	if err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	return t, nil
}

func (t *tree) add(name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(t.root, name)
	if err != nil {
		return err
	}
	e := entry{name: rel, mode: info.Mode()}
	switch info.Mode().Type() {
	case 0:
		e.size = info.Size()
		t.files++
		t.bytes += e.size
	case fs.ModeDir, fs.ModeSymlink:
	default:
		t.skipped++
		return nil
	}
	t.entries = append(t.entries, e)
	return nil
}

func (t *tree) open(e entry) (*os.File, error) { return os.Open(filepath.Join(t.root, e.name)) }

// differenceError says where content is not what it should be.
type differenceError struct{ where, what string }

func (e *differenceError) Error() string { return e.where + ": " + e.what }
