package crashfs

import (
	"io"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Open keeps what the kernel has cached: nobody else writes. Direct I/O would take shared mappings away.
func (s *server) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func (s *server) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n := 0
	st := s.status(func() error {
		f, err := s.file(in.NodeId)
		if err != nil {
			return err
		}
		n, err = f.data.readAt(buf, int64(in.Offset))
		if err == io.EOF {
			return nil
		}
		return err
	})
	return fuse.ReadResultData(buf[:n]), st
}

func (s *server) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	st := s.status(func() error {
		f, err := s.file(in.NodeId)
		if err != nil {
			return err
		}
		// The kernel has turned O_APPEND into an offset.
		return s.d.write(f, data, int64(in.Offset))
	})
	if !st.Ok() {
		return 0, st
	}
	return uint32(len(data)), fuse.OK
}

func (s *server) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return s.status(func() error {
		f, err := s.file(in.NodeId)
		if err != nil {
			return err
		}
		at, err := s.d.seek(f, int64(in.Offset), int(in.Whence))
		out.Offset = uint64(at)
		return err
	})
}

func (s *server) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return s.status(func() error {
		f, err := s.file(in.NodeId)
		if err != nil {
			return err
		}
		return s.d.allocate(f, int64(in.Offset), int64(in.Length), in.Mode)
	})
}

func (s *server) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return s.sync(in.NodeId) }

func (s *server) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return s.sync(in.NodeId) }

func (s *server) sync(id uint64) fuse.Status {
	return s.status(func() error {
		n, err := s.node(id)
		if err != nil {
			return err
		}
		return s.d.sync(n)
	})
}

func (s *server) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }
