package exposed

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
)

// Whatever the offsets and lengths, a drive is a slice of bytes. The model is that slice.
func TestDriveIsASliceOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 16 * sector
		d := NewSectors(mounttest.NewMemDevice(size))
		model := make([]byte, size)
		offset, length := rapid.IntRange(0, size), rapid.IntRange(1, 4*sector)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				off, n := offset.Draw(t, "off"), length.Draw(t, "n")
				p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n)
				err := d.Write(p, int64(off))
				if off+n > size {
					if !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("past the end: %v, want ENOSPC", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				copy(model[off:], p)
			},
			"zero": func(t *rapid.T) {
				off := offset.Draw(t, "off")
				n := min(length.Draw(t, "n"), size-off)
				if n == 0 {
					return
				}
				if err := d.Zero(int64(off), int64(n)); err != nil {
					t.Fatal(err)
				}
				clear(model[off : off+n])
			},
			"": func(t *rapid.T) {
				off, n := offset.Draw(t, "off"), length.Draw(t, "n")
				got := make([]byte, n)
				k, err := d.Read(got, int64(off))
				if err != nil || !bytes.Equal(got[:k], model[off:min(off+n, size)]) {
					t.Fatalf("read %d+%d: %d bytes, %v; they differ from the model", off, n, k, err)
				}
			},
		})
	})
}

// shrunk ends before the size that it was exposed with.
type shrunk struct{ *mounttest.MemDevice }

func (s shrunk) ReadAt(p []byte, off int64) (int, error) { return 0, io.EOF }

// A buffer is used for many requests, of all drives: what a device leaves unfilled must not come out of it.
func TestUnfilledBuffersAreNeverWritten(t *testing.T) {
	d := NewSectors(shrunk{mounttest.NewMemDevice(4096)})
	if err := d.Write(make([]byte, 100), 100); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, want ErrUnexpectedEOF", err)
	}
	if n, err := d.Read(make([]byte, 100), 100); n != 0 || err != nil {
		t.Errorf("read %d bytes, %v; want none", n, err)
	}
}

func TestDeviceErrorsBecomeErrnos(t *testing.T) {
	for err, want := range map[error]syscall.Errno{
		nil:                      0,
		overlaybd.ErrInvalid:     syscall.EINVAL,
		overlaybd.ErrReadOnly:    syscall.EROFS,
		overlaybd.ErrFinal:       syscall.EIO,
		overlaybd.ErrClosed:      syscall.EIO,
		overlaybd.ErrUnavailable: syscall.EIO,
		overlaybd.ErrCorrupt:     syscall.EIO,
		syscall.ENOSPC:           syscall.ENOSPC,
		syscall.ENOSYS:           syscall.EIO, // the kernel would never ask again
	} {
		if got := Errno(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func TestLongUnalignedRequestsAreWidenedInParts(t *testing.T) {
	const n = 2*MaxRequest + 700
	d := NewSectors(mounttest.NewMemDevice(4 * MaxRequest))
	p := bytes.Repeat([]byte("sandvol"), n/7+1)[:n]
	if err := d.Write(p, 333); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, n+2)
	if k, err := d.Read(got, 332); err != nil || k != len(got) || !bytes.Equal(got[1:n+1], p) || got[0] != 0 || got[n+1] != 0 {
		t.Errorf("read %d bytes, %v; or other bytes than written", k, err)
	}
	if k, err := d.Read(make([]byte, n), d.Size()-MaxRequest-5); err != nil || k != MaxRequest+5 {
		t.Errorf("read over the end: %d bytes, %v", k, err)
	}
}
