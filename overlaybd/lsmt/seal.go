package lsmt

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Seal turns the data file into a sealed layer where it lies: the index and a trailer go behind the data, fsynced. Its
// cost grows with the number of segments, not with the bytes they map. It returns the segments, which keep the log's
// tag.
//
// The index file stays, and stays the truth, until the caller has recorded that the layer is sealed and calls Retire: a
// crash before that reopens the log, for which the bytes behind the data are garbage. A failed Seal can be repeated.
func (l *Log) Seal() ([]Segment, error) {
	if err := l.Sync(); err != nil {
		return nil, err
	}
	l.mu.RLock()
	segs := l.live.appendTo(nil)
	l.mu.RUnlock()
	if len(segs) > MaxSegments {
		return nil, fmt.Errorf("seal %s: %w", l.paths.Data,
			Invalid("log", fmt.Sprintf("of %d segments", len(segs)), fmt.Sprintf("at most %d", MaxSegments)))
	}
	end := l.end.Load()
	// What an append or an earlier Seal left behind when it failed would stand between the trailer and the end of the
	// file.
	if err := l.data.Truncate(end); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	if err := l.writeTrailer(segs, end); err != nil {
		_ = l.data.Truncate(end) // gives space back; the bytes do no harm where they are
		return nil, fmt.Errorf("seal %s: %w", l.paths.Data, err)
	}
	if err := l.data.Sync(); err != nil {
		return nil, l.fail(err)
	}
	return segs, nil
}

func (l *Log) writeTrailer(segs []Segment, end int64) error {
	// On its own the layer has one file, number 0.
	return writeTail(io.NewOffsetWriter(l.data, end), l.head, untagged(segs), end)
}

// writeTail writes what stands behind the data of a layer sealed in place, which ends at end: the index, zeroes up to
// a whole sector, and the trailer. Of the flags of t only that of a sparse upper is kept, and the user tag is not, as
// in the reference.
func writeTail(w io.Writer, t Header, segs []Segment, end int64) error {
	if err := writeEntries(w, segs); err != nil {
		return err
	}
	size := int64(len(segs)) * entrySize
	if rest := size % SectorSize; rest != 0 {
		if _, err := w.Write(make([]byte, SectorSize-rest)); err != nil {
			return err
		}
	}
	t.Flags, t.IndexOffset, t.IndexSize = flagsTrailer|t.Flags&flagSparse, end, int64(len(segs))
	t.UserTag = ""
	_, err := w.Write(t.encode())
	return err
}

func untagged(segs []Segment) []Segment {
	out := make([]Segment, len(segs))
	for i, s := range segs {
		out[i] = s.WithTag(0)
	}
	return out
}

// Detach lets a log be synced without the log below it, which is sealed now.
func (l *Log) Detach() { l.below.Store(nil) }

// Release closes the data file of a retired log whose layer nobody reads any more. The log needs no Close then; a Sync
// that began long ago still finds nothing to do.
func (l *Log) Release() error {
	l.rounds.run.Lock()
	defer l.rounds.run.Unlock()
	return l.data.Close()
}

// Retire removes the index file and the queue of a sealed log. The data file stays open for reads.
func (l *Log) Retire() error {
	// A Sync that began before the seal may still want the queue.
	l.rounds.run.Lock()
	defer l.rounds.run.Unlock()
	if l.retired {
		return nil
	}
	l.retired = true
	err := errors.Join(l.queue.close(), l.index.Close())
	l.index = nil
	for _, path := range []string{l.paths.Index, l.paths.Pending} {
		if e := os.Remove(path); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
