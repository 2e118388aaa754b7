package volume_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
)

// the first layer of an empty volume holds an ext4 that e2fsck finds clean. Two repositories make it
// byte by byte the same, and a node that has never formatted anything reads it from the store alone.
func TestEmptyVolumeIsADeterministicExt4(t *testing.T) {
	t.Parallel() // most of its time goes into waiting for a disk
	fsck, err := exec.LookPath("e2fsck")
	if errors.Is(err, exec.ErrNotFound) {
		fsck, err = exec.LookPath("/usr/sbin/e2fsck")
	}
	if err != nil {
		missing(t, "e2fsprogs", err)
	}
	var images [][]byte
	for range 2 {
		w := newWorld(t)
		w.opts = append(w.opts, volume.WithFormatter(ext4.Formatter{}))
		v := create(t, w.node("a"), volume.CreateOptions{Size: 32 * volume.MiB})
		if len(v.Stack.Layers) != 1 || v.Consistency != volume.Clean {
			t.Fatalf("volume %+v", v)
		}
		w.opts = append(w.opts, volume.WithFormatter(nil))
		s := attach(t, w.node("b"), v.ID, "sb")
		image := filepath.Join(t.TempDir(), "image")
		readOut(t, s.Device(), image)
		if out, err := exec.CommandContext(t.Context(), fsck, "-f", "-n", image).CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
		release(t, s)
		images = append(images, must[[]byte](t)(os.ReadFile(image)))
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Error("the file systems of two repositories differ")
	}
}

func readOut(t *testing.T, dev overlaybd.Device, path string) {
	t.Helper()
	f := must[*os.File](t)(os.Create(path))
	_, err := io.Copy(f, io.NewSectionReader(dev, 0, dev.Size()))
	ok(t, errors.Join(err, f.Close()))
}
