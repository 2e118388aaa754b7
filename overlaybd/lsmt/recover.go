package lsmt

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Recovery says what OpenLog found and did.
type Recovery struct {
	Dropped  int64 // records that no flush had covered and whose data or bytes were lost
	Torn     int64 // bytes of a half-written record at the end of the index file
	Replayed int   // records that a killed process had not moved to the index file yet
}

// OpenLog opens the files of a log again, whatever state a kill or a power cut left them in, and makes what it finds
// durable. It returns ErrCorrupt when a record is unusable that a flush had covered: dropping that one, and those
// behind it, would take the disk back in time.
//
// UUID, Parent and VirtualSize of the options are not used.
func OpenLog(p LogPaths, o LogOptions) (*Log, Recovery, error) {
	l := newLog(p, o)
	r, err := l.replay()
	if err != nil {
		return nil, r, fmt.Errorf("open log %s: %w", p.Data, errors.Join(err, l.closeFiles()))
	}
	return l, r, nil
}

func (l *Log) replay() (r Recovery, err error) {
	if err := l.openFiles(); err != nil {
		return r, err
	}
	limit, err := l.alignData()
	if err != nil {
		return r, err
	}
	applied, err := l.replayIndex(limit, &r)
	if err != nil {
		return r, err
	}
	return r, l.replayPending(limit, applied, &r)
}

func (l *Log) openFiles() (err error) {
	if l.data, err = os.OpenFile(l.paths.Data, os.O_RDWR, 0); err != nil {
		return err
	}
	if l.index, err = os.OpenFile(l.paths.Index, os.O_RDWR, 0); err != nil {
		return err
	}
	if l.head, err = readHeader(l.data, "data header", 0); err != nil {
		return err
	}
	ih, err := readHeader(l.index, "index header", 0)
	if err != nil {
		return err
	}
	switch {
	case l.head.Flags&flagSparse != 0:
		return Invalid("log", "with the sparse flag", "an append log")
	case l.head.Flags&(flagHeader|flagData) != flagHeader|flagData:
		return corrupt("data header", offFlags, "flags %#x are not those of a data file", l.head.Flags)
	case ih.Flags&(flagHeader|flagData|flagSealed) != flagHeader || ih.IndexOffset != HeaderSize:
		return corrupt("index header", offFlags, "flags %#x and offset %d are not those of the index of a log",
			ih.Flags, ih.IndexOffset)
	case ih.UUID != l.head.UUID:
		return corrupt("index header", offUUID, "uuid %s, but the data file has %s", ih.UUID, l.head.UUID)
	}
	// A crash in the middle of a Grow leaves one of the two behind. Sizes only grow.
	l.head.VirtualSize = max(l.head.VirtualSize, ih.VirtualSize)
	return nil
}

// alignData returns how many whole sectors the data file has, and rounds its length up to whole sectors: after a torn
// write the next append would else start inside one, where no record can point. The torn sector itself counts for no
// record: what is missing of it would read as zeroes.
func (l *Log) alignData() (limit uint64, err error) {
	info, err := l.data.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	limit = uint64(size) / SectorSize
	if rest := size % SectorSize; rest != 0 {
		size += SectorSize - rest
		if err := l.data.Truncate(size); err != nil {
			return 0, err
		}
	}
	l.end.Store(size)
	l.freed.Store(max(0, size-allocated(info)))
	return limit, nil
}

// replayIndex inserts the records of the index file up to the first unusable one, cuts the file off there, and makes
// data and index durable: a killed process may have written records that it did not live to sync, and a flush that
// finds nothing waiting would acknowledge them. It returns the number of records, flush marks and other padding left
// out.
func (l *Log) replayIndex(limit uint64, r *Recovery) (applied uint64, err error) {
	info, err := l.index.Stat()
	if err != nil {
		return 0, err
	}
	n := (info.Size() - HeaderSize) / entrySize
	r.Torn = (info.Size() - HeaderSize) % entrySize
	if n > MaxRecords {
		return 0, corrupt("index", HeaderSize, "%d records, above the limit of %d", n, MaxRecords)
	}
	scan := indexScan{log: l, limit: limit, bad: -1}
	if err := scan.run(n); err != nil {
		return 0, err
	}
	l.records.Store(n)
	if scan.bad >= 0 {
		at := HeaderSize + scan.bad*entrySize
		if scan.covered > scan.bad {
			return 0, corrupt("index", at, "record %v is unusable (data ends at sector %d), and a flush had covered it",
				scan.badRecord, limit)
		}
		l.records.Store(scan.bad)
		r.Dropped = n - scan.bad
	}
	if scan.inBase {
		// A rewritten index file got its name after all of it was durable.
		return 0, corrupt("index", HeaderSize, "the end of the records that stand for the first %d is missing", scan.base)
	}
	if l.indexEnd() != info.Size() {
		if err := l.index.Truncate(l.indexEnd()); err != nil {
			return 0, err
		}
	}
	if err := datasync(l.data); err != nil {
		return 0, err
	}
	return scan.applied, datasync(l.index)
}

// indexScan reads an index file once, from front to end.
type indexScan struct {
	log       *Log
	limit     uint64 // sectors of data
	applied   uint64 // records of the log that were inserted, or that others stand for
	bad       int64  // number of the first unusable entry, or -1
	badRecord Segment
	covered   int64  // entries that the last flush mark declares durable
	base      uint64 // number of records that those of a rewritten index file stand for
	inBase    bool   // the entries at hand are such records
}

func (c *indexScan) run(entries int64) error {
	buf := make([]byte, min(entries*entrySize, indexRead))
	for at := int64(0); at < entries; {
		p := buf[:min(int64(len(buf)), (entries-at)*entrySize)]
		if err := readFull(c.log.index, "index", p, HeaderSize+at*entrySize); err != nil {
			return err
		}
		for ; len(p) > 0; p = p[entrySize:] {
			c.entry(at, decodeSegment(p))
			at++
		}
	}
	return nil
}

// entry looks at entry number n. Behind an unusable one only flush marks count any more.
func (c *indexScan) entry(n int64, s Segment) {
	switch {
	case isBaseMark(s, n):
		c.base, c.inBase = s.MOffset(), true
	case isFlushMark(s, n):
		c.covered = n
		if c.inBase {
			c.applied, c.inBase = c.base, false
		}
	}
	if s.isPadding() || c.bad >= 0 {
		return
	}
	if !s.inRange(c.limit) {
		c.bad, c.badRecord = n, s
		return
	}
	c.log.live.insert(s.WithTag(c.log.tag))
	if !c.inBase {
		c.applied++
	}
}

// replayPending adds the records that a killed process left in its queue, behind the applied ones of the index file.
func (l *Log) replayPending(limit, applied uint64, r *Recovery) error {
	records, err := readPending(l.paths.Pending, l.head.UUID, l.boot, applied)
	if err != nil {
		return err
	}
	if err := l.requeue(records, limit); err != nil {
		return err
	}
	r.Replayed = len(records)
	l.inserted = applied + uint64(len(records))
	l.queue.start(l.inserted)
	// All it held is in the index file now; the next append makes a new one.
	if err := os.Remove(l.paths.Pending); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// requeue inserts records and makes them durable. A kill in the middle is repaired by the next open: the queue is still
// there, and records are taken from it by number.
func (l *Log) requeue(records []Segment, limit uint64) error {
	if len(records) == 0 {
		return nil
	}
	w := entryWriter{f: l.index, off: l.indexEnd(), buf: make([]byte, 0, 1<<16)}
	if n := l.records.Load(); n > 0 {
		if err := w.put(flushMark(n)); err != nil {
			return err
		}
	}
	for i, s := range records {
		if s.isPadding() || !s.inRange(limit) {
			return corrupt("pending", pendData, "record %d, %v, is unusable (data ends at sector %d)", i, s, limit)
		}
		l.live.insert(s.WithTag(l.tag))
		if err := w.put(s.WithTag(l.tag)); err != nil {
			return err
		}
	}
	// The data needs no sync of its own: replayIndex made the whole data file durable, and nothing was appended since.
	if err := w.flush(); err != nil {
		return err
	}
	l.records.Store((w.off - HeaderSize) / entrySize)
	return datasync(l.index)
}

// allocated returns how many bytes a file takes on the disk. What is missing to its length, Reclaim gave back.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
