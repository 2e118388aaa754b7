package volume_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// failer is what a check needs of a test: a testing.T or a rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// trouble is what becomes of one mutating request of a node.
type trouble struct {
	at    int // which request from now on, counted from 1; 0: none
	fault storetest.Fault
	stop  bool // the process dies with that request: every later one fails
	// outage: every later request of this step fails, and then the store is back.
	outage bool
}

func (x trouble) String() string {
	if x.at == 0 {
		return "no fault"
	}
	return fmt.Sprintf("request %d: %s, dies %t, outage %t", x.at, x.fault, x.stop, x.outage)
}

// nodeLine is a node's connection to the store: it can lose, delay and cut off requests.
type nodeLine struct {
	*storetest.FaultyStore

	mu   sync.Mutex
	next trouble
	dead bool
	away bool
	hit  bool
}

func newLine(st store.Store) *nodeLine {
	l := &nodeLine{}
	l.FaultyStore = storetest.Faulty(st, l.plan)
	return l
}

// PutBlob takes the bytes first: a request that lands late must not depend on a file of a process that has died since.
func (l *nodeLine) PutBlob(ctx context.Context, key string, src store.Source) error {
	r, err := src.Open()
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	return l.FaultyStore.PutBlob(ctx, key, store.BytesSource(body))
}

func (l *nodeLine) plan(c storetest.Call) storetest.Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead || l.away {
		return storetest.ErrorBefore
	}
	if !c.Op.Mutates() || l.next.at == 0 {
		return storetest.None
	}
	if l.next.at--; l.next.at > 0 {
		return storetest.None
	}
	l.hit, l.dead, l.away = true, l.next.stop, l.next.outage
	return l.next.fault
}

// arm plans the next trouble and forgets the one before.
func (l *nodeLine) arm(x trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.hit, l.away = x, false, false
}

// cut makes every request fail from now on.
func (l *nodeLine) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

func (l *nodeLine) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// cluster is one store and the nodes on it.
type cluster struct {
	t     *testing.T
	raw   store.Store
	dir   string
	ahead atomic.Int64 // how far the nodes' clocks are ahead, in nanoseconds
	opts  []volume.Option
	lines []*nodeLine // every one that was ever handed out: requests of dead processes may still land
}

func newCluster(t *testing.T, raw store.Store) *cluster {
	c := &cluster{t: t, raw: raw, dir: t.TempDir()}
	c.opts = []volume.Option{volume.Quiet, volume.WithFormatter(marker{}),
		volume.WithClock(func() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) })}
	return c
}

func (c *cluster) advance(d time.Duration) { c.ahead.Add(int64(d)) }

// land lets every delayed request arrive, and returns how many took effect.
func (c *cluster) land(ctx context.Context) int {
	n := 0
	for _, l := range c.lines {
		n += l.Land(ctx)
	}
	return n
}

// process is one life of a node.
type process struct {
	name string
	line *nodeLine
	repo *volume.Repository
	team map[string]*volume.Manager
}

var modelTenants = []string{"team", "other"}

// start opens a node on its directory. The error is of interest only where the directory or the store may fail.
func (c *cluster) start(ctx context.Context, name, dir string, raw store.Store) (*process, error) {
	p := &process{name: name, line: newLine(raw), team: map[string]*volume.Manager{}}
	c.lines = append(c.lines, p.line)
	repo, err := volume.Open(ctx, volume.Config{Store: p.line, Dir: dir, Node: name}, c.opts...)
	if err != nil {
		return nil, err
	}
	p.repo = repo
	for _, name := range modelTenants {
		m, err := repo.Tenant(name)
		if err != nil {
			return nil, errors.Join(err, repo.Close())
		}
		p.team[name] = m
	}
	return p, nil
}

func (c *cluster) mustStart(name string) *process {
	c.t.Helper()
	p, err := c.start(context.Background(), name, filepath.Join(c.dir, name), c.raw)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// kill ends the process without a request to the store. What it acknowledged as written is on its disk, as after a
// real kill.
func (p *process) kill() error {
	p.line.cut()
	return p.repo.Close()
}

// isFault says that an error leaves open whether the call took effect.
func isFault(err error) bool {
	return errors.Is(err, storetest.ErrInjected) || errors.Is(err, genlog.ErrInDoubt)
}

// recoveredDrive is what recoverAll found open for one sandbox.
type recoveredDrive struct {
	tenant, volume, sandbox string
	session                 *volume.Session // nil: given back, lost, or paused by the recovery
	paused                  bool
}

// recoverAll does with a node's journal what a host's recovery does: acquisitions that were never acknowledged and
// pins are undone, cuts that were sealed for good are published and paused, everything else is opened again.
func (p *process) recoverAll(ctx context.Context) ([]recoveredDrive, error) {
	pending, bad := p.repo.Journal()
	err := errors.Join(bad...)
	var out []recoveredDrive
	for _, e := range pending {
		m := p.team[e.Tenant]
		if e.Lost != "" {
			out = append(out, recoveredDrive{tenant: e.Tenant, volume: e.Volume, sandbox: e.Sandbox})
			continue
		}
		if e.Mode == volume.ReadOnly || !e.Acquired {
			err = errors.Join(err, m.Undo(ctx, e.Volume, e.Sandbox))
			continue
		}
		r, reopenErr := reopenEntry(ctx, m, e)
		err = errors.Join(err, reopenErr)
		out = append(out, r)
	}
	return out, err
}

func reopenEntry(ctx context.Context, m *volume.Manager, e volume.Pending) (recoveredDrive, error) {
	r := recoveredDrive{tenant: e.Tenant, volume: e.Volume, sandbox: e.Sandbox}
	s, err := m.Reopen(ctx, e.Volume, e.Sandbox)
	if err != nil || s == nil {
		return r, err
	}
	r.session = s
	cut, err := s.Pending(ctx)
	if err != nil || cut == nil {
		return r, err
	}
	if err := s.Pause(ctx, cut); err != nil {
		return r, err
	}
	r.session, r.paused = nil, true
	return r, nil
}

// The volumes of these tests are looked at in a few blocks, each filled with one byte.
const blockSize = 8 * overlaybd.SectorSize

var blockAt = [...]int64{0, 4096, 8192, 1 << 20, 5<<20 + 4096, 15 << 20}

// content is what a disk holds: for each block the byte that fills it.
type content [len(blockAt)]byte

// formatted is the content of an empty volume. Only the first sector of block 1 is written by the formatter.
var formatted = content{1: 'F'}

func blockOf(b byte) []byte {
	p := make([]byte, blockSize)
	for i := range p {
		p[i] = b
	}
	return p
}

// contentOf reads the blocks of a device and fails if one is filled with more than one byte.
func contentOf(t failer, dev io.ReaderAt) content {
	t.Helper()
	var c content
	for i, off := range blockAt {
		p := make([]byte, blockSize)
		if _, err := dev.ReadAt(p, off); err != nil && err != io.EOF {
			t.Fatalf("read block %d: %v", i, err)
		}
		c[i] = p[0]
		fresh := i == 1 && p[0] == 'F' // the formatter's one sector
		for j, b := range p {
			if b != p[0] && !(fresh && j >= overlaybd.SectorSize && b == 0) {
				t.Fatalf("block %d is torn: byte %d is %d, the first %d", i, j, b, p[0])
			}
		}
	}
	return c
}
