package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/volume/store"
)

// StoreProber is what a store may implement to tell of its own settings: those of a bucket, of a mount.
type StoreProber interface {
	// Findings returns what an operator should know, one sentence each; nothing if all is well.
	Findings(ctx context.Context) ([]string, error)
}

// ProbeReport is what this store and this machine can do. Times are of one request each.
type ProbeReport struct {
	Put, Get, List, Delete time.Duration
	// ClockSkew is how far the store's clock is ahead of this node's, as far as one request tells. Clocks only date things.
	ClockSkew time.Duration
	Dir       DirReport
	// Findings are what will hurt, one sentence each.
	Findings []string
}

// DirReport is about the file system of the node's own directory.
type DirReport struct {
	FileSystem string
	Free       int64 // bytes that this process may use
	Total      int64
	// Sync is how long it takes to make a small file durable.
	Sync time.Duration
	// PunchHole: freed ranges of a file give their blocks back. DirectIO: reads can bypass the page cache.
	PunchHole bool
	DirectIO  bool
}

// lowSpace is the share of free space below which a probe finds fault.
const lowSpace = 0.1

// Probe tries out the store and the node's directory: an operator's first question to a new machine, and a health check. The
// error is about a promise that is not kept, such as a store in which two can create one key: nothing must be kept there.
func (r *Repository) Probe(ctx context.Context) (ProbeReport, error) {
	var p ProbeReport
	if err := r.probeStore(ctx, &p); err != nil {
		return p, fmt.Errorf("probe the store: %w", err)
	}
	if s, ok := r.store.(StoreProber); ok {
		found, err := s.Findings(ctx)
		if err != nil {
			return p, fmt.Errorf("probe the store's settings: %w", err)
		}
		p.Findings = append(p.Findings, found...)
	}
	if err := p.Dir.probe(r.tmp); err != nil {
		return p, fmt.Errorf("probe directory %s: %w", r.dir, err)
	}
	p.judge()
	return p, nil
}

// probeStore goes once through what everything rests on. What it writes is below a prefix of its own.
func (r *Repository) probeStore(ctx context.Context, p *ProbeReport) (err error) {
	prefix := probesPrefix + r.node + "/"
	key, body, other := prefix+newNonce(), []byte("first"), []byte("other")
	timed := func(d *time.Duration, f func() error) error {
		begin := time.Now()
		err := f()
		*d = time.Since(begin)
		return err
	}
	if err := timed(&p.Put, func() error { return r.store.PutIfAbsent(ctx, key, body) }); err != nil {
		return err
	}
	written := time.Now()
	defer func() {
		err = errors.Join(err, timed(&p.Delete, func() error { return r.store.Delete(context.WithoutCancel(ctx), key) }))
	}()
	if err := r.store.PutIfAbsent(ctx, key, other); !errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%w: a key that is taken was to be created again, and the answer was %v instead of %v",
			ErrUnsupported, err, store.ErrExists)
	}
	var got []byte
	if err := timed(&p.Get, func() (err error) { got, err = r.store.Get(ctx, key); return err }); err != nil {
		return err
	}
	if !bytes.Equal(got, body) {
		return fmt.Errorf("%w: %q was stored, and %q read back", ErrCorrupt, body, got)
	}
	listed := false
	err = timed(&p.List, func() error {
		for e, err := range r.store.List(ctx, prefix, "", 0) {
			if err != nil {
				return err
			}
			if e.Key == key {
				listed, p.ClockSkew = true, e.Modified.Sub(written)
			}
		}
		return nil
	})
	if err == nil && !listed {
		err = fmt.Errorf("%w: a key was created and the next listing did not have it", ErrUnsupported)
	}
	return err
}

// probe tries out a directory.
func (d *DirReport) probe(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	d.FileSystem = fileSystem(int64(fs.Type))
	d.Free, d.Total = int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
	f, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }() // the next Open empties the directory
	begin := time.Now()
	if _, err := f.Write(make([]byte, 1<<16)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	d.Sync = time.Since(begin)
	d.PunchHole = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<12) == nil
	if direct, err := unix.Open(filepath.Clean(f.Name()), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.DirectIO = unix.Close(direct) == nil
	}
	return nil
}

func fileSystem(magic int64) string {
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "nfs",
		unix.FUSE_SUPER_MAGIC: "fuse"}
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("%#x", magic)
}

// judge says what of the figures will hurt.
func (p *ProbeReport) judge() {
	find := func(format string, args ...any) { p.Findings = append(p.Findings, fmt.Sprintf(format, args...)) }
	switch p.Dir.FileSystem {
	case "tmpfs":
		find("the node's directory is on tmpfs: what a sandbox has flushed and not published does not survive a restart")
	case "nfs", "fuse":
		find("the node's directory is on %s: every flush of a sandbox goes over a network", p.Dir.FileSystem)
	}
	if free := float64(p.Dir.Free) / math.Max(float64(p.Dir.Total), 1); free < lowSpace {
		find("the node's directory has %d bytes free, %.0f%%", p.Dir.Free, free*100)
	}
	if skew := p.ClockSkew.Abs(); skew > time.Minute {
		find("the clocks of the store and of this node differ by %s: times in records and advice about nodes will mislead", skew)
	}
	if !p.Dir.PunchHole {
		find("the node's file system cannot punch holes: what a sandbox discards stays on disk until its drive is sealed")
	}
}
