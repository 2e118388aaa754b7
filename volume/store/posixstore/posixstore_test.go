package posixstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/internal/crashfs"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/posixstore"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

func TestMain(m *testing.M) { crashfs.Main(m) }

func open(t testing.TB, dir string) *posixstore.Store {
	t.Helper()
	s, err := posixstore.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPosixstoreIsAStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB) (a, b store.Store) {
		dir := t.TempDir()
		return open(t, dir), open(t, dir)
	})
}

func TestPosixstoreOverCrashfsIsAStore(t *testing.T) {
	t.Parallel()
	disk := crashfs.New(t)
	storetest.RunQuick(t, func(t testing.TB) (a, b store.Store) {
		disk.Erase()
		return open(t, disk.Dir()), open(t, disk.Dir())
	})
}

func TestNewMakesItsRootPrivate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	open(t, root)
	fi, err := os.Stat(root)
	must(t, err)
	if fi.Mode() != fs.ModeDir|0o700 {
		t.Errorf("mode of a new root is %s", fi.Mode())
	}
	// An existing one is left as it is.
	must(t, os.Chmod(root, 0o755))
	open(t, root)
	if fi, _ = os.Stat(root); fi.Mode() != fs.ModeDir|0o755 {
		t.Errorf("mode of an old root is %s", fi.Mode())
	}
}

func TestNewRefusesWhatCannotBeARoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, root := range []string{"", file, filepath.Join(file, "below"), filepath.Join(t.TempDir(), "no", "parent")} {
		if _, err := posixstore.New(root); err == nil {
			t.Errorf("New(%q) succeeded", root)
		}
	}
}

func TestKeyCannotBeADirectory(t *testing.T) {
	s := open(t, t.TempDir())
	must(t, s.PutIfAbsent(t.Context(), "a/b", nil))
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		var ke *store.KeyError
		if err := s.PutIfAbsent(t.Context(), key, nil); !errors.As(err, &ke) || ke.Key != key {
			t.Errorf("put %s: %v, want a *KeyError", key, err)
		}
	}
}

func TestForeignFilesAreNotKeys(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	must(t, s.PutIfAbsent(t.Context(), "d/key", nil))
	for _, dir := range []string{"lost+found/x", ".snapshot/d", "d/.nfs/x", "d/empty/deep"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(root, "d/.nfs0001"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(root, "d/core dump"), nil, 0o600))
	must(t, os.Symlink("key", filepath.Join(root, "d/symlink")))
	entries, err := storetest.Collect(s.List(t.Context(), "", "", 0))
	must(t, err)
	var keys []string
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	dirs, err := storetest.Collect(s.Dirs(t.Context(), "", "", 0))
	must(t, err)
	if diff := cmp.Diff([][]string{{"d/key"}, {"d"}}, [][]string{keys, dirs}); diff != "" {
		t.Errorf("keys and directories (-want +got):\n%s", diff)
	}
}

func TestFinishedWritesLeaveNoMarks(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	must(t, s.PutIfAbsent(t.Context(), "a/b/c/record", []byte("x")))
	must(t, s.PutBlob(t.Context(), "a/b/d/blob", store.BytesSource([]byte("x"))))
	if err := s.PutIfAbsent(t.Context(), "a/b/c/record", nil); !errors.Is(err, store.ErrExists) {
		t.Error(err)
	}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if fi.Mode()&fs.ModeSticky != 0 {
			t.Errorf("%s is marked as not durable", path)
		}
		if filepath.Dir(path) == filepath.Join(root, ".tmp") {
			t.Errorf("%s is left over", path)
		}
		return err
	}))
	must(t, s.Delete(t.Context(), "a/b/c/record"))
	must(t, s.Delete(t.Context(), "a/b/d/blob"))
	left, err := os.ReadDir(root)
	must(t, err)
	if len(left) != 1 || left[0].Name() != ".tmp" {
		t.Errorf("left in the root after all keys were deleted: %v", left)
	}
}

func TestDeletedBlobIsReadToItsEnd(t *testing.T) {
	s := open(t, t.TempDir())
	must(t, s.PutBlob(t.Context(), "d/blob", store.BytesSource([]byte("content"))))
	b, err := s.OpenBlob(t.Context(), "d/blob")
	must(t, err)
	defer b.Close()
	_, err = b.Size(t.Context())
	must(t, err)
	must(t, s.Delete(t.Context(), "d/blob"))
	p := make([]byte, 7)
	if n, err := b.ReadRange(t.Context(), p, 0); n != 7 || err != nil || string(p) != "content" {
		t.Errorf("%d, %v, %q", n, err, p)
	}
}

// A shared directory that is not mounted looks empty. Nothing in it may be taken for absent.
func TestAStoreThatIsNotMountedIsNotEmpty(t *testing.T) {
	for name, replace := range map[string]func(string) error{
		"missing": func(string) error { return nil },
		"empty":   func(root string) error { return os.Mkdir(root, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "shared")
			s, err := posixstore.New(root)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if err := s.PutIfAbsent(ctx, "a/b", []byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(root, root+".away"), replace(root)); err != nil {
				t.Fatal(err)
			}
			_, getErr := s.Get(ctx, "a/b")
			_, listErr := storetest.Collect(s.List(ctx, "a/", "", 0))
			_, dirsErr := storetest.Collect(s.Dirs(ctx, "", "", 0))
			for op, err := range map[string]error{"get": getErr, "list": listErr, "dirs": dirsErr,
				"put": s.PutIfAbsent(ctx, "c/d", nil), "delete": s.Delete(ctx, "a/b")} {
				if missing := (*posixstore.MissingError)(nil); !errors.As(err, &missing) || errors.Is(err, store.ErrNotExist) {
					t.Errorf("%s: %v, want a MissingError", op, err)
				}
			}
			_ = os.Remove(root)
			if err := os.Rename(root+".away", root); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Get(ctx, "a/b"); err != nil || string(got) != "x" {
				t.Errorf("back again: %q, %v", got, err)
			}
		})
	}
}
