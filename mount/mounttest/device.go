package mounttest

import (
	"sync"
	"testing"

	"github.com/sandvol/sandvol/overlaybd"
)

func testReadOnly(t *testing.T, e *env) {
	dev := NewMemDevice(deviceSize)
	content := noise(5, 4096)
	if _, err := dev.WriteAt(content, 4096); err != nil {
		t.Fatal(err)
	}
	before := dev.Counts()
	x := e.expose(t, "readonly", dev, true)
	c := e.open(t, x, true)
	same(t, "client", read(t, c, 4096, 4096), content)
	if w, err := e.Open(x.Path(), false); err == nil {
		defer w.Close()
		if _, err := w.WriteAt(make([]byte, 512), 0); err == nil {
			t.Error("a write through a second client succeeded")
		}
	}
	if _, err := c.WriteAt(make([]byte, 512), 0); err == nil {
		t.Error("a write succeeded")
	}
	if err := c.Discard(0, 512); err == nil {
		t.Error("a discard succeeded")
	}
	after := dev.Counts()
	if after.Writes != before.Writes || after.Discards != 0 {
		t.Errorf("writes or discards reached the device: %+v", after)
	}
}

func testErrors(t *testing.T, e *env) {
	var mu sync.Mutex
	var failing Op
	dev := NewMemDevice(deviceSize)
	dev.Hook = func(op Op, _, _ int64) error {
		mu.Lock()
		defer mu.Unlock()
		if op == failing {
			return overlaybd.ErrCorrupt
		}
		return nil
	}
	c := e.open(t, e.expose(t, "drive", dev, false), false)
	buf := make([]byte, 4096)
	for op, call := range map[Op]func() error{
		OpRead:    func() error { _, err := c.ReadAt(buf, 0); return err },
		OpWrite:   func() error { _, err := c.WriteAt(buf, 0); return err },
		OpDiscard: func() error { return c.Discard(0, 4096) },
		OpFlush:   func() error { return c.Sync() },
	} {
		set := func(to Op) { mu.Lock(); failing = to; mu.Unlock() }
		set(op)
		if call() == nil {
			t.Errorf("%s succeeded although the device failed", op)
		}
		set("")
		if err := call(); err != nil {
			t.Errorf("%s after the device recovered: %v", op, err)
		}
	}
}

func testResize(t *testing.T, e *env) {
	dev, x, c := e.drive(t)
	if err := dev.Grow(2 * deviceSize); err != nil {
		t.Fatal(err)
	}
	if err := x.Resize(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Size(); err != nil || n != 2*deviceSize {
		t.Fatalf("size %d, %v; want %d", n, err, 2*deviceSize)
	}
	p := noise(6, 4096)
	write(t, c, p, 2*deviceSize-4096)
	same(t, "client", read(t, c, 4096, 2*deviceSize-4096), p)
}

func testReuse(t *testing.T, e *env) {
	for i := range 5 {
		dev := NewMemDevice(deviceSize + int64(i)*4096)
		x := e.expose(t, "again", dev, false)
		c := e.open(t, x, false)
		same(t, "fresh device", read(t, c, 4096, 0), make([]byte, 4096))
		if n, err := c.Size(); err != nil || n != dev.Size() {
			t.Fatalf("size %d, %v; want %d", n, err, dev.Size())
		}
		write(t, c, noise(uint64(i), 4096), 0)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := closeWithin(x, limit); err != nil {
			t.Fatal(err)
		}
	}
}
