package lsmt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandvol/sandvol/overlaybd/internal/disk"
)

// RewriteExt is appended to the path of an index file for the one that will take its place.
const RewriteExt = ".new"

// Limits of one hole. Only whole blocks are freed: on most file systems a part of one would only be zeroed. One call
// must not keep the file's lock, which appends and reads need, for the time that freeing gigabytes takes.
const (
	holeUnit = 4096
	holeMost = 256 << 20
)

// Garbage returns how many bytes of the two files no live segment needs, without those that Reclaim gave back, and how
// many bytes there are in all.
func (l *Log) Garbage() (garbage, total int64) {
	l.mu.RLock()
	live := int64(l.live.data)*SectorSize + int64(l.live.len())*entrySize
	l.mu.RUnlock()
	total = l.StoredBytes() + l.IndexBytes()
	return max(total-live, 0), total
}

// Unreclaimed is the garbage that the last Reclaim could not give back: parts of blocks that hold live sectors too.
func (l *Log) Unreclaimed() int64 { return l.residue.Load() }

// StoredBytes returns how many bytes of data the log takes on the disk, overwritten ones included.
func (l *Log) StoredBytes() int64 { return max(l.DataBytes()-l.freed.Load(), 0) }

// IndexBytes returns the size of the entries of the index file.
func (l *Log) IndexBytes() int64 { return l.records.Load() * entrySize }

// Reclaim gives the space of overwritten data back to the file system, and rewrites the index file to one record a live
// segment. It returns how many bytes of data are free now that were not before. Any other method may be called
// meanwhile; a Sync waits for the new index file.
//
// The index file comes first and is durable, its name too, before the first byte goes: until then a power cut may take
// the disk back to when those bytes counted. Only data goes that a durable record has superseded.
//
// Readers hold no lock. Reclaim calls begin when it knows what is dead and before anything of it goes: bytes that were
// looked up before begin may be zeroes when they are read, and their reader must look up again. What is looked up later
// is not dead.
//
// An error that is errors.ErrUnsupported means that the file system frees no parts of a file; the index file is
// rewritten all the same.
func (l *Log) Reclaim(ctx context.Context, begin func()) (freed int64, err error) {
	l.reclaiming.Lock()
	defer l.reclaiming.Unlock()
	segs, end, err := l.rewriteIndex()
	if err != nil {
		return 0, fmt.Errorf("reclaim: %w", err)
	}
	begin()
	before := l.freed.Load()
	err = l.freeDead(ctx, segs, end)
	if ctx.Err() == nil { // else the rest can be given back
		garbage, _ := l.Garbage()
		l.residue.Store(garbage)
	}
	freed = max(0, l.freed.Load()-before)
	if err != nil {
		return freed, fmt.Errorf("reclaim: %w", err)
	}
	return freed, nil
}

// rewriteIndex replaces the index file by one that holds the live segments. It returns them, and the end of the data
// that had been written when it looked: all of that which none of them maps is dead, and durably so.
func (l *Log) rewriteIndex() (segs []Segment, end int64, err error) {
	l.rounds.run.Lock()
	defer l.rounds.run.Unlock()
	if err := l.failure(); err != nil {
		return nil, 0, err
	}
	if l.retired {
		return nil, HeaderSize, nil
	}
	// The older log first, as in a Sync.
	if below := l.below.Load(); below != nil {
		if err := below.Sync(); err != nil {
			return nil, 0, err
		}
	}
	// The end before the segments: an append moves it after its record is in. So what lies in front of it is in a
	// segment or was overwritten, and what is being appended lies behind it.
	end = l.end.Load()
	l.mu.RLock()
	segs = l.live.appendTo(nil)
	n := l.inserted
	l.mu.RUnlock()
	if n == 0 {
		return nil, end, nil
	}
	// As in a Sync, no record may reach the index file before its data is durable.
	if err := l.syncFile(l.data); err != nil {
		return nil, 0, l.fail(err)
	}
	f, err := l.writeRewrite(segs, n)
	if err != nil {
		return nil, 0, fmt.Errorf("rewrite %s: %w", l.paths.Index, err)
	}
	if err := os.Rename(f.Name(), l.paths.Index); err != nil {
		return nil, 0, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	old := l.index
	l.index = f
	l.records.Store(int64(len(segs)) + 2)
	if err := errors.Join(disk.SyncDir(filepath.Dir(l.paths.Index)), old.Close()); err != nil {
		// Which of the two files a power cut would leave is unknown, and later records go to one of them.
		return nil, 0, l.fail(err)
	}
	l.queue.tail.Store(n)
	return segs, end, nil
}

// writeRewrite writes the file that will be the index file, fsynced: a base mark, the segments, a flush mark. The flush
// mark is true because the file gets its name only after all of it is durable.
func (l *Log) writeRewrite(segs []Segment, n uint64) (*os.File, error) {
	f, err := os.OpenFile(l.paths.Index+RewriteExt, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	h := l.head
	h.Flags, h.IndexOffset = flagsIndex, HeaderSize
	if _, err = f.WriteAt(h.encode(), 0); err == nil {
		err = writeSnapshot(f, segs, n)
	}
	if err == nil {
		err = l.syncFile(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

func writeSnapshot(f *os.File, segs []Segment, n uint64) error {
	w := entryWriter{f: f, off: HeaderSize, buf: make([]byte, 0, 1<<16)}
	if err := w.put(baseMark(n)); err != nil {
		return err
	}
	for _, s := range segs {
		if err := w.put(s); err != nil {
			return err
		}
	}
	if err := w.put(flushMark(int64(len(segs)) + 1)); err != nil {
		return err
	}
	return w.flush()
}

// baseMark is the first entry of a rewritten index file: what follows, up to the first flush mark, is what the first n
// records of the log came to. As a padding entry it is skipped by other readers.
func baseMark(n uint64) Segment { return Segment{invalidLBA, n & moffMask} }

// isBaseMark reports whether s, entry number n of an index file, is a base mark. Padding of other writers has 0.
func isBaseMark(s Segment, n int64) bool {
	return n == 0 && s.MOffset() > 0 && s == baseMark(s.MOffset())
}

// freeDead makes holes of what lies in front of end and is stored for none of segs, whose order it changes. It may be
// repeated: what is dead stays dead, because nothing is ever written into a hole.
func (l *Log) freeDead(ctx context.Context, segs []Segment, end int64) error {
	slices.SortFunc(segs, func(a, b Segment) int {
		return int(int64(a.MOffset()) - int64(b.MOffset()))
	})
	// All in front of l.front is free since an earlier time. A log that lives for long is mostly that.
	freed, pos := l.front-HeaderSize, l.front
	free := func(to int64) error {
		from, to := roundUp(pos, holeUnit), to/holeUnit*holeUnit
		if to <= from {
			return nil
		}
		if err := l.punch(ctx, from, to-from); err != nil {
			return err
		}
		if from == l.front {
			l.front = to
		}
		freed += to - from
		return nil
	}
	var err error
	for _, s := range segs {
		if s.Zeroed() || err != nil {
			continue
		}
		if err = free(min(int64(s.MOffset())*SectorSize, end)); err == nil {
			pos = max(pos, int64(s.MEnd())*SectorSize)
		}
	}
	if err == nil {
		err = free(end)
	}
	if err != nil { // some of what an earlier call freed was not looked at
		freed = max(l.freed.Load(), freed)
	}
	l.freed.Store(freed)
	return err
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

func (l *Log) punch(ctx context.Context, off, n int64) error {
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := min(n, holeMost)
		if err := disk.Punch(l.data, off, m); err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}
