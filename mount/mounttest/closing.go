package mounttest

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
)

func testCloseWaits(t *testing.T, e *env) {
	dev, x, c := e.drive(t)
	ended := make(chan error, 1)
	go func() { ended <- closeWithin(x, limit) }()
	select {
	case err := <-ended:
		t.Fatalf("close returned %v while a client was open", err)
	case <-time.After(50 * time.Millisecond):
	}
	p := noise(7, 4096)
	write(t, c, p, 0) // who is in may finish its work
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	same(t, "device", read(t, dev, 4096, 0), p)
}

func testCloseCuts(t *testing.T, e *env) {
	dev, x, c := e.drive(t)
	err := closeWithin(x, 20*time.Millisecond)
	var detached *mount.DetachedError
	if !errors.As(err, &detached) || !errors.Is(err, mount.ErrDetached) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want a DetachedError for the deadline", err)
	}
	if detached.Name != "drive" || detached.Handles != 1 || detached.Ops != 0 {
		t.Errorf("%+v, want drive, one handle and no call in flight", detached)
	}
	before := dev.Counts()
	if _, err := c.WriteAt(make([]byte, 4096), 0); err == nil {
		t.Error("a write succeeded after the cut")
	}
	if _, err := c.ReadAt(make([]byte, 4096), 0); err == nil {
		t.Error("a read succeeded after the cut")
	}
	if err := c.Sync(); err == nil {
		t.Error("a sync succeeded after the cut: the client would believe its writes to be safe")
	}
	if after := dev.Counts(); after != before {
		t.Errorf("calls reached the device after the cut: %+v, before %+v", after, before)
	}
}

func testCloseHung(t *testing.T, e *env) {
	inside, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	dev := NewMemDevice(deviceSize)
	dev.Hook = func(op Op, _, _ int64) error {
		if op == OpWrite {
			once.Do(func() { close(inside) })
			<-resume
		}
		return nil
	}
	x := e.expose(t, "drive", dev, false)
	c := e.open(t, x, false)
	result := make(chan error, 1)
	go func() {
		_, err := c.WriteAt(make([]byte, 4096), 0)
		result <- err
	}()
	<-inside
	err := closeWithin(x, 20*time.Millisecond)
	close(resume)
	var detached *mount.DetachedError
	if !errors.As(err, &detached) || detached.Ops != 1 {
		t.Errorf("%v, want a DetachedError with one call in flight", err)
	}
	select {
	case <-result: // an error or success: the write had begun before
	case <-time.After(limit):
		t.Error("the client's write hangs")
	}
}

func testVanish(t *testing.T, e *env) {
	dev, x, c := e.drive(t)
	e.Vanish(t, x.Path())
	p := noise(8, 4096)
	write(t, c, p, 0) // others go on
	same(t, "device", read(t, dev, 4096, 0), p)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := closeWithin(x, limit); err != nil {
		t.Errorf("close after a client died: %v", err)
	}
}

func testCycles(t *testing.T, e *env) {
	cycle := func() {
		dev := NewMemDevice(deviceSize)
		x, err := e.Exposer.Expose(t.Context(), "cycle", dev, false)
		if err != nil {
			t.Fatal(err)
		}
		c, err := e.Open(x.Path(), false)
		if err != nil {
			t.Fatal(err)
		}
		write(t, c, noise(9, 4096), 4096)
		if err := errors.Join(c.Sync(), c.Close(), closeWithin(x, limit)); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // pools, server threads and the like settle
		cycle()
	}
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 50 {
		cycle()
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d files open, %d before", n, files)
	}
	// A server may keep a few more goroutines for its peak, but not one per cycle.
	if n := runtime.NumGoroutine(); n > goroutines+20 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
