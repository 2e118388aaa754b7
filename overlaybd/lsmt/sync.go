package lsmt

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// rounds lets callers that ask for the same work at the same time share one run of it. A caller never joins a run that
// had begun before it asked: that run may have missed what the caller wants covered.
type rounds struct {
	mu   sync.Mutex
	next *round // not begun; nil until somebody asks
	run  sync.Mutex
}

type round struct {
	done chan struct{}
	err  error
}

func (r *rounds) do(work func() error) error {
	r.mu.Lock()
	mine := r.next
	leads := mine == nil
	if leads {
		mine = &round{done: make(chan struct{})}
		r.next = mine
	}
	r.mu.Unlock()
	if !leads {
		<-mine.done
		return mine.err
	}
	r.run.Lock()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	mine.err = work()
	r.run.Unlock()
	close(mine.done)
	return mine.err
}

// Sync makes every append and discard that returned before it durable, those of the log below included. Concurrent
// calls share one fsync of the data and at most one of the index.
func (l *Log) Sync() error { return l.rounds.do(l.syncOnce) }

func (l *Log) syncOnce() error {
	if err := l.failure(); err != nil {
		return err
	}
	// The older log first, so that a power cut never keeps later writes and loses earlier ones.
	if below := l.below.Load(); below != nil {
		if err := below.Sync(); err != nil {
			return err
		}
	}
	from, to := l.queue.tail.Load(), l.queue.head.Load()
	if from == to || l.retired {
		return nil
	}
	// A record reaches the index file only after its data is durable. The other way round, a power cut could leave a
	// record whose data never arrived, and it would hide what an earlier flush had made durable at that address.
	if err := l.syncFile(l.data); err != nil {
		return l.fail(err)
	}
	n, err := l.appendRecords(from, to)
	if err != nil {
		// Not durable, but still in the queue: a later Sync writes them to the same place.
		if cut := l.index.Truncate(l.indexEnd()); cut != nil {
			return l.fail(cut)
		}
		return fmt.Errorf("append to %s: %w", l.paths.Index, err)
	}
	if err := l.syncFile(l.index); err != nil {
		return l.fail(err)
	}
	l.records.Add(n)
	l.queue.tail.Store(to)
	return nil
}

func (l *Log) indexEnd() int64 { return HeaderSize + l.records.Load()*entrySize }

// appendRecords writes the queued records to the index file, behind a flush mark, and returns how many entries it
// wrote.
func (l *Log) appendRecords(from, to uint64) (int64, error) {
	if l.buf == nil {
		l.buf = make([]byte, 0, 1<<16)
	}
	w := entryWriter{f: l.index, off: l.indexEnd(), buf: l.buf[:0]}
	start := w.off
	if n := l.records.Load(); n > 0 {
		// Everything in front was synced before this append began, so whatever reads the mark knows that.
		if err := w.put(flushMark(n)); err != nil {
			return 0, err
		}
	}
	for n := from; n < to; n++ {
		if err := w.put(decodeSegment(l.queue.slot(n))); err != nil {
			return 0, err
		}
	}
	if err := w.flush(); err != nil {
		return 0, err
	}
	return (w.off - start) / entrySize, nil
}

// flushMark is a padding entry, which every reader of the format skips. It says that the n entries in front of it were
// durable before it was written; it is entry number n itself.
func flushMark(n int64) Segment { return Segment{invalidLBA, uint64(n) & moffMask} }

// isFlushMark reports whether s, entry number n of an index file, is a flush mark.
func isFlushMark(s Segment, n int64) bool { return n > 0 && s == flushMark(n) }

// entryWriter appends entries to a file through a buffer.
type entryWriter struct {
	f   *os.File
	off int64
	buf []byte
}

func (w *entryWriter) put(s Segment) error {
	if len(w.buf)+entrySize > cap(w.buf) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.buf = w.buf[:len(w.buf)+entrySize]
	s.encode(w.buf[len(w.buf)-entrySize:])
	return nil
}

func (w *entryWriter) flush() error {
	n, err := w.f.WriteAt(w.buf, w.off)
	w.off += int64(n)
	w.buf = w.buf[:0]
	return err
}

// syncFile is datasync of one of the log's files.
func (l *Log) syncFile(f *os.File) error {
	l.syncs.Add(1)
	return datasync(f)
}

// datasync is fdatasync: the bytes and what is needed to find them, which includes a grown length.
func datasync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		return nil
	}
}
