package zfile

import (
	"context"
	"errors"
	"fmt"
)

// maxFindings bounds what one Verify reports.
const maxFindings = 100

// Info describes a ZFile.
type Info struct {
	Codec       Codec
	BlockSize   int
	Blocks      int64
	Size        int64 // bytes of content
	Stored      int64 // bytes of blocks, checksums included
	Checksums   bool  // each block has one
	Digests     bool  // header, trailer and index have them; files from before 2023 do not
	FinalHeader bool  // the header has the final values, so that Open did not look at the trailer
}

// Info returns what header and trailer say.
func (r *Reader) Info() Info {
	l := &r.layout
	return Info{
		Codec: l.codec, BlockSize: l.blockSize(), Blocks: l.blocks, Size: l.size, Stored: l.indexOffset - l.first,
		Checksums: l.checksums, Digests: r.header.has(flagDigest), FinalHeader: r.header.has(flagFinal),
	}
}

// Verify reads and decodes every block. It returns nil if all are sound, and else the errors of all that are not,
// joined: each is a CorruptError that names its block. It goes on behind a bad block, up to 100 of them, but not behind
// a failed read. A trailer that Open did not need is checked too.
func (r *Reader) Verify(ctx context.Context) error {
	var found []error
	if err := r.verifyTrailer(); err != nil {
		found = append(found, err)
	}
	content := make([]byte, 16*MaxBlockSize)
	for block := int64(0); block < r.layout.blocks; {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(found, err)...)
		}
		n, err := r.readRun(content, block)
		block += (int64(n) + int64(r.layout.blockSize()) - 1) >> r.layout.shift
		if err == nil {
			continue
		}
		found = append(found, err)
		// A source that fails will do so for each block: that says nothing about them.
		if !errors.Is(err, ErrCorrupt) {
			break
		}
		if len(found) >= maxFindings {
			found = append(found, fmt.Errorf("%w: not looked at behind block %d", ErrCorrupt, block))
			break
		}
		block++
	}
	return errors.Join(found...)
}

// verifyTrailer checks that the trailer says what the final header says.
func (r *Reader) verifyTrailer() error {
	if !r.header.has(flagFinal) {
		return nil // the trailer is what was opened
	}
	t, err := readTrailer(r.src, r.fileSize)
	if err != nil {
		return err
	}
	if t.flags = r.header.flags; t != r.header {
		return corrupt(PartTrailer, r.fileSize-HeaderSize, HeaderSize, "it contradicts the header")
	}
	return nil
}
