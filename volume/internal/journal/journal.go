package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/reservation"
)

// Format is the number written into each entry; it only rises.
const Format = 1

// Kind is what an entry is about.
type Kind string

// Grant: the right to write a volume. Pin: a read-only mount. Child and Checkpoint: one that is being made for a sandbox's
// drive set.
const (
	Grant      Kind = "grant"
	Pin        Kind = "pin"
	Child      Kind = "child"
	Checkpoint Kind = "checkpoint"
)

var kinds = []Kind{Grant, Pin, Child, Checkpoint}

// Entry is what the node must remember about one volume of one sandbox, from before it asks the repository until after it
// has given the volume back.
type Entry struct {
	Format  int    `json:"format"`
	Kind    Kind   `json:"kind"`
	Tenant  string `json:"tenant"`
	Volume  string `json:"volume"`
	Sandbox string `json:"sandbox"`
	// ID is the grant id, the pin's nonce, or the id of what is being made. It names the entry.
	ID string `json:"id"`
	// Dir holds the drive's local layers, relative to the node's directory. Grants only.
	Dir string `json:"dir,omitzero"`
	// From is the phase that the volume is acquired from: what Recover goes back to.
	From reservation.Phase `json:"from,omitzero"`
	// Undoing: the acquire is being undone, or the pin removed, and that may land late. So it is not continued any more.
	Undoing bool `json:"undoing,omitzero"`
	// Epoch is 0 until the acquire is known to have landed.
	Epoch uint64 `json:"epoch,omitzero"`
	// Sealed is the cut that was sealed and is not published yet.
	Sealed *Cut `json:"sealed,omitzero"`
	// Uploads binds declared keys to sealed layers, by layer uuid, before the first byte is sent.
	Uploads map[string]Upload `json:"uploads,omitempty"`
	// Spent are keys that were bound to bytes which nobody will refer to. They may hold those bytes, so that nothing else may
	// be sent under them.
	Spent []string `json:"spent,omitempty"`
	// Takes is set in a takeover: the epoch that the volume is taken from. It is part of a grant like any other.
	Takes uint64 `json:"takes,omitzero"`
	// Lost says why the volume does not belong to this entry any more. The local layers are kept.
	Lost string `json:"lost,omitzero"`
	// Salvage is how far the volume that keeps a lost drive's unpublished writes has come; nil if there is none yet.
	Salvage *Salvage  `json:"salvage,omitzero"`
	At      time.Time `json:"at"`

	Extra jsontext.Value `json:",embed"`
}

// Cut is one freeze: what was sealed under it belongs together. Final: the device takes no more writes. Then: what is to
// happen to the reservation when it is published.
type Cut struct {
	ID          string         `json:"id"`
	Consistency string         `json:"consistency"`
	Final       bool           `json:"final,omitzero"`
	At          time.Time      `json:"at"`
	Extra       jsontext.Value `json:",embed"`
}

// Salvage is a volume that keeps what a lost drive holds. Its id is here before it exists.
type Salvage struct {
	Volume string `json:"volume"`
	// Uploads binds the volume's declared keys to sealed layers, by layer uuid, before the first byte is sent.
	Uploads map[string]Upload `json:"uploads,omitempty"`
	// Ready: everything is kept. Only then the stack that it stands on may go.
	Ready bool `json:"ready,omitzero"`

	Extra jsontext.Value `json:",embed"`
}

// Upload is the binding of a declared key to one sealed layer's bytes.
type Upload struct {
	Key    string `json:"key"`
	Writer string `json:"writer"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`

	Extra jsontext.Value `json:",embed"`
}

// Journal keeps entries in one directory, one file each. One process uses it, so what it has read stays true.
type Journal struct {
	dir string

	mu      sync.Mutex
	entries map[string]Entry
	bad     []error
}

// UnreadableError names an entry that this version cannot read. The file is left where it is.
type UnreadableError struct {
	Path string
	Err  error
}

func (e *UnreadableError) Error() string { return fmt.Sprintf("journal entry %s: %v", e.Path, e.Err) }

func (e *UnreadableError) Unwrap() error { return e.Err }

// Open creates the directory if it is missing, durably.
func Open(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	// The directory's own name must survive a power cut before the first entry in it counts.
	if err := SyncDir(filepath.Dir(dir)); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &Journal{dir: dir, entries: map[string]Entry{}}
	return j, j.load()
}

func (j *Journal) load() error {
	names, err := os.ReadDir(j.dir)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	for _, n := range names {
		path := filepath.Join(j.dir, n.Name())
		if strings.HasPrefix(n.Name(), temporary) {
			// An entry that was never finished: its Put did not return.
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("open journal: %w", err)
			}
			continue
		}
		e, err := read(path)
		if err == nil && n.Name() != e.ID+suffix {
			err = fmt.Errorf("it is entry %s under another name", e.ID) // a copy that somebody made may be older than the entry
		}
		if err != nil {
			j.bad = append(j.bad, &UnreadableError{Path: n.Name(), Err: err})
			continue
		}
		j.entries[e.ID] = e
	}
	return nil
}

// temporary begins the name of a file that is not an entry yet.
const temporary = ".new-"

// suffix ends the name of an entry, which begins with its id.
const suffix = ".json"

func (j *Journal) path(id string) string { return filepath.Join(j.dir, id+suffix) }

// Put writes the entry, replacing an earlier one of the same id. When it returns nil the entry survives a power cut.
func (j *Journal) Put(e Entry) error {
	e.Format = max(e.Format, Format)
	body, err := json.Marshal(e, json.Deterministic(true), jsontext.Multiline(true))
	if err != nil {
		return fmt.Errorf("encode journal entry %s: %w", e.ID, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := ReplaceFile(j.path(e.ID), body); err != nil {
		return fmt.Errorf("write journal entry %s: %w", e.ID, err)
	}
	j.entries[e.ID] = e
	return nil
}

// Remove forgets an entry, durably. Forgetting what is not there is success.
func (j *Journal) Remove(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.entries, id)
	if err := os.Remove(j.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove journal entry %s: %w", id, err)
	}
	// An entry that a power cut brings back would be decided again, and by then others have had the volume: a pin that was
	// handed over would be removed, and a drive that was given back be reported as lost.
	if err := SyncDir(j.dir); err != nil {
		return fmt.Errorf("remove journal entry %s: %w", id, err)
	}
	return nil
}

// Get returns the entry of an id.
func (j *Journal) Get(id string) (Entry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[id]
	return e, ok
}

// Find returns the oldest entry that matches, and whether there is one, with an UnreadableError for each entry that cannot be
// read. Unlike All it neither copies nor sorts: a node that has thousands of mounts looks for one of them at every mount.
func (j *Journal) Find(match func(Entry) bool) (found Entry, ok bool, bad []error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.entries {
		if match(e) && (!ok || order(e, found) < 0) {
			found, ok = e, true
		}
	}
	return found, ok, slices.Clone(j.bad)
}

// order sorts entries by age; the id decides between those of one moment.
func order(a, b Entry) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) }

// All returns the readable entries, oldest first, and an UnreadableError for each other one.
func (j *Journal) All() ([]Entry, []error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	entries := slices.Collect(maps.Values(j.entries))
	slices.SortFunc(entries, order)
	return entries, slices.Clone(j.bad)
}

func read(path string) (Entry, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(body, &e); err != nil {
		return Entry{}, err
	}
	if e.Format > Format {
		return Entry{}, fmt.Errorf("format %d is newer than %d", e.Format, Format)
	}
	if e.ID == "" || e.Volume == "" || e.Tenant == "" || e.Sandbox == "" || !slices.Contains(kinds, e.Kind) {
		return Entry{}, errors.New("id, volume, tenant, sandbox or kind is missing")
	}
	return e, nil
}
