package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount"
)

// files is content as files on a mounted file system.
type files struct {
	tree  *tree
	print *printer
	sums  [][sha256.Size]byte // by entry: of the file, or of where the link points to
}

// top is where the tree is below a drive's mount point.
func top(d mount.Drive) string { return filepath.Join(d.Target, "tree") }

func (f *files) fill(ctx context.Context, d mount.Drive) (string, error) {
	f.sums = make([][sha256.Size]byte, len(f.tree.entries))
	var sum [sha256.Size]byte
	if err := os.Mkdir(top(d), 0o755); err != nil {
		return "", err
	}
	h := sha256.New()
	done, bytes := 0, int64(0)
	for i, e := range f.tree.entries {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		h.Reset()
		n, err := f.put(filepath.Join(top(d), e.name), e, h)
		if err != nil {
			return "", err
		}
		copy(f.sums[i][:], h.Sum(sum[:0]))
		if e.mode.IsRegular() {
			done, bytes = done+1, bytes+n
			f.print.progress(done, f.tree.files, bytes)
		}
	}
	return fmt.Sprintf("%s files, %s", countText(done), bytesText(bytes)), nil
}

// put copies one entry to a path and adds its content to a hash.
func (f *files) put(to string, e entry, h hash.Hash) (n int64, err error) {
	switch {
	case e.mode.IsDir():
		return 0, os.Mkdir(to, 0o755)
	case !e.mode.IsRegular():
		target, err := os.Readlink(filepath.Join(f.tree.root, e.name))
		if err != nil {
			return 0, err
		}
		h.Write([]byte(target))
		return 0, os.Symlink(target, to)
	}
	in, err := f.tree.open(e)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, e.mode.Perm()|0o200)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, io.TeeReader(in, h))
	return n, errors.Join(err, out.Close())
}

func (f *files) prove(ctx context.Context, d mount.Drive) (string, error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	for i, e := range f.tree.entries {
		if gctx.Err() != nil {
			break // one that differs is enough
		}
		g.Go(func() error { return f.compare(gctx, top(d), i, e) })
	}
	// Nothing may be there that was not copied, either.
	g.Go(func() error { return f.countEntries(gctx, top(d)) })
	if err := g.Wait(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s files, each sha256 equal", countText(f.tree.files)), nil
}

// compare reads one entry and compares it with what was copied.
func (f *files) compare(ctx context.Context, root string, i int, e entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h := sha256.New()
	err := read(filepath.Join(root, e.name), e, h)
	if errors.Is(err, fs.ErrNotExist) || err == nil && [sha256.Size]byte(h.Sum(nil)) != f.sums[i] {
		what := "has other content"
		if err != nil {
			what = "is missing"
		}
		return &differenceError{e.name, what}
	}
	return err
}

func read(name string, e entry, h hash.Hash) error {
	switch {
	case e.mode.IsDir():
		_, err := os.Stat(name)
		return err
	case !e.mode.IsRegular():
		target, err := os.Readlink(name)
		h.Write([]byte(target))
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	// What the kernel remembers of the file proves nothing about the volume: forget it, and read the volume.
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	_, err = io.Copy(h, file)
	return err
}

func (f *files) countEntries(ctx context.Context, root string) error {
	n := -1 // the root itself
	err := filepath.WalkDir(root, func(_ string, _ fs.DirEntry, err error) error {
		n++
		return errors.Join(err, ctx.Err())
	})
	if err == nil && n != len(f.tree.entries) {
		err = &differenceError{root, fmt.Sprintf("holds %d entries, want %d", n, len(f.tree.entries))}
	}
	return err
}

// spoil overwrites every third file and deletes every third.
func (f *files) spoil(ctx context.Context, d mount.Drive) (string, error) {
	overwritten, deleted := 0, 0
	i := 0
	for _, e := range f.tree.entries {
		if !e.mode.IsRegular() {
			continue
		}
		name := filepath.Join(top(d), e.name)
		err := ctx.Err()
		switch {
		case err != nil:
		case i%3 == 0:
			err = os.WriteFile(name, []byte("changed in "+d.Volume+"\n"), 0o644)
			overwritten++
		case i%3 == 1:
			err = os.Remove(name)
			deleted++
		}
		if err != nil {
			return "", err
		}
		i++
	}
	return fmt.Sprintf("%s files overwritten, %s deleted", countText(overwritten), countText(deleted)), nil
}

func (f *files) refused(d mount.Drive) (string, error) {
	err := os.WriteFile(filepath.Join(top(d), "new"), nil, 0o644)
	if !errors.Is(err, unix.EROFS) {
		return "", fmt.Errorf("want EROFS from the kernel, got %w", noError(err))
	}
	return "EROFS: " + err.Error(), nil
}
