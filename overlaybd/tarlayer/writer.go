package tarlayer

import (
	"errors"
	"fmt"
	"io"
)

// HeaderSize is the number of bytes in front of a layer that a Writer wrote.
const HeaderSize = 3 * BlockSize

const endSize = 2 * BlockSize // zeroes that end an archive

// Overhead returns how many bytes longer a layer of n bytes is in its envelope.
func Overhead(n int64) int64 { return HeaderSize + wholeBlocks(n) - n + endSize }

// Header returns the bytes in front of a layer of n bytes.
func Header(n int64) []byte {
	b := make([]byte, HeaderSize)
	record := sizeRecord(n)
	pax, data, file := b[:BlockSize], b[BlockSize:2*BlockSize], b[2*BlockSize:]

	copy(pax, "overlaybd.pax")
	putNumber(pax[offSize:offSize+12], int64(len(record)))
	pax[offType] = typePax
	finish(pax)

	copy(data, record)

	copy(file, "overlaybd.commit")
	for _, f := range []struct {
		off, width int
		value      int64
	}{{offMode, 8, 0o100644}, {offOwner, 8, 0}, {offGroup, 8, 0}, {offSize, 12, 0}, {offModified, 12, 0}} {
		putNumber(file[f.off:f.off+f.width], f.value)
	}
	file[offType] = '0'
	copy(file[offUser:], "root")
	copy(file[offUserGrp:], "root")
	finish(file)
	return b
}

// sizeRecord is the pax record for a size. Its own length is in front, and counts itself.
func sizeRecord(n int64) string {
	body := fmt.Sprintf(" size=%d\n", n)
	length := len(body) + 1
	if length > 9 {
		length++ // two digits; there are never three
	}
	return fmt.Sprint(length) + body
}

// putNumber writes octal as the reference does: right-aligned in spaces, a space behind, and a NUL if the field is not
// a size or a time, which have 12 bytes.
func putNumber(field []byte, n int64) {
	if len(field) == 12 {
		copy(field, fmt.Sprintf("%11o ", n))
		return
	}
	copy(field, fmt.Sprintf("%6o \x00", n))
}

// finish adds what every header has; the checksum comes last.
func finish(head []byte) {
	copy(head[offMagic:], "ustar\x0000")
	sum, _ := sums(head)
	putNumber(head[offChecksum:offChecksum+8], sum)
}

// Writer writes a layer in its envelope. The size of the layer need not be known before.
type Writer struct {
	w      io.Writer
	size   int64
	closed bool
	err    error
}

// NewWriter leaves room for the headers on w and returns a Writer for the layer.
func NewWriter(w io.Writer) (*Writer, error) {
	if _, err := w.Write(make([]byte, HeaderSize)); err != nil {
		return nil, err
	}
	return &Writer{w: w}, nil
}

// Write takes bytes of the layer. An error is final.
func (w *Writer) Write(p []byte) (int, error) {
	if w.closed {
		return 0, errClosed
	}
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.w.Write(p)
	w.size += int64(n)
	w.err = err
	return n, err
}

var (
	errClosed = errors.New("tar envelope: closed")
	errOpen   = errors.New("tar envelope: not closed")
)

// Close ends the archive; the writer below stays open. Closing again changes nothing and returns the same.
func (w *Writer) Close() error {
	if w.closed || w.err != nil {
		return w.err
	}
	w.closed = true
	_, w.err = w.w.Write(make([]byte, wholeBlocks(w.size)-w.size+endSize))
	return w.err
}

// WriteHeader writes the headers to the beginning of w, which must be the beginning of the same file. It comes after
// Close: before, the size is not known.
func (w *Writer) WriteHeader(at io.WriterAt) error {
	if w.err != nil {
		return w.err
	}
	if !w.closed {
		return errOpen
	}
	_, err := at.WriteAt(Header(w.size), 0)
	return err
}
