package lsmt

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// ErrFailed: an fsync failed. What was written since the one before it may be lost, and the kernel reports that only
// once, so the log takes no more writes and answers no more flushes.
var ErrFailed = errors.New("log failed")

// LogPaths are the files of one log, in one directory.
type LogPaths struct {
	Data    string // header, data; sealed in place
	Index   string // header, records
	Pending string // records that are not in Index yet
}

// LogOptions say what a log is and where it lies.
type LogOptions struct {
	UUID        uuid.UUID
	Parent      uuid.UUID // of the layer below
	VirtualSize int64
	Tag         uint8  // of the log's records: its place among the files of a View
	BootID      string // of this boot of the machine
	Below       *Log   // the log that this one continues, if it is not sealed yet
}

// Log is an upper: an append-only data file and an index file of records in write order.
//
// Append, Discard, Grow and Seal must not overlap each other. Everything else may be called at any time.
type Log struct {
	paths LogPaths
	tag   uint8
	boot  string
	head  Header

	data, index *os.File
	end         atomic.Int64 // of data: where the next append goes

	mu       sync.RWMutex
	live     liveIndex
	inserted uint64 // records that live is made of, as the queue numbers them

	queue   pending
	records atomic.Int64 // entries in the index file, marks included; changed by the round that runs
	syncs   atomic.Int64
	rounds  rounds
	retired bool // belongs to the round that runs: the index file is gone
	buf     []byte
	below   atomic.Pointer[Log]
	failed  atomic.Pointer[error]

	freed      atomic.Int64 // bytes of data given back
	residue    atomic.Int64 // garbage that the last Reclaim left
	reclaiming sync.Mutex
	front      int64 // all data before it is given back; belongs to the Reclaim that runs
}

// CreateLog makes the files of a new log, fsynced. The caller fsyncs the directory.
func CreateLog(p LogPaths, o LogOptions) (*Log, error) {
	l := newLog(p, o)
	if err := l.createFiles(o); err != nil {
		err = errors.Join(err, l.closeFiles())
		if !errors.Is(err, os.ErrExist) { // then they are another log's
			_, _ = os.Remove(p.Index), os.Remove(p.Data)
		}
		return nil, fmt.Errorf("create log %s: %w", p.Data, err)
	}
	return l, nil
}

func (l *Log) createFiles(o LogOptions) (err error) {
	l.head = Header{Flags: flagsData, VirtualSize: o.VirtualSize, UUID: o.UUID, Parent: o.Parent}
	if l.data, err = createFile(l.paths.Data, l.head); err != nil {
		return err
	}
	indexHead := l.head
	indexHead.Flags, indexHead.IndexOffset = flagsIndex, HeaderSize
	l.index, err = createFile(l.paths.Index, indexHead)
	l.end.Store(HeaderSize)
	return err
}

func newLog(p LogPaths, o LogOptions) *Log {
	l := &Log{paths: p, tag: o.Tag, boot: o.BootID, queue: pending{path: p.Pending}, front: HeaderSize}
	l.below.Store(o.Below)
	return l
}

func createFile(path string, h Header) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(h.encode(), 0); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// UUID is the uuid of the log and of the layer that it becomes.
func (l *Log) UUID() uuid.UUID { return l.head.UUID }

// Parent is the uuid of the layer below.
func (l *Log) Parent() uuid.UUID { return l.head.Parent }

// Tag is the tag of the log's segments.
func (l *Log) Tag() uint8 { return l.tag }

// Path is the path of the data file.
func (l *Log) Path() string { return l.paths.Data }

// Data is the data file. It stays open until Close, also when the log was sealed.
func (l *Log) Data() *os.File { return l.data }

// VirtualSize is the size in the log's header. It must not be called during Grow.
func (l *Log) VirtualSize() int64 { return l.head.VirtualSize }

// Segments returns the number of live segments.
func (l *Log) Segments() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.live.len()
}

// LiveBytes returns how many bytes of the disk the log stores.
func (l *Log) LiveBytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return int64(l.live.data) * SectorSize
}

// Syncs returns how often an fsync of one of the files was asked for since the log was opened.
func (l *Log) Syncs() int64 { return l.syncs.Load() }

// DataBytes returns how many bytes of data were appended, overwritten ones included.
func (l *Log) DataBytes() int64 { return l.end.Load() - HeaderSize }

// Waiting reports whether so many records wait for a Sync that one should be made soon.
func (l *Log) Waiting() bool { return l.queue.len() > syncThreshold }

// maxDataBytes is where a log ends that Reclaim keeps small: it frees blocks, but a file's length only grows, and ext4
// with blocks of 4 KiB has no file above 16 TiB.
const maxDataBytes = 8 << 40

// Full reports whether the log must end soon: the index file may get more entries than readers of the format accept, or
// the data file longer than file systems do. Each waiting record brings at most one flush mark.
func (l *Log) Full() bool {
	return l.records.Load() >= MaxRecords-2*pendingSlots || l.DataBytes() >= maxDataBytes
}

// Next returns the segment that holds sector lba or, if none does, the first one behind it; false if there is neither.
func (l *Log) Next(lba uint64) (Segment, bool) {
	l.mu.RLock()
	s, ok := l.live.next(lba)
	l.mu.RUnlock()
	return s, ok
}

// Append stores p, at most MaxSegment whole sectors, as the content of the disk from sector lba on. When it returns
// nil, the write survives the death of the process.
func (l *Log) Append(p []byte, lba uint64) error {
	if err := l.prepare(); err != nil {
		return err
	}
	end := l.end.Load()
	if _, err := l.data.WriteAt(p, end); err != nil {
		// No record points to what a short write left, and the next append overwrites it. Cutting it off gives the space
		// back, which is what is missing most of the time; if that fails too, nothing is wrong.
		_ = l.data.Truncate(end)
		return fmt.Errorf("append to %s: %w", l.paths.Data, err)
	}
	l.add(DataSegment(lba, uint64(len(p))/SectorSize, uint64(end)/SectorSize, l.tag))
	l.end.Store(end + int64(len(p)))
	return nil
}

// Discard makes n sectors from lba on, at most MaxSegment, read as zeroes. It is as durable as an Append.
func (l *Log) Discard(lba, n uint64) error {
	if err := l.prepare(); err != nil {
		return err
	}
	l.add(ZeroSegment(lba, n, uint64(l.end.Load())/SectorSize, l.tag))
	return nil
}

// prepare makes room for one record.
func (l *Log) prepare() error {
	if err := l.failure(); err != nil {
		return err
	}
	if l.queue.mem == nil {
		return l.queue.create(l.head.UUID, l.boot)
	}
	if l.queue.full() {
		return l.Sync()
	}
	return nil
}

// add makes the record first: from then on a killed process keeps the write.
func (l *Log) add(s Segment) {
	l.queue.add(s)
	l.mu.Lock()
	l.live.insert(s)
	l.inserted++
	l.mu.Unlock()
}

// Grow raises the virtual size, durably. Both headers carry it; after a crash between them the greater one counts.
func (l *Log) Grow(size int64) error {
	// A Reclaim that copied the old header must not put that file in the place of this one.
	l.rounds.run.Lock()
	defer l.rounds.run.Unlock()
	if err := l.failure(); err != nil {
		return err
	}
	h := l.head
	h.VirtualSize = size
	field := h.encode()[offVirtualSize : offVirtualSize+8]
	for _, f := range []*os.File{l.data, l.index} {
		if _, err := f.WriteAt(field, offVirtualSize); err != nil {
			return fmt.Errorf("grow %s: %w", f.Name(), err)
		}
		if err := l.syncFile(f); err != nil {
			return l.fail(err)
		}
	}
	l.head.VirtualSize = size
	return nil
}

func (l *Log) failure() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// fail makes the log refuse writes and flushes from now on.
func (l *Log) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	l.failed.CompareAndSwap(nil, &err)
	return err
}

// Close closes the files without a Sync. Append and Discard must have ended; Sync fails from then on.
func (l *Log) Close() error {
	l.rounds.run.Lock()
	defer l.rounds.run.Unlock()
	closed := fmt.Errorf("log %s: %w", l.paths.Data, os.ErrClosed)
	l.failed.CompareAndSwap(nil, &closed)
	return l.closeFiles()
}

func (l *Log) closeFiles() error {
	err := l.queue.close()
	for _, f := range []*os.File{l.data, l.index} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
