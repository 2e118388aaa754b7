package blockcache

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandvol/sandvol/overlaybd/internal/disk"
)

const tempPrefix = ".tmp-"

// scan makes the directory, removes what no process will finish, and lists what is there.
func (c *Cache) scan() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	type found struct {
		*idleLayer
		at time.Time
	}
	byID := map[string]*found{}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempPrefix) {
			if err := os.Remove(filepath.Join(c.dir, f.Name())); err != nil {
				return err
			}
			continue
		}
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // gone meanwhile, or none of ours
		}
		id := strings.TrimSuffix(strings.TrimSuffix(f.Name(), ".data"), ".map")
		if !validID.MatchString(id) {
			continue
		}
		l := byID[id]
		if l == nil {
			l = &found{idleLayer: &idleLayer{id: id}}
			byID[id] = l
		}
		l.used += onDisk(info)
		if info.ModTime().After(l.at) {
			l.at = info.ModTime()
		}
	}
	all := make([]*found, 0, len(byID))
	for _, l := range byID {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *found) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	for _, l := range all {
		c.idle.PushBack(l.idleLayer)
		c.used += l.used
	}
	c.punches, err = canPunch(c.dir)
	return err
}

// onDisk returns how many bytes a sparse file takes.
func onDisk(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// canPunch reports whether the file system of a directory can give a part of a file back. Some of the network cannot.
func canPunch(dir string) (ok bool, err error) {
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := f.Truncate(blockSize); err != nil {
		return false, err
	}
	err = disk.Punch(f, 0, blockSize)
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	return err == nil, err
}

// Keep makes a file the copy of the layer of that id: the whole of it, whose bytes the caller knows to be right. The file is
// moved, or removed if the layer is open or has no room. Nothing is fetched for what is kept like this until it is evicted.
func (c *Cache) Keep(path, id string) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	m, err := c.mapOf(path, info.Size(), false)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[id] != nil || !c.makeRoom(info.Size()) {
		return errors.Join(os.Remove(m), os.Remove(path))
	}
	c.forgetIdle(id)
	c.remove(id)
	if err := errors.Join(os.Rename(path, c.dataPath(id)), os.Rename(m, c.mapPath(id))); err != nil {
		c.remove(id)
		return err
	}
	c.idle.PushBack(&idleLayer{id, info.Size()})
	c.used += info.Size()
	return nil
}

// mapOf writes a map for a file that is whole, under a name that is to be renamed.
func (c *Cache) mapOf(path string, size int64, verified bool) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read
	m, err := os.CreateTemp(c.dir, tempPrefix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, m.Close()); err != nil {
			err = errors.Join(err, os.Remove(m.Name()))
		}
	}()
	if _, err := m.WriteAt(encodeHeader(size, verified), 0); err != nil {
		return "", err
	}
	buf := make([]byte, 16*ChunkSize)
	for off := int64(0); off < size; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), size-off)]
		if _, err := f.ReadAt(p, off); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // it was longer a moment ago
			}
			return "", err
		}
		if err := writeEntries(m, off/ChunkSize, sumsOfChunks(p)); err != nil {
			return "", err
		}
	}
	return m.Name(), nil
}

// sumsOfChunks computes the checksums of bytes that begin with a chunk.
func sumsOfChunks(p []byte) []sums {
	all := make([]sums, 0, chunksOf(int64(len(p))))
	for len(p) > 0 {
		n := min(len(p), ChunkSize)
		all = append(all, sumsOf(p[:n]))
		p = p[n:]
	}
	return all
}
