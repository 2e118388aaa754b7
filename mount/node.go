package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/semaphore"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
)

// Node runs the drives of the sandboxes on one node. Its methods may be called concurrently; those for one sandbox take
// turns.
type Node struct {
	repo    *volume.Repository
	exposer Exposer
	settings

	mu        sync.Mutex
	sandboxes map[ID]*sandbox
}

// Freezer brings a sandbox's file systems to rest, and the sandbox with them, so that all its drives can be cut at one
// moment; thaw lets it go on. The context bounds the freeze.
type Freezer func(ctx context.Context, id ID) (thaw func() error, err error)

// Option changes how a Node works.
type Option func(*settings)

type settings struct {
	maxDrives int
	closeWait time.Duration
	freezer   Freezer
	guest     func(ID) Guest
	root      func(ID) string
	kernel    KernelOptions
	log       *slog.Logger
	clock     func() time.Time
}

// WithMaxDrives sets how many drives a sandbox may have, DefaultMaxDrives by default.
func WithMaxDrives(n int) Option { return func(s *settings) { s.maxDrives = n } }

// WithCloseWait sets how long a device that is to go may still be open in the sandbox, 10 s by default. After that it is cut
// off: what the guest had not written through by then was never acknowledged to it.
func WithCloseWait(d time.Duration) Option { return func(s *settings) { s.closeWait = d } }

// WithFreezer sets how to bring a running sandbox to rest. Without it, cuts of running sandboxes whose file systems the node
// does not mount itself are marked as after a crash.
func WithFreezer(f Freezer) Option { return func(s *settings) { s.freezer = f } }

// WithKernelMounts mounts each drive's file system on this host's kernel, for sandboxes that share it: at the drive's path
// below root(id).
func WithKernelMounts(root func(ID) string, o KernelOptions) Option {
	return func(s *settings) { s.root, s.kernel = root, o }
}

// WithLogger sets where local clean-up failures are reported; the default discards them.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// NewNode returns the node of a repository whose drives are offered by an exposer. After a restart of the process, Recover
// is to be called before anything else.
func NewNode(repo *volume.Repository, exposer Exposer, opts ...Option) *Node {
	s := settings{maxDrives: DefaultMaxDrives, closeWait: 10 * time.Second, log: slog.New(slog.DiscardHandler), clock: time.Now}
	for _, opt := range opts {
		opt(&s)
	}
	return &Node{repo: repo, exposer: exposer, settings: s, sandboxes: map[ID]*sandbox{}}
}

// sandbox is what the node knows of one sandbox. Its fields are guarded by turn.
type sandbox struct {
	id      ID
	m       *volume.Manager
	log     *genlog.Log[DriveSet]
	turn    *semaphore.Weighted
	running bool // its drives are exposed
	claimed bool // it expires: whatever is still open is only to be flushed
	drives  []*drive
	cut     *volume.Cut  // of a pause or deletion that is not complete
	thaw    func() error // of a freeze that a pause keeps up; nil if there is none
}

// forget ends the node's part in a sandbox that has left it.
func (sb *sandbox) forget() {
	sb.drives, sb.running, sb.claimed, sb.cut, sb.thaw = nil, false, false, nil, nil
}

// enter gives the caller the sandbox's turn, and the sandbox's state, new or not.
func (n *Node) enter(ctx context.Context, id ID) (*sandbox, func(), error) {
	m, err := n.repo.Tenant(id.Tenant)
	if err != nil {
		return nil, nil, err
	}
	log, err := volume.OpenSandboxLog[DriveSet](m, id.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	n.mu.Lock()
	sb := n.sandboxes[id]
	if sb == nil {
		sb = &sandbox{id: id, m: m, log: log, turn: semaphore.NewWeighted(1)}
		n.sandboxes[id] = sb
	}
	n.mu.Unlock()
	if err := sb.turn.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	return sb, func() { n.leave(sb) }, nil
}

// leave ends the turn. The state of a sandbox that has nothing open here is kept too: it is small, and somebody may wait for
// the turn.
func (n *Node) leave(sb *sandbox) { sb.turn.Release(1) }

// do runs f when it is this call's turn with the sandbox.
func (n *Node) do(ctx context.Context, what string, id ID, f func(*sandbox) error) error {
	sb, leave, err := n.enter(ctx, id)
	if err == nil {
		defer leave()
		err = f(sb)
	}
	if err != nil {
		return fmt.Errorf("%s sandbox %s: %w", what, id, err)
	}
	return nil
}

func (n *Node) now() time.Time { return n.clock().UTC().Round(0) }

// Drives returns what a running sandbox has, in path order, or ErrNotFound if it does not run here.
func (n *Node) Drives(ctx context.Context, id ID) ([]Drive, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !sb.running {
		return nil, fmt.Errorf("%w: sandbox %s does not run on node %s", ErrNotFound, id, n.repo.Node())
	}
	return sb.list(), nil
}

// Set returns a sandbox's drive set as the repository has it, from any node, or ErrNotFound.
func (n *Node) Set(ctx context.Context, id ID) (DriveSet, error) {
	sb, leave, err := n.enter(ctx, id)
	if err != nil {
		return DriveSet{}, err
	}
	defer leave()
	return sb.read(ctx)
}

func (sb *sandbox) read(ctx context.Context) (DriveSet, error) {
	gen, err := sb.log.Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) || (err == nil && gen.State.Phase == Deleted) {
		return DriveSet{}, fmt.Errorf("%w: no sandbox %s", ErrNotFound, sb.id)
	}
	if err != nil {
		return DriveSet{}, fmt.Errorf("read the drive set of sandbox %s: %w", sb.id, err)
	}
	return gen.State, nil
}

// Close takes every drive away from its sandbox and closes it, after flushing. The sandboxes keep their volumes: Recover on
// a new Node with the same directory finds them. The repository and the exposer stay open.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	var all []*sandbox
	for _, sb := range n.sandboxes {
		all = append(all, sb)
	}
	n.mu.Unlock()
	errs := failures()
	for _, sb := range all {
		if err := sb.turn.Acquire(ctx, 1); err != nil {
			return multierror.Append(errs, err).ErrorOrNil()
		}
		if err := n.suspend(ctx, sb); err != nil {
			errs = multierror.Append(errs, fmt.Errorf("sandbox %s: %w", sb.id, err))
		}
		sb.turn.Release(1)
	}
	return errs.ErrorOrNil()
}
