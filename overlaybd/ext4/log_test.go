package ext4

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd"
)

// transaction is one transaction of a log that a test writes.
type transaction struct {
	writes  []write
	revokes []uint64
	torn    bool // no commit block
}

type write struct {
	block uint64
	fill  byte
	magic bool // starts with the journal's magic number
}

func (w write) content() []byte {
	b := bytes.Repeat([]byte{w.fill}, blockSize)
	if w.magic {
		be.PutUint32(b, journalMagic)
	}
	return b
}

// logWriter writes logs of all forms, as jbd2 would, independently of what reads them.
type logWriter struct {
	dev      overlaybd.Device
	base     int64 // of the journal on the device
	blocks   uint32
	incompat uint32
	uuid     []byte
	at       uint32
	sequence uint32
	perList  int
}

// newLogWriter formats a device and finds its journal.
func newLogWriter(t interface{ Fatal(...any) }, incompat uint32) *logWriter {
	const size = 16 << 20
	dev := mounttest.NewMemDevice(size)
	if err := (Formatter{}).Format(context.Background(), dev); err != nil {
		t.Fatal(err)
	}
	f, err := open(dev, size)
	if err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(f)
	if err != nil {
		t.Fatal(err)
	}
	return &logWriter{dev: dev, base: int64(j.where[0].start) * blockSize, blocks: j.blocks, incompat: incompat,
		uuid: defaultUUID[:], perList: 3}
}

func (l *logWriter) seed() uint32 { return checksum(checksumStart, l.uuid) }

func (l *logWriter) sums() bool { return l.incompat&(journalSumsV2|journalSumsV3) != 0 }

// put writes the next block of the log.
func (l *logWriter) put(b []byte) {
	if _, err := l.dev.WriteAt(b, l.base+int64(l.at)*blockSize); err != nil {
		panic(err)
	}
	if l.at++; l.at == l.blocks {
		l.at = 1
	}
}

func (l *logWriter) header(kind uint32) []byte {
	b := make([]byte, blockSize)
	be.PutUint32(b[0:], journalMagic)
	be.PutUint32(b[4:], kind)
	be.PutUint32(b[8:], l.sequence)
	return b
}

// begin makes the log start at a block, and the file system need it.
func (l *logWriter) begin(at, sequence uint32) {
	l.at, l.sequence = at, sequence
	s := make([]byte, blockSize)
	if _, err := l.dev.ReadAt(s, l.base); err != nil {
		panic(err)
	}
	s = s[:jsSize]
	be.PutUint32(s[jsStart:], at)
	be.PutUint32(s[jsSequence:], sequence)
	be.PutUint32(s[jsIncompat:], l.incompat)
	if l.sums() {
		s[jsChecksumType] = 4
		be.PutUint32(s[jsChecksum:], 0)
		be.PutUint32(s[jsChecksum:], checksum(checksumStart, s))
	}
	if _, err := l.dev.WriteAt(s, l.base); err != nil {
		panic(err)
	}
	super := make([]byte, superSize)
	if _, err := l.dev.ReadAt(super, superOffset); err != nil {
		panic(err)
	}
	le.PutUint32(super[sbIncompat:], le.Uint32(super[sbIncompat:])|incompatRecover)
	setSuperChecksum(super)
	if _, err := l.dev.WriteAt(super, superOffset); err != nil {
		panic(err)
	}
}

func (l *logWriter) add(t transaction) {
	for rest := t.writes; len(rest) > 0; {
		part := rest[:min(l.perList, len(rest))]
		rest = rest[len(part):]
		l.list(part)
	}
	if len(t.revokes) > 0 {
		l.revoke(t.revokes)
	}
	if !t.torn {
		b := l.header(kindCommit)
		be.PutUint64(b[jcSeconds:], uint64(1000+l.sequence))
		if l.sums() {
			be.PutUint32(b[jcChecksum:], checksum(l.seed(), b))
		}
		l.put(b)
		l.sequence++
	}
}

func (l *logWriter) list(part []write) {
	b, at := l.header(kindDescriptor), 12
	var data [][]byte
	for i, w := range part {
		p, flags := w.content(), uint32(0)
		if w.magic {
			flags |= 1
			clear(p[:4])
		}
		if i > 0 {
			flags |= 2
		}
		if i == len(part)-1 {
			flags |= 8
		}
		at += l.tag(b[at:], w.block, flags, p)
		if i == 0 {
			at += copy(b[at:], l.uuid)
		}
		data = append(data, p)
	}
	l.tail(b)
	l.put(b)
	for _, p := range data {
		l.put(p)
	}
}

// tag encodes one tag and returns its length.
func (l *logWriter) tag(b []byte, block uint64, flags uint32, p []byte) int {
	sum := checksum(checksum(l.seed(), be.AppendUint32(nil, l.sequence)), p)
	be.PutUint32(b, uint32(block))
	size := 8
	switch {
	case l.incompat&journalSumsV3 != 0:
		be.PutUint32(b[4:], flags)
		be.PutUint32(b[12:], sum)
		return 16
	case l.incompat&journalSumsV2 != 0:
		be.PutUint16(b[4:], uint16(sum))
		size += 2
	}
	be.PutUint16(b[6:], uint16(flags))
	if l.incompat&journal64Bit != 0 {
		size += 4
	}
	return size
}

func (l *logWriter) revoke(blocks []uint64) {
	b, used := l.header(kindRevoke), []byte{}
	for _, block := range blocks {
		if l.incompat&journal64Bit != 0 {
			used = be.AppendUint64(used, block)
		} else {
			used = be.AppendUint32(used, uint32(block))
		}
	}
	be.PutUint32(b[12:], uint32(16+len(used)))
	copy(b[16:], used)
	l.tail(b)
	l.put(b)
}

func (l *logWriter) tail(b []byte) {
	if l.sums() {
		be.PutUint32(b[blockSize-4:], checksum(l.seed(), b))
	}
}

// model is what blocks hold after a replay: the newest committed content that was not revoked with it or after it.
func model(log []transaction) map[uint64][]byte {
	all := map[uint64][]byte{}
	for _, t := range log {
		if t.torn {
			break
		}
		for _, w := range t.writes {
			all[w.block] = w.content()
		}
		for _, b := range t.revokes {
			delete(all, b)
		}
	}
	return all
}

// drawLog draws transactions on a few blocks that no file uses.
func drawLog(t *rapid.T) (log []transaction) {
	const free = 3000
	block := rapid.Uint64Range(free, free+12)
	for range rapid.IntRange(0, 8).Draw(t, "transactions") {
		var tr transaction
		for range rapid.IntRange(0, 8).Draw(t, "writes") {
			tr.writes = append(tr.writes, write{block.Draw(t, "block"), byte(rapid.IntRange(1, 255).Draw(t, "fill")),
				rapid.Bool().Draw(t, "magic")})
		}
		tr.revokes = rapid.SliceOfN(block, 0, 3).Draw(t, "revokes")
		log = append(log, tr)
	}
	if len(log) > 0 && rapid.Bool().Draw(t, "torn") {
		log[len(log)-1].torn = true
	}
	return log
}

// Logs of every form, which wrap around, escape, revoke, and end without a commit, leave what the model says, and what
// e2fsck makes of them.
func TestReplayOfAnyLog(t *testing.T) {
	fsck, err := exec.LookPath("e2fsck")
	if err != nil {
		fsck, err = exec.LookPath("/usr/sbin/e2fsck")
	}
	if err != nil {
		if os.Getenv("SANDVOL_REQUIRE_REAL") == "1" {
			t.Fatal(err)
		}
		t.Log("without e2fsck: compared with the model alone")
	}
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		forms := []uint32{0, journal64Bit, journalSumsV2, journalSumsV2 | journal64Bit, journalSumsV3,
			journalSumsV3 | journal64Bit}
		l := newLogWriter(r, journalRevokes|rapid.SampledFrom(forms).Draw(r, "form"))
		l.begin(rapid.SampledFrom([]uint32{1, 5, l.blocks - 10, l.blocks - 1}).Draw(r, "start"),
			rapid.SampledFrom([]uint32{1, 77, 1<<32 - 3}).Draw(r, "sequence"))
		log := drawLog(r)
		for _, tr := range log {
			l.add(tr)
		}
		image := filepath.Join(dir, "image")
		oracle := fsck != "" && rapid.IntRange(0, 3).Draw(r, "oracle") == 0 // it takes most of the time
		if oracle {
			dump(r, l.dev, image)
			if out, err := exec.Command(fsck, "-fy", image).CombinedOutput(); err != nil && err.(*exec.ExitError).ExitCode() != 1 {
				r.Fatalf("e2fsck -fy: %v\n%s", err, out)
			}
			compareModel(r, "e2fsck", readImage(r, image), model(log))
		}
		if err := (Replayer{}).Replay(context.Background(), l.dev); err != nil {
			r.Fatal(err)
		}
		compareModel(r, "Replay", l.dev, model(log))
		if oracle {
			dump(r, l.dev, image)
			if out, err := exec.Command(fsck, "-fn", image).CombinedOutput(); err != nil {
				r.Fatalf("e2fsck -fn after Replay: %v\n%s", err, out)
			}
		}
	})
}

func compareModel(r *rapid.T, who string, dev io.ReaderAt, want map[uint64][]byte) {
	p := make([]byte, blockSize)
	for block := uint64(3000); block <= 3012; block++ {
		if _, err := dev.ReadAt(p, int64(block)*blockSize); err != nil {
			r.Fatal(err)
		}
		expected := want[block]
		if expected == nil {
			expected = zeroes[:]
		}
		if !bytes.Equal(p, expected) {
			r.Errorf("%s: block %d starts %x, want %x", who, block, p[:8], expected[:8])
		}
	}
}

// dump writes what is not zero of a device to a sparse file.
func dump(r *rapid.T, dev overlaybd.Device, path string) {
	f, err := os.Create(path)
	if err != nil {
		r.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(dev.Size()); err != nil {
		r.Fatal(err)
	}
	p := make([]byte, 64<<10)
	for off := int64(0); off < dev.Size(); off += int64(len(p)) {
		if _, err := dev.ReadAt(p, off); err != nil && err != io.EOF {
			r.Fatal(err)
		}
		if isZero(p) {
			continue
		}
		if _, err := f.WriteAt(p, off); err != nil {
			r.Fatal(err)
		}
	}
}

func readImage(r *rapid.T, path string) io.ReaderAt {
	b, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	return bytes.NewReader(b)
}

// overlay is a device of shared, unchanging bytes with a few blocks of its own. Each read of a fuzzed file system costs
// what it reads and no copy of the whole.
type overlay struct {
	base  *mounttest.MemDevice
	own   map[int64][]byte // by offset, of 512 bytes
	wrote int
}

func (o *overlay) Size() int64                { return o.base.Size() }
func (o *overlay) Flush() error               { return nil }
func (o *overlay) Discard(off, n int64) error { return fmt.Errorf("not used") }

func (o *overlay) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.base.ReadAt(p, off)
	for at := 0; at < n; at += 512 {
		if s := o.own[off+int64(at)]; s != nil {
			copy(p[at:], s)
		}
	}
	return n, err
}

func (o *overlay) WriteAt(p []byte, off int64) (int, error) {
	o.wrote++
	if off < 0 || off+int64(len(p)) > o.Size() || len(p)%512 != 0 || off%512 != 0 {
		return 0, overlaybd.ErrInvalid
	}
	o.set(p, off)
	return len(p), nil
}

func (o *overlay) set(p []byte, off int64) {
	for at := 0; at < len(p); at += 512 {
		s := make([]byte, 512)
		copy(s, p[at:])
		o.own[off+int64(at)] = s
	}
}

// fuzzReplay requires of any bytes: no panic, no end beyond the device, an error of a known class, and nothing written
// where there is an error.
func fuzzReplay(t *testing.T, o *overlay) {
	o.wrote = 0
	err := Replayer{}.Replay(t.Context(), o)
	if err != nil {
		if !isClass(err) {
			t.Errorf("error without a class: %v", err)
		}
		if o.wrote > 0 {
			t.Errorf("%d writes, then %v", o.wrote, err)
		}
		return
	}
	o.wrote = 0
	if err := (Replayer{}).Replay(t.Context(), o); err != nil && o.wrote > 0 {
		t.Errorf("replayed again: %v", err)
	}
}
