package nbd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
)

// tool returns a function that runs an independent client, or ends the test where it is not installed.
func tool(t testing.TB, name string) func(args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
			t.Fatalf("%s is required: %v", name, err)
		}
		t.Skipf("no %s: %v", name, err)
	}
	return func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Dir = t.TempDir() // fio leaves its state where it runs
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
}

func uri(x mount.Exposure) string { return "nbd+unix:///?socket=" + x.Path() }

// picture is a raw image with data, zeroes and holes.
func picture(t *testing.T, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	for off := 0; off+300_000 < size; off += 1 << 20 {
		_, _ = r.Read(content[off : off+300_000]) // never fails
	}
	path = filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func contentOf(t *testing.T, dev overlaybd.Device) []byte {
	t.Helper()
	p := make([]byte, dev.Size())
	if _, err := dev.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNbdinfoSeesTheDrive(t *testing.T) {
	s := newServer(t)
	for _, readOnly := range []bool{false, true} {
		name := map[bool]string{true: "ro", false: "rw"}[readOnly]
		x := expose(t, s, name, mounttest.NewMemDevice(8<<20), readOnly)
		var got struct {
			Exports []struct {
				Name     string `json:"export-name"`
				Size     int64  `json:"export-size"`
				ReadOnly bool   `json:"is_read_only"`
				Multi    bool   `json:"can_multi_conn"`
				FUA      bool   `json:"can_fua"`
				Trim     bool   `json:"can_trim"`
				Zero     bool   `json:"can_zero"`
				Block    int64  `json:"block_size_preferred"`
			} `json:"exports"`
		}
		if err := json.Unmarshal([]byte(tool(t, "nbdinfo")("--json", "--list", uri(x))), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Exports) != 1 {
			t.Fatalf("%+v", got)
		}
		e := got.Exports[0]
		if e.Name != name || e.Size != 8<<20 || e.ReadOnly != readOnly || !e.Multi || e.Block != 4096 ||
			!e.FUA || !e.Trim || !e.Zero {
			t.Errorf("%+v", e)
		}
	}
}

func TestNbdcopyThereAndBack(t *testing.T) {
	raw, content := picture(t, 24<<20+512)
	dev := mounttest.NewMemDevice(int64(len(content)))
	x := expose(t, newServer(t), "drive", dev, false)
	copies := tool(t, "nbdcopy")
	copies("--flush", raw, uri(x))
	if !bytes.Equal(contentOf(t, dev), content) {
		t.Error("there: other bytes")
	}
	if n := dev.Counts(); n.Unflushed != 0 || n.BytesDiscarded == 0 {
		t.Errorf("%+v, want all flushed, and zeroes sent as such", n)
	}
	back := filepath.Join(t.TempDir(), "back")
	copies(uri(x), back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("back: other bytes, or %v", err)
	}
}

func TestQemuImgConvertsAndCompares(t *testing.T) {
	raw, content := picture(t, 16<<20)
	dev := mounttest.NewMemDevice(int64(len(content)))
	x := expose(t, newServer(t), "drive", dev, false)
	img := tool(t, "qemu-img")
	img("convert", "-n", "-f", "raw", "-O", "raw", raw, uri(x))
	img("compare", "-f", "raw", "-F", "raw", raw, uri(x))
	qcow := filepath.Join(t.TempDir(), "qcow2")
	img("convert", "-f", "raw", "-O", "qcow2", uri(x), qcow)
	img("compare", "-f", "raw", "-F", "qcow2", raw, qcow)
}

func TestQemuIOPatterns(t *testing.T) {
	dev := mounttest.NewMemDevice(8 << 20)
	x := expose(t, newServer(t), "drive", dev, false)
	out := tool(t, "qemu-io")("-f", "raw",
		"-c", "write -P 0x5a 0 1M", "-c", "read -P 0x5a 0 1M",
		"-c", "write -z 64k 64k", "-c", "read -P 0 64k 64k",
		"-c", "write -z -u 256k 64k", "-c", "read -P 0 256k 64k",
		"-c", "discard 512k 128k", "-c", "read -P 0 512k 128k",
		"-c", "write -f -P 0x11 3M 512", "-c", "read -P 0x11 3M 512",
		"-c", "flush", uri(x))
	if strings.Contains(strings.ToLower(out), "fail") || strings.Contains(out, "mismatch") {
		t.Error(out)
	}
	if n := dev.Counts(); n.Flushes < 2 || n.Unflushed != 0 {
		t.Errorf("%+v, want the FUA write and the flush to have flushed", n)
	}
}

func TestNbdkitAsAClient(t *testing.T) {
	tool(t, "nbdkit")
	raw, content := picture(t, 8<<20)
	dev := mounttest.NewMemDevice(int64(len(content)))
	x := expose(t, newServer(t), "drive", dev, false)
	// nbdkit connects to the drive, offers it again, and runs a command against that.
	tool(t, "nbdkit")("-U", "-", "--exit-with-parent", "nbd", "uri="+uri(x),
		"--run", `nbdcopy --flush "`+raw+`" "$uri" && nbdcopy "$uri" - | cmp - "`+raw+`"`)
	if !bytes.Equal(contentOf(t, dev), content) {
		t.Error("other bytes")
	}
}

// what fio wrote, at random, with trims and flushes, and verifies, is what the engine holds, while its uppers become
// layers all the time.
func TestFioVerifiesWhileLayersAreSealed(t *testing.T) {
	run := tool(t, "fio")
	engine, err := overlaybd.New(overlaybd.Config{Open: func(context.Context, overlaybd.Layer) (overlaybd.Source, error) {
		return nil, overlaybd.ErrUnavailable // there are none but the device's own
	}})
	if err != nil {
		t.Fatal(err)
	}
	disk, err := engine.OpenWritable(t.Context(), t.TempDir(), overlaybd.Stack{VirtualSize: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	x, err := newServer(t).Expose(t.Context(), "drive", disk, false)
	if err != nil {
		t.Fatal(err)
	}
	stop, sealed := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				sealed <- n
				return
			case <-time.After(100 * time.Millisecond):
				if _, err := disk.Seal(context.Background(), overlaybd.SealOptions{}); err != nil {
					t.Error(err)
				}
				n++
			}
		}
	}()
	run("--name=drive", "--ioengine=nbd", "--uri="+uri(x), "--rw=randwrite", "--bsrange=4k-256k", "--size=64m",
		"--io_size=96m", "--iodepth=8", "--fsync=32", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1",
		"--randseed=7", "--norandommap=0", "--output=/dev/null")
	close(stop)
	if n := <-sealed; n == 0 {
		t.Error("nothing was sealed meanwhile; the test proves less than it says")
	}
	if err := x.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}
