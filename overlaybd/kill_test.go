package overlaybd

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// writerDirEnv makes the test binary write to a device in that directory, one acknowledgement a write on its output,
// until it is killed.
const writerDirEnv = "OVERLAYBD_TEST_WRITER_DIR"

const writerSectors = 2048

// writerSector is the content of the sector that write number i makes, and where it goes.
func writerSector(i uint64) (p []byte, off int64) {
	p = make([]byte, SectorSize)
	for at := 0; at < len(p); at += 8 {
		binary.LittleEndian.PutUint64(p[at:], i+1)
	}
	sectors := uint64(writerSectors)
	if i%1000 >= 300 { // a few are written again and again, so that there is something to reclaim
		sectors = 64
	}
	return p, int64(i*2654435761%sectors) * SectorSize
}

func runWriter(dir string) {
	e, err := New(Config{Open: newRepo().open}, WithSealAt(500), WithReclaim(0.3, 16<<10))
	if err != nil {
		panic(err)
	}
	w, err := e.OpenWritable(context.Background(), dir, emptyStack(writerSectors*SectorSize))
	if err != nil {
		panic(err)
	}
	for i := uint64(0); ; i++ {
		p, off := writerSector(i)
		if _, err := w.WriteAt(p, off); err != nil {
			panic(err)
		}
		if i%97 == 96 {
			if err := w.Flush(); err != nil {
				panic(err)
			}
		}
		fmt.Println(i)
	}
}

// a write that was acknowledged is there after SIGKILL, without a flush, whatever the process was doing:
// writing, flushing, giving space back or rolling to a fresh upper.
func TestAcknowledgedWritesSurviveSIGKILL(t *testing.T) {
	for _, writes := range []uint64{1, 50, 96, 97, 333, 505, 1200, 5000} {
		dir := t.TempDir()
		acknowledged := writeAndKill(t, dir, writes)
		w := openDevice(t, newEngine(t, newRepo()), dir, emptyStack(writerSectors*SectorSize))
		got := content(t, w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want := map[int64]uint64{}
		for i := range acknowledged {
			_, off := writerSector(i)
			want[off] = i + 1
		}
		// The write after the last acknowledged one may be there too.
		_, next := writerSector(acknowledged)
		for off := int64(0); off < int64(len(got)); off += SectorSize {
			n := binary.LittleEndian.Uint64(got[off:])
			if n != want[off] && !(off == next && n == acknowledged+1) {
				t.Fatalf("%d writes acknowledged: sector %d holds write %d, want %d", acknowledged, off/SectorSize, n, want[off])
			}
		}
	}
}

// writeAndKill kills a writer after about that many writes and returns how many it acknowledged.
func writeAndKill(t *testing.T, dir string, writes uint64) (acknowledged uint64) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), writerDirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(line, &acknowledged); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		acknowledged++
		if acknowledged == writes {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // the error is that it was killed
	return acknowledged
}
