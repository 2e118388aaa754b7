package overlaybd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// OpenFile returns a Source for a file on a local disk. Its reads are not watched by a timer.
func OpenFile(path string) (Source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileSource{f, info.Size()}, nil
}

type fileSource struct {
	*os.File
	size int64
}

func (f *fileSource) Size() int64 { return f.size }

// Local says that reads go to a local disk, and that Close may be called during a read.
func (f *fileSource) Local() bool { return true }

// layerSource is one sealed layer under an open device. The kernel's requests cannot be cancelled, so a store that is gone
// must not hold them, nor Close, for ever: a RemoteSource sees to that itself, and reads of any other Source that does not
// say it is local run beside the caller.
type layerSource struct {
	src     Source
	name    string // uuid of the layer, for errors
	local   bool
	remote  RemoteSource // src, or nil
	timeout time.Duration
	done    <-chan struct{} // closed when nobody wants the result any more
	doneErr error

	mu      sync.Mutex
	reading int
	closed  bool
}

func newLayerSource(src Source, name string, timeout time.Duration) *layerSource {
	l, ok := src.(interface{ Local() bool })
	remote, _ := src.(RemoteSource)
	return &layerSource{src: src, name: name, local: ok && l.Local(), remote: remote, timeout: timeout}
}

// watch sets the channel whose closing ends reads, and the error that they then return.
func (s *layerSource) watch(done <-chan struct{}, err error) {
	s.done, s.doneErr = done, err
	if inner, ok := s.src.(interface {
		watch(<-chan struct{}, error)
	}); ok {
		inner.watch(done, err)
	}
}

// ReadAt reads all of p, or returns an error that names the layer.
func (s *layerSource) ReadAt(p []byte, off int64) (n int, err error) {
	switch {
	case s.local:
		n, err = s.src.ReadAt(p, off)
	case s.remote != nil:
		n, err = s.readRemote(p, off)
	default:
		n, err = s.readBeside(p, off)
	}
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = &lsmt.CorruptError{Part: "data", Offset: off + int64(n), Detail: "the file ends too early"}
	}
	return n, fmt.Errorf("layer %s: %w", s.name, err)
}

// readRemote gives the errors of a RemoteSource this package's classes.
func (s *layerSource) readRemote(p []byte, off int64) (int, error) {
	n, err := s.remote.ReadWithin(p, off, s.timeout, s.done)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, context.Canceled) && s.doneErr != nil:
		err = s.doneErr
	}
	return n, err
}

// readJob is one read beside its caller, into memory of its own: the caller may be gone when the bytes arrive.
type readJob struct {
	buf  []byte
	n    int
	err  error
	done chan struct{}
}

func (s *layerSource) readBeside(p []byte, off int64) (int, error) {
	if !s.begin() {
		return 0, ErrClosed
	}
	job := &readJob{buf: make([]byte, len(p)), done: make(chan struct{})}
	go func() {
		defer s.end()
		job.n, job.err = s.src.ReadAt(job.buf, off)
		close(job.done)
	}()
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	select {
	case <-job.done:
		return copy(p, job.buf[:job.n]), job.err
	case <-s.done:
		return 0, s.doneErr
	case <-timer.C:
		return 0, fmt.Errorf("%w: no answer in %v", ErrUnavailable, s.timeout)
	}
}

func (s *layerSource) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.reading++
	return true
}

func (s *layerSource) end() {
	s.mu.Lock()
	s.reading--
	last := s.closed && s.reading == 0
	s.mu.Unlock()
	if last {
		_ = s.src.Close() // the device was closed long ago; nobody is left to tell
	}
}

// Close closes the source, or leaves that to the last read that still runs.
func (s *layerSource) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	busy := s.reading > 0
	s.mu.Unlock()
	if again || busy {
		return nil
	}
	return s.src.Close()
}
