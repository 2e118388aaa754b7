package overlaybd

import "io"

// The files of a view are slots by tag. Layers that were replaced by fewer leave empty ones, which later uppers take: a
// tag has eight bits, and a device that compacts its layers must never run out of them. A view that is still being read
// has its own list, in which the old file keeps its slot.

// layersUsed counts the files in slots.
func layersUsed(files []io.ReaderAt) int {
	n := 0
	for _, f := range files {
		if f != nil {
			n++
		}
	}
	return n
}

// freeSlot returns the slot that the next file takes.
func freeSlot(files []io.ReaderAt) int {
	for i, f := range files {
		if f == nil {
			return i
		}
	}
	return len(files)
}

// withFile returns a copy of files with f in a slot, which may be the one behind the last.
func withFile(files []io.ReaderAt, slot int, f io.ReaderAt) []io.ReaderAt {
	next := make([]io.ReaderAt, max(len(files), slot+1))
	copy(next, files)
	next[slot] = f
	return next
}
