package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/journal"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Session is an exclusive volume in the hands of a sandbox on this node. Its Device takes reads and writes; the other
// methods bring what was written into the repository. They may be called concurrently and take their turn.
type Session struct {
	m     *Manager
	log   *genlog.Log[record.Volume]
	dev   *overlaybd.Writable
	drive *drive
	grant journal.Entry // as it was acquired; never changes

	// fresh follows what was written and not published.
	fresh unpublished

	// turn admits one publishing method at a time; unlike a mutex it lets a caller give up waiting.
	turn *semaphore.Weighted

	// Guarded by turn.
	gen    genlog.Generation[record.Volume]
	entry  journal.Entry
	closed bool
	top    string // uuid of the newest layer that was sealed
	// doubt: a pause or release was sent whose outcome is not known. It may have landed, or still land.
	doubt bool

	// salvaged: the session was lost, and what was not published is kept elsewhere. The local layers go when it is closed.
	// Set in turn.
	salvaged atomic.Bool

	quiesce atomic.Pointer[QuiesceFunc]
	lost    chan struct{}
	once    sync.Once
	cause   atomic.Pointer[error]
}

// QuiesceFunc brings the file systems on a drive to rest, as fsfreeze does, and returns how to let them go on. The context
// bounds the call.
type QuiesceFunc func(context.Context) (thaw func() error, err error)

func newSession(m *Manager, gen genlog.Generation[record.Volume], entry journal.Entry, dev *overlaybd.Writable) *Session {
	s := &Session{m: m, log: m.volumeLog(gen.State.ID), dev: dev, turn: semaphore.NewWeighted(1), gen: gen, entry: entry,
		grant: entry, lost: make(chan struct{})}
	s.drive = &drive{Writable: dev, session: s}
	s.doubt = entry.Sealed != nil && entry.Sealed.Final // the process that sealed it may have gone further
	if dev.Stats().Segments > 0 || entry.Sealed != nil {
		s.fresh.touched(m.r.clock) // written before a restart
	}
	return s
}

// drive is the device that a sandbox sees: it refuses writes once the volume is somebody else's.
type drive struct {
	*overlaybd.Writable
	session *Session
}

func (d *drive) WriteAt(p []byte, off int64) (int, error) {
	if err := d.session.Err(); err != nil {
		return 0, err
	}
	if err := d.session.m.r.disk.take(len(p)); err != nil {
		return 0, err
	}
	d.session.fresh.touched(d.session.m.r.clock)
	return d.Writable.WriteAt(p, off)
}

func (d *drive) Discard(off, n int64) error {
	if err := d.session.Err(); err != nil {
		return err
	}
	d.session.fresh.touched(d.session.m.r.clock)
	return d.Writable.Discard(off, n)
}

// Device returns the drive. It is usable until the session is paused, released or closed.
func (s *Session) Device() overlaybd.Device { return s.drive }

// Volume returns the volume's id.
func (s *Session) Volume() string { return s.grant.Volume }

// Sandbox returns the owner.
func (s *Session) Sandbox() string { return s.grant.Sandbox }

// Epoch returns the number of the grant. What this session publishes counts only while the record carries the same.
func (s *Session) Epoch() uint64 { return s.grant.Epoch }

// From returns the phase that the volume was acquired from: free, or paused.
func (s *Session) From() reservation.Phase { return s.grant.From }

// Lost is closed when the repository has told this session that the volume is not its sandbox's any more. Writes fail from
// then on, reads go on until Close. What was written and not published becomes a volume of its own: see Salvage.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err returns why the session was lost, or nil.
func (s *Session) Err() error {
	if p := s.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// OnFlush sets what brings the sandbox's file systems to rest when another request asks for a flush of this volume. Without
// it such a cut is marked Crash.
func (s *Session) OnFlush(q QuiesceFunc) { s.quiesce.Store(&q) }

// Mounted records that the sandbox has the drive in use. It may be repeated.
func (s *Session) Mounted(ctx context.Context) error {
	return s.do(ctx, "mark mounted", func() error {
		return s.append(ctx, record.Mounted(s.grant.Epoch, s.grant.Sandbox))
	})
}

// do runs f when it is this call's turn.
func (s *Session) do(ctx context.Context, what string, f func() error) error {
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.turn.Release(1)
	err := s.Err()
	if err == nil && s.closed {
		err = overlaybd.ErrClosed
	}
	if err == nil {
		err = f()
	}
	if err != nil {
		return fmt.Errorf("%s volume %s: %w", what, s.grant.Volume, err)
	}
	return nil
}

// append appends to the volume's record on behalf of the holder. Called in turn.
func (s *Session) append(ctx context.Context, op genlog.Op[record.Volume]) error {
	gen, err := s.log.AppendTo(ctx, s.gen, op)
	switch {
	case err == nil:
		s.gen = gen
	case errors.Is(err, ErrFenced) && !errors.Is(err, genlog.ErrInDoubt):
		s.lose(err)
		s.noteLost()
	}
	return err
}

// open reports, when it is its turn, whether the session can still be used: one that is just being paused cannot.
func (s *Session) open(ctx context.Context) bool {
	if s.turn.Acquire(ctx, 1) != nil {
		return false
	}
	defer s.turn.Release(1)
	return !s.closed
}

// Close closes the drive after flushing it. The volume stays held by the sandbox and the local layers stay on disk: Attach
// by the same sandbox on this node goes on from there. It may be repeated.
func (s *Session) Close() error {
	// No context: a process that goes down has nothing better to do than to flush.
	if err := s.turn.Acquire(context.Background(), 1); err != nil {
		return err
	}
	defer s.turn.Release(1)
	return s.close()
}

// close closes the device and forgets the session. Called in turn.
func (s *Session) close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.dev.Close()
	s.m.r.unregister(s)
	if s.salvaged.Load() {
		err = errors.Join(err, s.m.r.forget(s.entry))
	}
	return err
}

// finish ends a session whose volume was paused or released: everything is in the repository, so the local layers and the
// journal's entry go. Failures here are logged and nothing more: the durable outcome stands.
func (s *Session) finish() {
	err := s.close()
	if err = errors.Join(err, s.m.r.forget(s.entry)); err != nil {
		s.m.r.log.Warn("local clean-up", "volume", s.grant.Volume, "error", err)
	}
}

// ReadAt, Size and Flush of a drive are those of the engine; the compiler checks that it is a whole Device.
var (
	_ overlaybd.Device = (*drive)(nil)
	_ io.Closer        = (*Session)(nil)
)
