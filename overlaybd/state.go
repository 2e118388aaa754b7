package overlaybd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd/internal/disk"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// stateFormat is the number of the layout of state.json. It only rises.
const stateFormat = 1

// Names in a Writable's directory. A log or layer with uuid u has its data in u.data, sealed or not.
const (
	stateName   = "state.json"
	lockName    = "lock"
	dataExt     = ".data"
	indexExt    = ".index"
	pendingExt  = ".pending"
	tempStateAs = stateName + ".tmp"
)

// localState is what a directory holds. It changes as a whole: the file is replaced, never rewritten.
type localState struct {
	Format int          `json:"format"`
	Uppers []localLayer `json:"uppers"` // topmost first: one, two during a roll, none after a final seal
	Sealed []localLayer `json:"sealed"` // bottom first
}

// localLayer names a log or a sealed layer in the directory.
type localLayer struct {
	UUID   uuid.UUID `json:"uuid"`
	Parent uuid.UUID `json:"parent"` // uuid of the layer below when it was made
	Lowers int       `json:"lowers"` // number of layers below when it was made
	// Published: a published stack had it when the directory was opened. It must not go on top of a later stack that does
	// not name it any more because it was merged with layers above it.
	Published bool `json:"published,omitzero"`
}

// stateDir is the directory of one Writable, locked.
type stateDir struct {
	path string
	lock *os.File
}

// openStateDir makes the directory if there is none, and locks it. The lock goes with the descriptor, so a process
// that is killed leaves none behind.
func openStateDir(path string) (*stateDir, error) {
	if err := makeDir(filepath.Clean(path)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, errors.Join(err, f.Close())
	}
	return &stateDir{path: path, lock: f}, nil
}

// makeDir makes a directory, and those above it, whose name a power cut does not take, and every flush in it with it.
// One that is there already may have been made just before a crash.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeDir(filepath.Dir(path)); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return disk.SyncDir(filepath.Dir(path))
}

func (d *stateDir) close() error { return d.lock.Close() }

func (d *stateDir) file(name string) string { return filepath.Join(d.path, name) }

func (d *stateDir) logPaths(id uuid.UUID) lsmt.LogPaths {
	base := d.file(id.String())
	return lsmt.LogPaths{Data: base + dataExt, Index: base + indexExt, Pending: base + pendingExt}
}

// load reads the state; a directory without one is new.
func (d *stateDir) load() (localState, error) {
	b, err := os.ReadFile(d.file(stateName))
	if errors.Is(err, os.ErrNotExist) {
		return localState{Format: stateFormat}, nil
	}
	if err != nil {
		return localState{}, err
	}
	var s localState
	if err := json.Unmarshal(b, &s); err != nil {
		return localState{}, &lsmt.CorruptError{Part: stateName, Detail: err.Error()}
	}
	if s.Format > stateFormat {
		return localState{}, lsmt.Invalid("format of "+d.file(stateName), s.Format, fmt.Sprintf("at most %d", stateFormat))
	}
	if s.Format < 1 || len(s.Uppers) > 2 {
		return localState{}, &lsmt.CorruptError{Part: stateName,
			Detail: fmt.Sprintf("format %d with %d uppers", s.Format, len(s.Uppers))}
	}
	return s, nil
}

// save makes the state durable. When it fails the old state is still there, or already the new one; both describe files
// that exist, because files are made before the state names them and removed after it stops to.
func (d *stateDir) save(s localState) (err error) {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temp := d.file(tempStateAs)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync() // the name must not reach the disk before the bytes
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, d.file(stateName)); err != nil {
		return err
	}
	if err := disk.SyncDir(d.path); err != nil {
		// Which of the two states a power cut would leave is unknown, and a second fsync would not tell.
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return nil
}

// tidy removes files of logs and layers that the state does not name, and index files of layers that are sealed: a
// crash between two changes left them.
func (d *stateDir) tidy(s localState) error {
	keep := map[string]bool{}
	for _, l := range s.Sealed {
		keep[l.UUID.String()+dataExt] = true
	}
	for _, l := range s.Uppers {
		for _, ext := range []string{dataExt, indexExt, pendingExt} {
			keep[l.UUID.String()+ext] = true
		}
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		stem, ext, _ := strings.Cut(name, ".")
		_, notUUID := uuid.Parse(stem)
		ours := notUUID == nil && (ext == dataExt[1:] || ext == indexExt[1:] || ext == pendingExt[1:] ||
			ext == indexExt[1:]+lsmt.RewriteExt)
		if ours && !keep[name] || name == tempStateAs {
			if err := os.Remove(d.file(name)); err != nil {
				return err
			}
		}
	}
	return nil
}
