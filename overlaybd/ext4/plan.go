package ext4

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/sandvol/sandvol/overlaybd"
)

// plan is everything that a replay writes, known before its first write.
type plan struct {
	j       *journal
	latest  map[uint64]logged // from the journal
	changed map[uint64][]byte // blocks that are not as the journal has them, because something was freed
	graves  []grave           // inodes that are not used any more
	super   []byte            // of the file system
	log     []byte            // superblock of the journal
}

// plan looks at the file system as it is after the replay, without writing to it.
func (j *journal) plan(ctx context.Context, dev overlaybd.Device) (*plan, error) {
	latest, next, err := j.check(ctx)
	if err != nil {
		return nil, err
	}
	p := &plan{j: j, latest: latest, log: j.emptied(next)}
	f, err := open(view{p, dev}, dev.Size())
	if err != nil {
		return nil, err
	}
	left, err := p.free(f)
	if err != nil {
		return nil, err
	}
	// The kernel does not keep the totals in the superblock current. It adds them up at each mount.
	freeBlocks, freeInodes, err := f.countFree()
	if err != nil {
		return nil, err
	}
	s := f.super
	le.PutUint32(s[sbFreeBlocks:], uint32(freeBlocks))
	if f.incompat&incompat64Bit != 0 {
		le.PutUint32(s[sbFreeBlocksHigh:], uint32(freeBlocks>>32))
	}
	le.PutUint32(s[sbFreeInodes:], uint32(freeInodes))
	if be.Uint32(j.super[jsErrno:]) != 0 {
		// The kernel had given up on the file system. That is kept for the next checker.
		le.PutUint16(s[sbState:], le.Uint16(s[sbState:])|stateErrors)
	}
	if !left {
		le.PutUint32(s[sbLastOrphan:], 0)
	}
	le.PutUint32(s[sbIncompat:], f.incompat&^incompatRecover)
	if f.checksums {
		setSuperChecksum(s)
	}
	p.super = s
	return p, nil
}

// free plans to free files without names. left says that they stay, for a kernel to free: because this package cannot, or
// because their list is broken, which is no reason to refuse all the rest.
func (p *plan) free(f *filesystem) (left bool, err error) {
	o, err := findOrphans(f)
	if err == nil {
		p.graves, err = o.graves()
	}
	if err == nil {
		p.changed, err = o.changes()
	}
	if errors.Is(err, errLeave) || errors.Is(err, overlaybd.ErrCorrupt) {
		p.graves, p.changed = nil, nil
		return true, nil
	}
	return false, err
}

// view is a device as it is after the blocks of a plan are written.
type view struct {
	p   *plan
	dev io.ReaderAt
}

func (v view) ReadAt(p []byte, off int64) (n int, err error) {
	size := v.p.j.fs.block
	var buf []byte
	for n < len(p) {
		block, at := uint64((off+int64(n))/size), (off+int64(n))%size
		part := p[n:min(len(p), n+int(size-at))]
		l, logged := v.p.latest[block]
		switch {
		case v.p.changed[block] != nil:
			copy(part, v.p.changed[block][at:])
		case logged:
			if buf == nil {
				buf = make([]byte, size)
			}
			if err := v.p.j.block(buf, block, l); err != nil {
				return n, err
			}
			copy(part, buf[at:])
		default:
			if err := readFull(v.dev, part, off+int64(n)); err != nil {
				return n, err
			}
		}
		n += len(part)
	}
	return n, nil
}

// apply carries out a plan. Each step is durable before the next begins; after a crash between any two, another replay
// ends at the same state.
func (p *plan) apply(ctx context.Context, dev overlaybd.Device) error {
	if err := p.writeBlocks(ctx, dev); err != nil {
		return err
	}
	// If the empty journal reached the disk before those blocks, nothing would have them any more.
	if err := dev.Flush(); err != nil {
		return err
	}
	at, err := p.j.place(0)
	if err != nil {
		return err
	}
	if err := flushed(dev, p.log, int64(at)*p.j.fs.block); err != nil {
		return fmt.Errorf("empty the journal: %w", err)
	}
	for _, g := range p.graves {
		// One by one in this order: see graves.
		if err := flushed(dev, g.b, g.off); err != nil {
			return fmt.Errorf("mark inodes as deleted: %w", err)
		}
	}
	// A superblock that says that nothing is to be replayed, over a journal that has something, is an error to checkers.
	// That is why it comes after the journal.
	if err := flushed(dev, p.super, superOffset); err != nil {
		return fmt.Errorf("write the superblock: %w", err)
	}
	return nil
}

// flushed writes and makes durable.
func flushed(dev overlaybd.Device, b []byte, off int64) error {
	if _, err := dev.WriteAt(b, off); err != nil {
		return err
	}
	return dev.Flush()
}

// writeBlocks writes blocks in address order, neighbours together.
func (p *plan) writeBlocks(ctx context.Context, dev overlaybd.Device) error {
	size := int(p.j.fs.block)
	var buf []byte
	var off int64
	write := func() error {
		if len(buf) == 0 {
			return ctx.Err()
		}
		_, err := dev.WriteAt(buf, off)
		buf = buf[:0]
		return err
	}
	for _, block := range p.blocks() {
		if at := int64(block) * int64(size); at != off+int64(len(buf)) || len(buf) >= outputBuffer {
			if err := write(); err != nil {
				return err
			}
			off = at
		}
		n := len(buf)
		buf = slices.Grow(buf, size)[:n+size]
		if c := p.changed[block]; c != nil {
			copy(buf[n:], c)
		} else if err := p.j.block(buf[n:], block, p.latest[block]); err != nil {
			return err
		}
	}
	return write()
}

// blocks lists what writeBlocks writes.
func (p *plan) blocks() []uint64 {
	list := slices.AppendSeq(slices.Collect(maps.Keys(p.latest)), maps.Keys(p.changed))
	slices.Sort(list)
	return slices.Compact(list)
}

// emptied is the journal's superblock when there is nothing in the journal. One number is left out, which blocks of a
// transaction without commit may have.
func (j *journal) emptied(next uint32) []byte {
	b := append([]byte(nil), j.super...)
	if j.start != 0 {
		be.PutUint32(b[jsSequence:], next+1)
	}
	be.PutUint32(b[jsStart:], 0)
	be.PutUint32(b[jsErrno:], 0)
	if j.sums() {
		be.PutUint32(b[jsChecksum:], journalSuperSum(b))
	}
	return b
}

// countFree adds up the free blocks and inodes of all groups.
func (f *filesystem) countFree() (blocks, inodes uint64, err error) {
	err = f.eachDesc(func(_ uint64, d []byte) error {
		blocks += uint64(joined(d, gdFreeBlocks))
		inodes += uint64(joined(d, gdFreeInodes))
		return nil
	})
	return blocks, inodes, err
}
