package crashfs

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// node is a file or a directory. Only one of data and entries is set.
type node struct {
	id       uint64
	mode     uint32 // type and permissions
	onDisk   uint32 // mode as it was last synced
	uid, gid uint32
	modified time.Time
	links    int

	data *content

	entries map[string]*node
	// durable is the directory on the disk, and pending what leads from there to entries, oldest first.
	durable map[string]*node
	pending []*change
	// broken is set by a failed sync: nothing of this directory reaches the disk any more, whatever a later sync
	// answers.
	broken bool
	parent *node
}

func (n *node) isDir() bool { return n.entries != nil }

// change is one operation on names. It reaches the disk whole or not at all.
type change struct {
	seq  uint64
	sets []binding
}

// binding says what a name in a directory stands for: nothing when to is nil.
type binding struct {
	dir  *node
	name string
	to   *node
}

// disk is a file system in memory that knows, beside what programs see, what a power cut would leave. It knows nothing
// of FUSE. Every method but those named for it returns a syscall.Errno or nil.
type disk struct {
	mu       sync.Mutex
	root     *node
	nodes    map[uint64]*node // whoever was reachable since the mount
	lastID   uint64
	lastSeq  uint64
	ops      int
	stopAt   int
	failSync int // counts fsyncs down: the one that takes it to 0 fails
	// dead is set when the power was cut: programs that still have files open read what they had, and change nothing.
	dead bool
}

func newDisk() *disk {
	d := &disk{nodes: map[uint64]*node{}}
	d.root = d.newNode(unix.S_IFDIR|0o755, 0, 0)
	d.root.parent = d.root
	d.root.links = 1
	return d
}

func (d *disk) newNode(mode, uid, gid uint32) *node {
	d.lastID++
	n := &node{id: d.lastID, mode: mode, onDisk: mode, uid: uid, gid: gid, modified: time.Now()}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		n.entries = map[string]*node{}
		n.durable = map[string]*node{}
	} else {
		n.data = newContent()
	}
	d.nodes[n.id] = n
	return n
}

// mutate counts an operation that changes something and refuses it when the machine is dying.
func (d *disk) mutate() error {
	d.ops++
	if d.dead || d.stopAt > 0 && d.ops >= d.stopAt {
		return unix.EIO
	}
	return nil
}

// bind makes names stand for other nodes, as one change.
func (d *disk) bind(sets ...binding) {
	d.lastSeq++
	c := &change{seq: d.lastSeq, sets: sets}
	for i, b := range sets {
		if old := b.dir.entries[b.name]; old != nil {
			old.links--
		}
		set(b.dir.entries, b.name, b.to)
		if b.to != nil {
			b.to.links++
			if b.to.isDir() {
				b.to.parent = b.dir
			}
		}
		b.dir.modified = time.Now()
		// A rename inside one directory is one change of that directory, not two.
		if i == 0 || b.dir != sets[0].dir {
			b.dir.pending = append(b.dir.pending, c)
		}
	}
}

func set(m map[string]*node, name string, to *node) {
	if to == nil {
		delete(m, name)
		return
	}
	m[name] = to
}

// create makes a file or directory under a name that is free.
func (d *disk) create(dir *node, name string, mode, uid, gid uint32) (*node, error) {
	if err := d.mutate(); err != nil {
		return nil, err
	}
	if dir.entries[name] != nil {
		return nil, unix.EEXIST
	}
	n := d.newNode(mode, uid, gid)
	d.bind(binding{dir, name, n})
	return n, nil
}

func (d *disk) link(n, dir *node, name string) error {
	if err := d.mutate(); err != nil {
		return err
	}
	if dir.entries[name] != nil {
		return unix.EEXIST
	}
	if n.links == 0 {
		return unix.ENOENT
	}
	d.bind(binding{dir, name, n})
	return nil
}

// remove takes a name away: of a file with wantDir false, of an empty directory with wantDir true.
func (d *disk) remove(dir *node, name string, wantDir bool) error {
	if err := d.mutate(); err != nil {
		return err
	}
	n := dir.entries[name]
	switch {
	case n == nil:
		return unix.ENOENT
	case n.isDir() && !wantDir:
		return unix.EISDIR
	case !n.isDir() && wantDir:
		return unix.ENOTDIR
	case n.isDir() && len(n.entries) > 0:
		return unix.ENOTEMPTY
	}
	d.bind(binding{dir, name, nil})
	return nil
}

func (d *disk) rename(from *node, oldName string, to *node, newName string, noReplace bool) error {
	if err := d.mutate(); err != nil {
		return err
	}
	n, old := from.entries[oldName], to.entries[newName]
	switch {
	case n == nil:
		return unix.ENOENT
	case n == old:
		return nil
	case old == nil:
	case noReplace:
		return unix.EEXIST
	case old.isDir() != n.isDir():
		if n.isDir() {
			return unix.ENOTDIR
		}
		return unix.EISDIR
	case len(old.entries) > 0:
		return unix.ENOTEMPTY
	}
	d.bind(binding{from, oldName, nil}, binding{to, newName, n})
	return nil
}

func (d *disk) write(n *node, p []byte, off int64) error {
	if err := d.mutate(); err != nil {
		return err
	}
	n.data.writeAt(p, off)
	n.modified = time.Now()
	return nil
}

func (d *disk) truncate(n *node, size int64) error {
	if err := d.mutate(); err != nil {
		return err
	}
	n.data.truncate(size)
	n.modified = time.Now()
	return nil
}

func (d *disk) allocate(n *node, off, length int64, mode uint32) error {
	if err := d.mutate(); err != nil {
		return err
	}
	switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0:
	case unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE:
		n.data.zero(off, min(length, max(n.data.size-off, 0)))
	default:
		return unix.EOPNOTSUPP
	}
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		n.data.size = max(n.data.size, off+length)
	}
	return nil
}

// sync makes the bytes of a file, or the names in a directory, durable.
func (d *disk) sync(n *node) error {
	if err := d.mutate(); err != nil {
		return err
	}
	if d.failSync--; d.failSync == 0 {
		if n.isDir() {
			n.broken = true
		} else {
			n.data.dropDirty()
		}
		return unix.EIO
	}
	n.onDisk = n.mode
	if n.isDir() {
		d.persist(n, d.lastSeq)
	} else {
		n.data.sync()
	}
	return nil
}

// persist brings the changes of a directory to the disk, up to a sequence number. A rename between two directories takes
// the other one along, with what came before it there.
func (d *disk) persist(dir *node, upTo uint64) {
	if dir.broken {
		return
	}
	for len(dir.pending) > 0 && dir.pending[0].seq <= upTo {
		c := dir.pending[0]
		// It is taken off the list first, so that the way back from the other directory ends here.
		dir.pending = dir.pending[1:]
		for _, b := range c.sets {
			if b.dir == dir {
				set(dir.durable, b.name, b.to)
			} else {
				d.persist(b.dir, c.seq)
			}
		}
	}
}

// seek answers lseek(2) with SEEK_DATA and SEEK_HOLE.
func (d *disk) seek(n *node, off int64, whence int) (int64, error) {
	find := n.data.seekData
	if whence == unix.SEEK_HOLE {
		find = n.data.seekHole
	} else if whence != unix.SEEK_DATA {
		return 0, unix.EINVAL
	}
	at, ok := find(off)
	if !ok {
		return 0, unix.ENXIO
	}
	return at, nil
}
