package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/sandvol/sandvol/volume/store"
)

// pattern is n bytes of which no two aligned ranges are alike.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i ^ i>>8 ^ i>>16*7)
	}
	return p
}

// gatedSource delivers half of its bytes and then waits for the gate.
type gatedSource struct {
	data    []byte
	reached chan struct{} // closed when the first half was read
	gate    chan struct{}
}

func (g *gatedSource) Size() int64 { return int64(len(g.data)) }

func (g *gatedSource) Open() (io.ReadCloser, error) {
	half := len(g.data) / 2
	wait := readerFunc(func([]byte) (int, error) {
		close(g.reached)
		<-g.gate
		return 0, io.EOF
	})
	return io.NopCloser(io.MultiReader(bytes.NewReader(g.data[:half]), wait, bytes.NewReader(g.data[half:]))), nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func blobWhole(t *testing.T, s suite) {
	src := &gatedSource{pattern(3 << 20), make(chan struct{}), make(chan struct{})}
	done := make(chan error)
	go func() { done <- s.a.PutBlob(s.ctx, "blobs/slow", src) }()
	select {
	case <-src.reached:
	case err := <-done:
		t.Fatalf("PutBlob returned before it had read its source: %v", err)
	}
	s.absent("blobs/slow")
	s.wantDirs(s.b, "", "", 0)
	stop := make(chan struct{})
	seen := make(chan error)
	go func() { seen <- s.watchBlob("blobs/slow", src.data, stop) }()
	close(src.gate)
	s.must(<-done)
	close(stop)
	s.must(<-seen)
	s.wantBody(s.b, "blobs/slow", string(src.data))
}

// watchBlob reads a blob from the other handle again and again: it must be absent or whole.
func (s suite) watchBlob(key string, want []byte, stop <-chan struct{}) error {
	for {
		blob, err := s.b.OpenBlob(s.ctx, key)
		if err != nil {
			return err
		}
		got := make([]byte, len(want))
		n, err := blob.ReadRange(s.ctx, got, 0)
		if err == nil && !bytes.Equal(got, want) || err != nil && !errors.Is(err, store.ErrNotExist) {
			return errors.Join(errors.New("part of a blob was seen"), err)
		}
		if err != nil && n > 0 {
			return errors.New("bytes of an absent blob were seen")
		}
		if err := blob.Close(); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func blobRanges(t *testing.T, s suite) {
	data := pattern(3<<20 + 17)
	size := int64(len(data))
	s.must(s.a.PutBlob(s.ctx, "d/big", store.BytesSource(data)))
	s.must(s.a.PutBlob(s.ctx, "d/empty", store.BytesSource(nil)))
	s.both(func(h store.Store) {
		big, empty := s.blob(h, "d/big"), s.blob(h, "d/empty")
		for _, c := range []struct {
			off, n, want int64
		}{
			{0, size, size}, {0, 1, 1}, {size - 1, 1, 1}, {4095, 4098, 4098}, {1 << 20, 2 << 20, 2 << 20},
			{size - 10, 20, 10}, {size, 1, 0}, {size + 1000, 10, 0}, {0, size + 1, size}, {5, 0, 0},
		} {
			s.wantRange(big, data, c.off, c.n, c.want)
		}
		s.wantRange(empty, nil, 0, 1, 0)
		for b, want := range map[store.Blob]int64{big: size, empty: 0} {
			n, err := b.Size(s.ctx)
			if err != nil || n != want {
				t.Errorf("size %d, %v, want %d", n, err, want)
			}
		}
		if _, err := big.ReadRange(s.ctx, make([]byte, 1), -1); err == nil {
			t.Error("a read at a negative offset succeeded")
		}
	})
	s.readAfterClose("d/big")
}

func (s suite) wantRange(b store.Blob, data []byte, off, n, want int64) {
	s.t.Helper()
	p := make([]byte, n)
	got, err := b.ReadRange(s.ctx, p, off)
	var wantErr error
	if want < n {
		wantErr = io.EOF
	}
	if int64(got) != want || err != wantErr {
		s.t.Errorf("ReadRange of %d bytes at %d: %d, %v, want %d, %v", n, off, got, err, want, wantErr)
		return
	}
	if want > 0 && !bytes.Equal(p[:want], data[off:off+want]) {
		s.t.Errorf("ReadRange of %d bytes at %d: other bytes than were stored", n, off)
	}
}

func (s suite) readAfterClose(key string) {
	s.t.Helper()
	b, err := s.a.OpenBlob(s.ctx, key)
	s.must(err)
	s.must(b.Close())
	if _, err := b.ReadRange(s.ctx, make([]byte, 1), 0); err == nil {
		s.t.Error("a closed handle was read")
	}
}

var errBroken = errors.New("broken source")

// badSource says a size and then does otherwise.
type badSource struct {
	size int64
	open func() (io.ReadCloser, error)
}

func (b badSource) Size() int64                  { return b.size }
func (b badSource) Open() (io.ReadCloser, error) { return b.open() }

func failedSource(t *testing.T, s suite) {
	data := pattern(2 << 20)
	size := int64(len(data))
	reader := func(rs ...io.Reader) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(io.MultiReader(rs...)), nil }
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	cancelling := readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF })
	broken := readerFunc(func([]byte) (int, error) { return 0, errBroken })
	unopened := func() (io.ReadCloser, error) { return nil, errBroken }
	for _, c := range []struct {
		name string
		ctx  context.Context
		src  badSource
		want error
	}{
		{"fails to open", s.ctx, badSource{size, unopened}, store.ErrSource},
		{"fails at once", s.ctx, badSource{size, reader(broken)}, store.ErrSource},
		{"fails midway", s.ctx, badSource{2 * size, reader(bytes.NewReader(data), broken)}, store.ErrSource},
		{"fails at its end", s.ctx, badSource{size, reader(bytes.NewReader(data), broken)}, store.ErrSource},
		{"shorter than it said", s.ctx, badSource{size + 1, reader(bytes.NewReader(data))}, store.ErrSource},
		{"longer than it said", s.ctx, badSource{size - 1, reader(bytes.NewReader(data))}, store.ErrSource},
		{"cancelled midway", ctx, badSource{2 * size, reader(bytes.NewReader(data), cancelling, bytes.NewReader(data))},
			context.Canceled},
	} {
		s.is(c.name, s.a.PutBlob(c.ctx, "d/blob", c.src), c.want)
		s.absent("d/blob")
		s.wantDirs(s.b, "", "", 0)
	}
	s.must(s.b.PutBlob(s.ctx, "d/blob", store.BytesSource(data)))
	s.wantBody(s.a, "d/blob", string(data))
}
