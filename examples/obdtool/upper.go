package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// upperLayer is an upper, read as the layer that a seal would make of it. Its index file is not changed; of its data
// file at most a torn sector at the end is filled up, as by every writer.
func upperLayer(data, index string) layerArg {
	return layerArg{name: data + "," + index, upper: true, open: func() (overlaybd.Source, error) {
		src, err := openUpper(data, index)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", data, err)
		}
		return src, nil
	}}
}

// upperSource is a data file with the index and trailer that a seal would put behind it.
type upperSource struct {
	data *os.File
	end  int64
	tail []byte
}

func openUpper(data, index string) (_ *upperSource, err error) {
	device, err := holdDevice(data)
	if err != nil {
		return nil, err
	}
	defer device.Close() // which lets go of it
	scratch, err := os.MkdirTemp("", "obdtool-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if sparse, err := openSparse(data); sparse != nil || err != nil {
		return sparse, err
	}
	// Opening a log repairs its index. That is for whoever goes on writing.
	copied := filepath.Join(scratch, "index")
	if err := copyFile(copied, index); err != nil {
		return nil, err
	}
	paths := lsmt.LogPaths{Data: data, Index: copied, Pending: filepath.Join(scratch, "pending")}
	boot := ""
	if queue := pendingOf(data); queue != "" {
		if boot, err = bootID(); err == nil {
			err = copyFile(paths.Pending, queue)
		}
		if err != nil {
			return nil, err
		}
	}
	log, _, err := lsmt.OpenLog(paths, lsmt.LogOptions{BootID: boot})
	if err != nil {
		return nil, err
	}
	defer log.Close() // nothing was written
	f, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	end := lsmt.HeaderSize + log.DataBytes()
	segs := liveSegments(log)
	return &upperSource{f, end, lsmt.Tail(lsmt.Header{
		IndexOffset: end, VirtualSize: log.VirtualSize(), UUID: log.UUID(), Parent: log.Parent(),
	}, segs)}, nil
}

// flagSparse marks an upper that is one file with holes, of which the OverlayBD project's tools make some. Its index file
// is empty.
const flagSparse = 0x10

func isSparse(f *os.File) (bool, error) {
	h, err := lsmt.ReadHeader(f)
	return h.Flags&flagSparse != 0, err
}

// openSparse returns nil for an upper that is not sparse.
func openSparse(data string) (_ *upperSource, err error) {
	f, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	sparse, err := isSparse(f)
	if err != nil || !sparse {
		return nil, errors.Join(err, f.Close())
	}
	l, err := lsmt.OpenSparse(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	end := (lsmt.HeaderSize + l.VirtualSize) &^ (lsmt.SectorSize - 1)
	h := lsmt.Header{IndexOffset: end, VirtualSize: l.VirtualSize, UUID: l.UUID, Parent: l.Parent}
	return &upperSource{f, end, lsmt.Tail(h, l.Segments)}, nil
}

// pendingOf returns the path of the records that a device of this library keeps beside its upper, if there are any:
// those that are not in the index yet.
func pendingOf(data string) string {
	base, ok := strings.CutSuffix(data, ".data")
	if _, err := os.Stat(base + ".pending"); !ok || err != nil {
		return ""
	}
	return base + ".pending"
}

// holdDevice takes the lock of the directory in which a device of this library keeps its upper: a device that is open
// changes the files while they are read. Where there is no lock there is no device.
func holdDevice(data string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(data), "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: a device has it open (%w)", overlaybd.ErrInUse, err), f.Close())
	}
	return f, nil
}

// bootID tells this boot of the machine from others, as pending records do.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

func liveSegments(log *lsmt.Log) (segs []lsmt.Segment) {
	for s, ok := log.Next(0); ok; s, ok = log.Next(s.End()) {
		segs = append(segs, s.WithTag(0))
	}
	return segs
}

// ReadAt reads data, then index and trailer.
func (u *upperSource) ReadAt(p []byte, off int64) (n int, err error) {
	if off < u.end {
		n, err = u.data.ReadAt(p[:min(int64(len(p)), u.end-off)], off)
		if err != nil || n == len(p) {
			return n, err
		}
	}
	if at := off + int64(n) - u.end; at < int64(len(u.tail)) {
		n += copy(p[n:], u.tail[at:])
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// Size is that of the sealed layer.
func (u *upperSource) Size() int64 { return u.end + int64(len(u.tail)) }

// Close closes the data file.
func (u *upperSource) Close() error { return u.data.Close() }

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close() // only read
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
