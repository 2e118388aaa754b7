package volume_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
)

// what is durable is done. A node that cannot remove its own files says so in its log, and neither the pause,
// the release nor the delete after it fails, nor the next use of the volume.
func TestLocalCleanUpFailureIsLoggedAndNothingMore(t *testing.T) {
	for _, end := range []string{"pause", "release"} {
		t.Run(end, func(t *testing.T) {
			w := newWorld(t)
			var log bytes.Buffer
			w.opts = append(w.opts, volume.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			m := w.node("a")
			v := create(t, m, volume.CreateOptions{})
			s := attach(t, m, v.ID, "sb")
			write(t, s.Device(), 8192, 'x')
			undeletable(t, drives(t, m)[0])
			if end == "pause" {
				pause(t, s)
				release(t, attach(t, m, v.ID, "sb"))
			} else {
				release(t, s)
			}
			if !contains(log.String(), "local clean-up", v.ID, "level=WARN") {
				t.Errorf("log %q", log.String())
			}
			if pending, bad := m.Repository().Journal(); len(pending)+len(bad) > 0 {
				t.Errorf("journal %v %v", pending, bad)
			}
			m = w.restart(m)
			reads(t, w.st, get(t, m, v.ID), map[int64]byte{8192: 'x'})
			ok(t, m.Delete(t.Context(), v.ID))
		})
	}
}

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// undeletable makes a drive's directory, or what is in it, one that cannot be removed until the test ends.
func undeletable(t *testing.T, dir string) {
	t.Helper()
	busy := filepath.Join(dir, "busy")
	ok(t, os.Mkdir(busy, 0o700))
	if os.Geteuid() == 0 {
		f := must[*os.File](t)(os.Open(busy))
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable)
		}
		if err != nil {
			missing(t, "immutable files", err)
		}
		t.Cleanup(func() { mutable(t, filepath.Dir(filepath.Dir(filepath.Dir(dir))), flags) })
		return
	}
	ok(t, os.Mkdir(filepath.Join(busy, "file"), 0o700))
	ok(t, os.Chmod(busy, 0o500))
	t.Cleanup(func() { mutable(t, filepath.Dir(filepath.Dir(filepath.Dir(dir))), 0) })
}

// mutable finds the directory again, wherever it was moved, and takes the protection away.
func mutable(t *testing.T, root string, flags int) {
	t.Helper()
	for _, pattern := range []string{"drives/*/*/busy", "tmp/*/busy"} {
		for _, path := range must[[]string](t)(filepath.Glob(filepath.Join(root, pattern))) {
			f := must[*os.File](t)(os.Open(path))
			if os.Geteuid() == 0 {
				ok(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags))
			}
			ok(t, errors.Join(f.Chmod(0o700), f.Close()))
		}
	}
}

// missing ends a test that needs a real part of the machine: as skipped, or as failed where it is to be there.
func missing(t *testing.T, part string, err error) {
	t.Helper()
	if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
		t.Fatalf("%s: %v", part, err)
	}
	t.Skipf("no %s here: %v", part, err)
}

// What a process that dies while it cleans up leaves behind goes at the next start.
func TestLeftoversGoAtTheNextStart(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	dir := m.Repository().Dir()
	s := attach(t, m, create(t, m, volume.CreateOptions{}).ID, "sb")
	release(t, s)
	ok(t, os.MkdirAll(filepath.Join(dir, "tmp", "forgotten-x", "data"), 0o700))
	ok(t, os.WriteFile(filepath.Join(dir, "layers", ".fetch-1"), []byte("half"), 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "journal", ".new-1"), []byte("{"), 0o600))
	w.restart(m)
	for _, pattern := range []string{"tmp/*", "layers/.fetch*", "journal/*", "drives/*/*"} {
		if left := must[[]string](t)(filepath.Glob(filepath.Join(dir, pattern))); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	}
}

// a journal entry that cannot be read, damaged or newer, is reported and never removed. Until somebody has looked at
// it the volume is not asked for again here, since its directory may hold the only copy of something.
func TestUnreadableJournalEntryIsReportedAndKept(t *testing.T) {
	for name, body := range map[string]string{
		"damaged": `{"format":1,"kind":"gra`, "newer": `{"format":99,"kind":"grant"}`, "empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.node("a")
			v := create(t, m, volume.CreateOptions{})
			s := attach(t, m, v.ID, "sb")
			write(t, s.Device(), 8192, 'x')
			ok(t, s.Device().Flush())
			ok(t, s.Close())
			entry := must[[]string](t)(filepath.Glob(filepath.Join(m.Repository().Dir(), "journal", "*.json")))[0]
			whole := must[[]byte](t)(os.ReadFile(entry))
			ok(t, os.WriteFile(entry, []byte(body), 0o600))
			m = w.restart(m)
			pending, bad := m.Repository().Journal()
			if len(pending) != 0 || len(bad) != 1 || !contains(bad[0].Error(), filepath.Base(entry)) {
				t.Fatalf("journal %v %v", pending, bad)
			}
			for what, err := range map[string]error{
				"attach": second(m.Attach(t.Context(), v.ID, "sb")),
				"reopen": second(m.Reopen(t.Context(), v.ID, "sb")),
				"undo":   m.Undo(t.Context(), v.ID, "sb"),
			} {
				if err == nil {
					t.Errorf("%s passes over it", what)
				}
			}
			if got := must[[]byte](t)(os.ReadFile(entry)); string(got) != body || len(drives(t, m)) != 1 {
				t.Error("it was changed, or the drive was removed")
			}
			ok(t, os.WriteFile(entry, whole, 0o600)) // a version that can read it
			m = w.restart(m)
			s = must[*volume.Session](t)(m.Reopen(t.Context(), v.ID, "sb"))
			if at(t, s.Device(), 8192) != 'x' {
				t.Error("what was flushed is gone")
			}
			release(t, s)
			if got := get(t, m, v.ID).Reservation.Phase; got != reservation.Free {
				t.Errorf("the volume is %s", got)
			}
		})
	}
}
