package crashfs

import (
	"maps"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func (s *server) create(in *fuse.InHeader, name string, mode uint32, out *fuse.EntryOut) error {
	dir, err := s.dir(in.NodeId)
	if err != nil {
		return err
	}
	n, err := s.d.create(dir, name, mode, in.Uid, in.Gid)
	if err != nil {
		return err
	}
	fillEntry(n, out)
	return nil
}

func (s *server) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.status(func() error {
		return s.create(&in.InHeader, name, unix.S_IFDIR|in.Mode&^unix.S_IFMT, out)
	})
}

func (s *server) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.Mode&unix.S_IFMT != unix.S_IFREG {
		return fuse.Status(unix.EOPNOTSUPP)
	}
	return s.status(func() error { return s.create(&in.InHeader, name, in.Mode, out) })
}

func (s *server) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return s.status(func() error {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
		return s.create(&in.InHeader, name, unix.S_IFREG|in.Mode&^unix.S_IFMT, &out.EntryOut)
	})
}

func (s *server) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return s.status(func() error {
		dir, err := s.dir(in.NodeId)
		if err != nil {
			return err
		}
		n, err := s.file(in.Oldnodeid)
		if err != nil {
			return err
		}
		if err := s.d.link(n, dir, name); err != nil {
			return err
		}
		fillEntry(n, out)
		return nil
	})
}

func (s *server) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return s.remove(in.NodeId, name, false)
}

func (s *server) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return s.remove(in.NodeId, name, true)
}

func (s *server) remove(id uint64, name string, wantDir bool) fuse.Status {
	return s.status(func() error {
		dir, err := s.dir(id)
		if err != nil {
			return err
		}
		return s.d.remove(dir, name, wantDir)
	})
}

func (s *server) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if in.Flags&^unix.RENAME_NOREPLACE != 0 {
		return fuse.EINVAL
	}
	return s.status(func() error {
		from, err := s.dir(in.NodeId)
		if err != nil {
			return err
		}
		to, err := s.dir(in.Newdir)
		if err != nil {
			return err
		}
		return s.d.rename(from, oldName, to, newName, in.Flags&unix.RENAME_NOREPLACE != 0)
	})
}

// OpenDir fixes the listing: names that come or go while it is read do not shift the others.
func (s *server) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return s.status(func() error {
		dir, err := s.dir(in.NodeId)
		if err != nil {
			return err
		}
		list := []fuse.DirEntry{
			{Name: ".", Mode: dir.mode, Ino: dir.id},
			{Name: "..", Mode: dir.parent.mode, Ino: dir.parent.id},
		}
		for _, name := range sortedNames(dir.entries) {
			n := dir.entries[name]
			list = append(list, fuse.DirEntry{Name: name, Mode: n.mode, Ino: n.id})
		}
		s.lastHandle++
		s.listings[s.lastHandle] = list
		out.Fh = s.lastHandle
		return nil
	})
}

func (s *server) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return s.status(func() error {
		list := s.listings[in.Fh]
		for i := min(in.Offset, uint64(len(list))); i < uint64(len(list)); i++ {
			if !out.AddDirEntry(list[i]) {
				break
			}
		}
		return nil
	})
}

func (s *server) ReleaseDir(in *fuse.ReleaseIn) {
	s.status(func() error { delete(s.listings, in.Fh); return nil })
}

func sortedNames(m map[string]*node) []string {
	return slices.Sorted(maps.Keys(m))
}
