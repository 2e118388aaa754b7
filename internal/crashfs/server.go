package crashfs

import (
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// server answers the kernel's requests from a disk.
type server struct {
	fuse.RawFileSystem // answers ENOSYS to all that is not below
	d                  *disk
	listings           map[uint64][]fuse.DirEntry // by handle, under d.mu
	lastHandle         uint64
}

func newServer(d *disk) *server {
	return &server{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), d: d,
		listings: map[uint64][]fuse.DirEntry{},
	}
}

// Nobody but the kernel changes anything, so it may remember what it was told, absences included.
const cacheTimeout = time.Hour

func (s *server) String() string { return fsName }

// status runs f under the disk's lock and turns its error into the kernel's.
func (s *server) status(f func() error) fuse.Status {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	err := f()
	var errno unix.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, &errno):
		return fuse.Status(errno)
	}
	return fuse.EIO
}

func (s *server) node(id uint64) (*node, error) {
	if n := s.d.nodes[id]; n != nil {
		return n, nil
	}
	return nil, unix.ESTALE
}

func (s *server) dir(id uint64) (*node, error) {
	n, err := s.node(id)
	if err == nil && !n.isDir() {
		return nil, unix.ENOTDIR
	}
	return n, err
}

func (s *server) file(id uint64) (*node, error) {
	n, err := s.node(id)
	if err == nil && n.isDir() {
		return nil, unix.EISDIR
	}
	return n, err
}

func fillEntry(n *node, out *fuse.EntryOut) {
	out.NodeId = n.id
	out.SetEntryTimeout(cacheTimeout)
	out.SetAttrTimeout(cacheTimeout)
	fillAttr(n, &out.Attr)
}

func fillAttr(n *node, out *fuse.Attr) {
	out.Ino = n.id
	out.Mode = n.mode
	out.Nlink = uint32(n.links)
	out.Owner = fuse.Owner{Uid: n.uid, Gid: n.gid}
	out.SetTimes(&n.modified, &n.modified, &n.modified)
	out.Blksize = pageSize
	if n.isDir() {
		out.Nlink++
		out.Size = pageSize
		return
	}
	out.Size = uint64(n.data.size)
	out.Blocks = uint64(len(n.data.now)) * pageSize / sectorSize
}

func (s *server) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return s.status(func() error {
		dir, err := s.dir(in.NodeId)
		if err != nil {
			return err
		}
		n := dir.entries[name]
		if n == nil {
			// Node 0 is an absence to remember.
			out.SetEntryTimeout(cacheTimeout)
			return nil
		}
		fillEntry(n, out)
		return nil
	})
}

func (s *server) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.status(func() error {
		n, err := s.node(in.NodeId)
		if err != nil {
			return err
		}
		out.SetTimeout(cacheTimeout)
		fillAttr(n, &out.Attr)
		return nil
	})
}

func (s *server) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.status(func() error {
		n, err := s.node(in.NodeId)
		if err != nil {
			return err
		}
		if size, ok := in.GetSize(); ok {
			if n.isDir() {
				return unix.EISDIR
			}
			if err := s.d.truncate(n, int64(size)); err != nil {
				return err
			}
		}
		if mode, ok := in.GetMode(); ok {
			n.mode = n.mode&unix.S_IFMT | mode&^unix.S_IFMT
		}
		if t, ok := in.GetMTime(); ok {
			n.modified = t
		}
		out.SetTimeout(cacheTimeout)
		fillAttr(n, &out.Attr)
		return nil
	})
}

// StatFs says that there is plenty of room, whatever is stored.
func (s *server) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const blocks, files = 1 << 28, 1 << 24
	*out = fuse.StatfsOut{
		Blocks: blocks, Bfree: blocks, Bavail: blocks, Files: files, Ffree: files,
		Bsize: pageSize, Frsize: pageSize, NameLen: 255,
	}
	return fuse.OK
}
