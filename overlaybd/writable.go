package overlaybd

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// Writable is a stack with an upper on top, opened as a Device.
//
// Readers take no lock of the device: they load an immutable view and read again if bytes went away meanwhile.
// Writers take turns. A change of the view (seal, roll, thaw, replaced layers) builds what it needs first and then
// swaps the view between two writes.
type Writable struct {
	engine *Engine
	boot   string // boot id
	dir    *stateDir
	base   *sealedStack // the layers as opened; closed with the device
	size   atomic.Int64
	view   atomic.Pointer[lsmt.View]
	moves  atomic.Uint64 // times that bytes went from where a view says they are; see ReadAt
	failed atomic.Pointer[error]

	// sealing is held by whatever changes view, state or size, from start to end. It is taken before writing.
	sealing   sync.Mutex
	state     localState
	saved     localState    // what state.json holds
	top       uuid.UUID     // of the topmost sealed layer
	sealed    []SealedLayer // as state.Sealed
	published int           // how many of sealed are in the published stack
	stack     Stack         // the published stack, as far as the device was told
	order     []placedLayer // all sealed layers, bottom first
	spans     []int         // how many of order each layer of the published stack stands for

	// writing is held for each append, and for the moment of a swap.
	writing sync.Mutex
	upper   *lsmt.Log // takes the writes; nil after a final seal
	final   bool
	written int64 // bytes since the last look at the garbage

	closed     atomic.Bool
	done       chan struct{}
	syncing    atomic.Bool
	reclaiming atomic.Bool
	noHoles    atomic.Bool    // the file system frees no parts of a file
	background sync.WaitGroup // never waits for sealing
	working    sync.WaitGroup // calls that may wait for it
	close      sync.Once
	closeErr   error
	retired    []*lsmt.Log // sealed logs, whose data files are still read
}

var _ Device = (*Writable)(nil)

// maxRecord is the number of bytes that one record of the log maps at most when data is written, as in the reference.
const maxRecord = 4 << 20

// Size implements Device.
func (w *Writable) Size() int64 { return w.size.Load() }

// ReadAt implements Device.
func (w *Writable) ReadAt(p []byte, off int64) (int, error) {
	if w.closed.Load() {
		return 0, ErrClosed
	}
	for {
		// Bytes go away when the log gives the space of overwritten ones back, and when layers are replaced by others
		// with the same content. Both raise moves after they know what goes and before it goes: a read that began
		// before that may have looked up what is gone now, and any other has not. In between it is a load of a word
		// that seldom changes.
		moves := w.moves.Load()
		n, err := readView(w.view.Load(), w.size.Load(), p, off)
		if w.moves.Load() == moves {
			return n, err
		}
	}
}

// WriteAt implements Device. A write that was acknowledged survives the death of the process; Flush makes it survive
// that of the machine.
func (w *Writable) WriteAt(p []byte, off int64) (int, error) {
	if err := w.checkChange(off, int64(len(p))); err != nil {
		return 0, err
	}
	done := 0
	for done < len(p) {
		piece := p[done:min(len(p), done+maxRecord)]
		lba := uint64(off+int64(done)) / SectorSize
		if err := w.change(piece, lba, uint64(len(piece))/SectorSize); err != nil {
			return done, fmt.Errorf("overlaybd: write %d bytes at %d: %w", len(p), off, err)
		}
		done += len(piece)
	}
	return done, nil
}

// Discard implements Device. Nothing is recorded for ranges that no layer maps: a trim of an empty disk stays free.
func (w *Writable) Discard(off, n int64) error {
	if err := w.checkChange(off, n); err != nil {
		return err
	}
	for lba, end := uint64(off)/SectorSize, uint64(off+n)/SectorSize; lba < end; lba += lsmt.MaxSegment {
		if err := w.change(nil, lba, min(end-lba, lsmt.MaxSegment)); err != nil {
			return fmt.Errorf("overlaybd: discard %d bytes at %d: %w", n, off, err)
		}
	}
	return nil
}

func (w *Writable) checkChange(off, n int64) error {
	if err := checkRange(off, n); err != nil {
		return err
	}
	if size := w.size.Load(); off > size || n > size-off {
		return lsmt.Invalid("range", fmt.Sprintf("of %d bytes at %d", n, off), fmt.Sprintf("below the size, %d", size))
	}
	return nil
}

// change makes one record: n sectors from lba on hold p or, if p is nil, zeroes.
func (w *Writable) change(p []byte, lba, n uint64) error {
	for {
		full, err := w.tryChange(p, lba, n)
		if full == nil || err != nil {
			return err
		}
		if err := w.roll(full); err != nil {
			return fmt.Errorf("start a fresh upper: %w", err)
		}
	}
}

// tryChange is change, unless the upper has as many segments as a layer may, or its index file as many records: then it
// returns that upper. It looks before each record, so that no large write or discard passes a limit.
func (w *Writable) tryChange(p []byte, lba, n uint64) (full *lsmt.Log, err error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.refusal(); err != nil {
		return nil, err
	}
	if p == nil && w.view.Load().IsHole(lba, n) {
		return nil, nil
	}
	if w.upper.Segments()+minSealAt-1 > w.engine.sealAt || w.upper.Full() {
		return w.upper, nil
	}
	if p == nil {
		err = w.upper.Discard(lba, n)
	} else {
		err = w.upper.Append(p, lba)
	}
	if err != nil {
		return nil, w.note(err)
	}
	if w.upper.Waiting() {
		w.syncSoon()
	}
	w.countWritten(int64(len(p)))
	return nil, nil
}

// refusal says why the device takes no writes. The caller holds writing.
func (w *Writable) refusal() error {
	switch {
	case w.closed.Load():
		return ErrClosed
	case w.final:
		return ErrFinal
	}
	return w.failure()
}

func (w *Writable) failure() error {
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// note makes the device refuse writes and flushes for ever if err says that an fsync failed. It returns err.
func (w *Writable) note(err error) error {
	if errors.Is(err, ErrFailed) && w.failed.CompareAndSwap(nil, &err) {
		w.engine.log.Error("device failed", "dir", w.dir.path, "error", err)
	}
	return err
}

// syncSoon moves waiting records to the index file beside the writers. The caller holds writing, so Close cannot be
// waiting for background work yet.
func (w *Writable) syncSoon() {
	if !w.syncing.CompareAndSwap(false, true) {
		return
	}
	upper := w.upper
	w.background.Go(func() {
		defer w.syncing.Store(false)
		if err := w.note(upper.Sync()); err != nil {
			// The records go on waiting; a Flush or a full queue meets the error again and returns it.
			w.engine.log.Warn("early sync failed", "dir", w.dir.path, "error", err)
		}
	})
}

// Flush implements Device. Callers that arrive while one is under way share the next: one fsync of data and at most
// one of index for all of them.
func (w *Writable) Flush() error {
	if w.closed.Load() {
		return ErrClosed
	}
	if err := w.failure(); err != nil {
		return fmt.Errorf("overlaybd: flush: %w", err)
	}
	// The topmost log syncs the one below it first, if that is not sealed yet.
	if logs := w.view.Load().Logs; len(logs) > 0 {
		if err := w.note(logs[0].Sync()); errors.Is(err, os.ErrClosed) {
			return ErrClosed
		} else if err != nil {
			return fmt.Errorf("overlaybd: flush: %w", err)
		}
	}
	return nil
}

// Grow raises the size to n bytes, durably. It is the only way to change the size.
func (w *Writable) Grow(n int64) error {
	if err := checkSize("size", n); err != nil {
		return err
	}
	w.sealing.Lock()
	defer w.sealing.Unlock()
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.refusal(); err != nil {
		return err
	}
	size := w.size.Load()
	if n < size {
		return lsmt.Invalid("size", n, fmt.Sprintf("at least the present one, %d", size))
	}
	if n == size {
		return nil
	}
	if err := w.note(w.upper.Grow(n)); err != nil {
		return fmt.Errorf("overlaybd: %w", err)
	}
	w.size.Store(n)
	return nil
}

// Stats are figures of a Writable at one moment.
type Stats struct {
	Segments      int   // live segments of the upper
	LiveBytes     int64 // bytes of the disk that the upper stores
	LogBytes      int64 // space of the upper's data: live bytes, overwritten ones that were not given back, a header
	IndexBytes    int64 // space of the upper's records
	GarbageBytes  int64 // of LogBytes and IndexBytes, what a Reclaim may give back
	UnsealedBytes int64 // bytes written since the last seal, overwritten ones included
	Layers        int   // sealed layers below the upper
	LayerSegments int   // segments of the sealed layers, as far as no higher one hides them
	Syncs         int64 // fsyncs of the upper's files since the device was opened or last sealed
}

// GarbageRatio is the part of the upper's space that a Reclaim may give back, 0 to 1.
func (s Stats) GarbageRatio() float64 {
	if s.GarbageBytes == 0 {
		return 0
	}
	return float64(s.GarbageBytes) / float64(s.LogBytes+s.IndexBytes)
}

// Stats returns the present figures. During a roll both uppers count.
func (w *Writable) Stats() Stats {
	v := w.view.Load()
	s := Stats{Layers: layersUsed(v.Files) - len(v.Logs), LayerSegments: len(v.Base.Segments())}
	for _, l := range v.Logs {
		s.Segments += l.Segments()
		s.LiveBytes += l.LiveBytes()
		garbage, _ := l.Garbage()
		s.GarbageBytes += garbage
		s.LogBytes += l.StoredBytes() + lsmt.HeaderSize
		s.IndexBytes += l.IndexBytes()
		s.UnsealedBytes += l.DataBytes()
		s.Syncs += l.Syncs()
	}
	return s
}

// Close flushes, ends reads that wait for a store, and releases the directory. A second Close returns what the first
// did.
func (w *Writable) Close() error {
	w.close.Do(func() { w.closeErr = w.shut() })
	return w.closeErr
}

func (w *Writable) shut() error {
	close(w.done) // ends reads, replacing layers and giving space back
	w.writing.Lock()
	w.closed.Store(true)
	w.writing.Unlock()
	w.working.Wait()
	w.sealing.Lock() // a seal under way ends first
	defer w.sealing.Unlock()
	w.background.Wait()

	var err error
	logs := w.view.Load().Logs
	if len(logs) > 0 {
		err = logs[0].Sync()
	}
	for _, l := range append(logs[:len(logs):len(logs)], w.retired...) {
		err = errors.Join(err, l.Close())
	}
	err = errors.Join(err, w.base.close(), w.dir.close())
	if err != nil {
		return fmt.Errorf("overlaybd: close: %w", err)
	}
	return nil
}
