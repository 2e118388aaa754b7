package ext4

import (
	"context"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/overlaybd"
)

// Replayer brings a file system that was in use when its device was copied or lost power into the state that its journal
// promises: as the kernel does when it mounts it. It has no state and needs nothing of the machine.
type Replayer struct{}

// Replay writes to dev what committed transactions have of each block, once and in address order, and leaves an empty
// journal. Of a file system that was cleanly unmounted it changes nothing. It is durable when Replay returns, and safe to
// repeat after a crash: the journal is emptied after everything else is durable.
//
// Files that were deleted while they were open are freed. Where this package cannot do that, because of quota, unfinished
// truncations or blocks of attributes that others share, their list stays, and the next writable mount by a kernel frees
// them. They have no names and do not show in either case.
//
// A device without an ext file system, an external journal and fast commits are ErrUnsupported, broken structures
// overlaybd.ErrCorrupt. Both are found before anything is written.
func (Replayer) Replay(ctx context.Context, dev overlaybd.Device) error {
	f, err := open(dev, dev.Size())
	if err != nil {
		return err
	}
	if le.Uint32(f.super[sbCompat:])&compatJournal == 0 {
		if le.Uint16(f.super[sbState:])&stateClean == 0 {
			return unsupported("the file system has no journal, and was in use")
		}
		return nil
	}
	j, err := openJournal(f)
	if err != nil {
		return fmt.Errorf("ext4: %w", err)
	}
	if f.incompat&incompatRecover == 0 && j.start == 0 {
		return nil
	}
	p, err := j.plan(ctx, dev)
	if err != nil {
		return fmt.Errorf("ext4: plan of a replay: %w", err)
	}
	if err := p.apply(ctx, dev); err != nil {
		return fmt.Errorf("ext4: replay: %w", err)
	}
	return nil
}

// NeedsReplay says whether a file system has transactions that are not in place yet. Only then is what a read-only mount
// without replay shows older than what was promised, or torn.
func NeedsReplay(r io.ReaderAt, size int64) (bool, error) {
	f, err := open(r, size)
	if err != nil {
		return false, err
	}
	return f.incompat&incompatRecover != 0, nil
}

// check finds what is to be written, and reads all of it once: nothing is written of a journal that is damaged. Of a file
// system that does not need its journal, which happens when a power cut hits the end of a replay, nothing counts.
func (j *journal) check(ctx context.Context) (latest map[uint64]logged, next uint32, err error) {
	if j.fs.incompat&incompatRecover == 0 {
		return nil, j.sequence, nil
	}
	latest, next, err = j.scan(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := j.fastCommits(next); err != nil {
		return nil, 0, err
	}
	p := make([]byte, j.fs.block)
	for target, l := range latest {
		if err := j.block(p, target, l); err != nil {
			return nil, 0, err
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
	}
	return latest, next, nil
}
