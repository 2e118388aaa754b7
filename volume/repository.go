package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/blockcache"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
)

// Repository is a node's handle on everything that the nodes share, and on the node's own directory. Its methods, and those
// of the Managers and Sessions it hands out, may be called concurrently.
type Repository struct {
	store   store.Store
	dir     string
	tmp     string // same file system as dir; emptied at Open, as far as that succeeds
	node    string
	engine  *overlaybd.Engine
	journal *journal.Journal
	layers  *layerCache
	disk    *localDisk
	gate    *formatGate
	bases   *baseCache
	settings

	lock *os.File

	// background runs what must not delay a request; Close cancels and waits for it.
	background context.Context
	stop       context.CancelFunc
	running    sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions map[volumeKey]*Session
	// grants has every open session by its grant's id: one that does not know yet that its volume went to somebody else may
	// stand beside another of the same volume.
	grants  map[string]*Session
	locks   keyedLocks
	readers readers

	lostDrive chan struct{} // wakes whoever keeps what lost drives hold
	beats     heartbeats
	peers     peers
}

type volumeKey struct{ tenant, volume string }

// Open opens a repository, creating what is missing in the store and in the node's directory. It fails if another process
// uses the directory, or if the repository was written by a version that this one cannot read.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Repository, error) {
	s := settings{log: slog.New(slog.DiscardHandler), clock: time.Now,
		compactAbove: compactAbove, compactTo: compactTo, nodeLife: nodeLife{heartbeat: defaultHeartbeat},
		local: localSettings{fetchLimit: blockcache.DefaultFetchLimit}}
	for _, opt := range opts {
		opt(&s)
	}
	if err := errors.Join(cfg.check(), s.checkCompaction(), s.local.check(), s.nodeLife.check()); err != nil {
		return nil, err
	}
	r := &Repository{store: cfg.Store, dir: cfg.Dir, node: cfg.Node, settings: s, sessions: map[volumeKey]*Session{},
		grants: map[string]*Session{}, lostDrive: make(chan struct{}, 1)}
	r.background, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.bases = &baseCache{known: map[string]copied{}}
	r.disk = newLocalDisk(s.local.budget)
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open repository on node %s: %w", cfg.Node, err), r.Close())
	}
	return r, nil
}

func (c Config) check() error {
	if c.Store == nil {
		return fmt.Errorf("%w: config: Store is missing", ErrInvalid)
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("%w: config: Dir %q: must be an absolute path", ErrInvalid, c.Dir)
	}
	return record.CheckID("config: Node", c.Node)
}

func (r *Repository) open(ctx context.Context) (err error) {
	if err = makeDir(r.dir); err != nil {
		return err
	}
	if r.lock, err = lockDir(r.dir); err != nil {
		return err
	}
	if r.journal, err = journal.Open(filepath.Join(r.dir, "journal")); err != nil {
		return err
	}
	if r.layers, err = openLayerCache(filepath.Join(r.dir, "layers"), r.store, r.settings); err != nil {
		return err
	}
	if r.engine, err = overlaybd.New(overlaybd.Config{Open: r.layers.open}, r.settings.engine...); err != nil {
		return err
	}
	// What an earlier process was making for itself, or had left to remove, is of no use to anybody.
	r.tmp = filepath.Join(r.dir, "tmp")
	if err := os.RemoveAll(r.tmp); err != nil {
		r.log.Warn("local clean-up", "dir", r.tmp, "error", err)
	}
	if err = os.MkdirAll(r.tmp, 0o700); err != nil {
		return err
	}
	r.gate = newFormatGate(r.store, r.clock)
	if err = r.gate.establish(ctx, r.clock(), r.dir); err != nil {
		return err
	}
	if r.local.budget > 0 {
		r.measure() // before anything is fetched
		r.goBackground(r.watchDisk)
	}
	r.startLife(ctx)
	return nil
}

// makeDir makes a directory and those above it, durably: a power cut must not take away the name of a directory in which
// things are fsynced later.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeDir(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	// One that is there may be of a process that died before this.
	return journal.SyncDir(filepath.Dir(dir))
}

// lockDir keeps a second process from using the directory. The kernel drops the lock with the process, however it dies.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: another process uses directory %s", ErrInUse, dir)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Node returns the node's name.
func (r *Repository) Node() string { return r.node }

// Dir returns the node's own directory.
func (r *Repository) Dir() string { return r.dir }

// Close stops background work, closes every open drive after flushing it, and releases the directory. Volumes stay held by
// their owners: a later Open on the same directory finds them in the journal.
func (r *Repository) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	open := slices.Collect(maps.Values(r.grants))
	r.mu.Unlock()

	r.stop()
	var err error
	for _, s := range open {
		err = errors.Join(err, s.Close())
	}
	r.running.Wait()
	if r.layers != nil {
		err = errors.Join(err, r.layers.close())
	}
	if r.lock != nil {
		err = errors.Join(err, r.lock.Close())
	}
	return err
}

// owned runs f for callers who may be gone before it returns; its context ends when the repository closes, and Close waits
// for it.
func (r *Repository) owned(f func(context.Context) error) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return fmt.Errorf("repository on node %s: %w", r.node, overlaybd.ErrClosed)
	}
	r.running.Add(1)
	r.mu.Unlock()
	defer r.running.Done()
	return f(r.background)
}

// goBackground runs f until it returns; its context ends when the repository closes.
func (r *Repository) goBackground(f func(context.Context)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.running.Go(func() { f(r.background) })
}

func (r *Repository) logOptions() []genlog.Option {
	return []genlog.Option{
		genlog.WithGate(r.gate.check),
		genlog.WithClock(r.clock),
		genlog.WithBackground(r.goBackground),
	}
}

func (r *Repository) volumeLog(tenant, id string) *genlog.Log[record.Volume] {
	return genlog.New[record.Volume](r.store, volumesPrefix+tenant+"/"+id+"/", r.logOptions()...)
}

func (r *Repository) checkpointLog(tenant, id string) *genlog.Log[record.Checkpoint] {
	return genlog.New[record.Checkpoint](r.store, checkpointsPrefix+tenant+"/"+id+"/", r.logOptions()...)
}

func (r *Repository) nameLog(tenant, name string) *genlog.Log[record.Name] {
	return genlog.New[record.Name](r.store, namesPrefix+tenant+"/"+name+"/", r.logOptions()...)
}

func (r *Repository) runLog() *genlog.Log[record.Run] {
	return genlog.New[record.Run](r.store, runsPrefix, r.logOptions()...)
}
