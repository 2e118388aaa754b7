package ext4

import "fmt"

// run is a number of blocks in a row.
type run struct{ start, n uint64 }

// allocator hands out the blocks that are not fixed, in address order. It keeps what it handed out as runs; a run ends
// only where fixed blocks follow or where the caller moved on, so that there are few.
type allocator struct {
	layout *layout
	next   uint64
	runs   []run
}

// peek is the block that take would return first, or the number of blocks if there is none.
func (a *allocator) peek() uint64 {
	if a.next >= a.layout.blocks {
		return a.layout.blocks
	}
	group := uint32(a.next / blocksPerGroup)
	return max(a.next, a.layout.firstBlock(group)+uint64(a.layout.fixed(group)))
}

// take returns up to want blocks in a row.
func (a *allocator) take(want uint64) (run, error) {
	a.next = a.peek()
	group := uint32(a.next / blocksPerGroup)
	if a.next >= a.layout.blocks {
		return run{}, fmt.Errorf("%w: all of its %d blocks are used", ErrNoSpace, a.layout.blocks)
	}
	end := a.layout.firstBlock(group) + uint64(a.layout.groupBlocks(group))
	got := run{a.next, min(want, end-a.next)}
	a.next += got.n
	if last := len(a.runs) - 1; last >= 0 && a.runs[last].start+a.runs[last].n == got.start {
		a.runs[last].n += got.n
	} else {
		a.runs = append(a.runs, got)
	}
	return got, nil
}

// takeAll returns exactly want blocks, in as few runs as possible.
func (a *allocator) takeAll(want uint64) (runs []run, err error) {
	for want > 0 {
		r, err := a.take(want)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
		want -= r.n
	}
	return runs, nil
}

// seek leaves free what is between the last block handed out and block.
func (a *allocator) seek(block uint64) error {
	if next := a.peek(); block < next || block > a.layout.blocks {
		return invalid("block %d: must be from %d, the next one to be used, to %d", block, next, a.layout.blocks)
	}
	a.next = block
	return nil
}
