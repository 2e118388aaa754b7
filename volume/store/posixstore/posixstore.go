package posixstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/volume/store"
)

const (
	tmpName = ".tmp" // no key can begin with a dot
	dirMode = 0o700
	// staleTemp is the age at which New takes a temporary file for a dead writer's. A live one that is this slow fails,
	// and may try again.
	staleTemp = 24 * time.Hour
)

// Store is a store.Store in a directory. Make one with New. It holds no file open and needs no Close.
type Store struct {
	root string
	tmp  string
}

var _ store.Store = (*Store)(nil)

// Option changes how New opens a store.
type Option func(*options)

type options struct {
	uncheckedNFS bool
}

// WithUncheckedNFS accepts an NFS mount whatever its options are, for a directory that only one machine ever uses.
func WithUncheckedNFS() Option { return func(o *options) { o.uncheckedNFS = true } }

// New opens the store in the directory root, which is made if it is absent; its parent must exist. It fails with a
// *MountError on an NFS mount that caches.
func New(root string, opts ...Option) (*Store, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if root == "" {
		return nil, errors.New("posixstore: root is empty, must name a directory")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("posixstore: root: %w", err)
	}
	s := &Store{root: root, tmp: filepath.Join(root, tmpName)}
	if err := s.prepare(o); err != nil {
		return nil, fmt.Errorf("posixstore: open %s: %w", root, err)
	}
	// Room only: what cannot be cleaned now is no reason to refuse the store, and CleanTemp names it.
	_, _ = s.CleanTemp(context.Background(), staleTemp)
	return s, nil
}

// prepare checks what the store will be on, and makes its directories.
func (s *Store) prepare(o options) error {
	if !o.uncheckedNFS {
		if err := checkMount(s.root); err != nil {
			return err
		}
	}
	if err := makeRoot(s.root); err != nil {
		return err
	}
	return makeRoot(s.tmp)
}

// makeRoot makes a directory unless there is one, and makes sure that a power cut does not take it away.
func makeRoot(dir string) error {
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory but %s", dir, fi.Mode())
	}
	// Also when it was there: another process may have made it a moment ago and not have come this far. A parent that
	// may not be read has been set up by someone else, before any of us.
	if err := syncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

func (s *Store) path(key string) string { return filepath.Join(s.root, filepath.FromSlash(key)) }

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := begin(ctx, key); err != nil {
		return nil, opError("get", key, err)
	}
	f, fi, err := s.open(key)
	if err != nil {
		return nil, opError("get", key, err)
	}
	defer f.Close()
	body := make([]byte, fi.Size())
	if _, err := f.ReadAt(body, 0); err != nil {
		return nil, opError("get", key, err)
	}
	return body, nil
}

// open opens what is stored under a key, and makes sure that it is durable before anybody acts on it.
func (s *Store) open(key string) (*os.File, fs.FileInfo, error) {
	path := s.path(key)
	f, err := openPlain(path)
	if err != nil {
		return nil, nil, s.notStored(err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		// A directory of other keys is no record.
		err = store.ErrNotExist
	}
	if err == nil {
		// When its directory is gone by now, so is the record.
		err = s.notStored(s.settle(path, fi))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// openPlain opens a file or directory for reading. os.Open also asks the kernel to poll it, which no file or directory can
// be: for a small record that takes longer than reading it.
func openPlain(path string) (*os.File, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func begin(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return store.ValidKey(key)
}

// isAbsent reports whether the file system said that there is nothing at a path: no such file or directory, or a file
// where a directory should be.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// notStored gives the absence of a file its class, once it is sure that the store itself is there.
func (s *Store) notStored(err error) error {
	if !isAbsent(err) {
		return err
	}
	if err := s.present(); err != nil {
		return err
	}
	return store.ErrNotExist
}

// MissingError says that the shared directory is not what it was when the store was opened: a file system that is not
// mounted leaves an empty directory, in which nothing is stored and nothing may be taken for absent.
type MissingError struct {
	Root string
	Err  error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("the shared directory %s is missing or not mounted: %v", e.Root, e.Err)
}

// Unwrap returns the cause.
func (e *MissingError) Unwrap() error { return e.Err }

// present tells a key that is not stored from a store that is not there. Its own directory is in it from the start.
func (s *Store) present() error {
	if _, err := os.Lstat(s.tmp); err != nil {
		return &MissingError{Root: s.root, Err: err}
	}
	return nil
}

func opError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	// An invalid key is in its own error, shortened if need be.
	if errors.Is(err, store.ErrInvalidKey) {
		return fmt.Errorf("posixstore: %s: %w", op, err)
	}
	return fmt.Errorf("posixstore: %s %s: %w", op, key, err)
}
