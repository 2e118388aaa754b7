package tarlayer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// BlockSize is the unit of a tar file, in bytes: the size of a header.
const BlockSize = 512

const (
	maxExtension  = 1 << 20 // bytes of a header that extends another one
	maxExtensions = 16      // such headers in front of the layer
)

// Fields of a header by offset.
const (
	offMode     = 100
	offOwner    = 108
	offGroup    = 116
	offSize     = 124
	offModified = 136
	offChecksum = 148
	offType     = 156
	offMagic    = 257
	offUser     = 265
	offUserGrp  = 297
)

// Types of entries that say something about the entry behind them. Every other type is taken for the layer.
const (
	typePax       = 'x'
	typePaxGlobal = 'g'
	typeLongName  = 'L'
	typeLongLink  = 'K'
)

// Payload is the place of the layer in a tar file, in bytes.
type Payload struct {
	Offset, Size int64
}

// IsTar reports whether head, the first BlockSize bytes of a file, is the header of a tar file. A layer that is not in
// a tar file never looks like one, unless its user tag was made to.
func IsTar(head []byte) bool {
	return len(head) >= BlockSize && hasMagic(head) && sumMatches(head)
}

// Open returns where the layer is in the size bytes of r. The error is an ErrCorrupt with part and offset if r is no
// tar file, or one that is damaged in front of the layer or ends too early. Whatever r holds, it reads at most 16 MiB
// and allocates at most 1.
func Open(r io.ReaderAt, size int64) (Payload, error) {
	var p Payload
	recorded := int64(0) // what a pax header says of the next entry's size
	for range maxExtensions {
		head := make([]byte, BlockSize)
		if err := readFull(r, head, p.Offset, size); err != nil {
			return Payload{}, err
		}
		if !IsTar(head) {
			return Payload{}, corrupt(p.Offset, "no tar header, or one with a wrong checksum")
		}
		n, err := parseNumber(head[offSize : offSize+12])
		if err != nil {
			return Payload{}, corrupt(p.Offset+offSize, "size: %v", err)
		}
		p.Offset += BlockSize
		switch head[offType] {
		case typePax, typePaxGlobal:
			if recorded, err = readPax(r, p.Offset, n, size, recorded); err != nil {
				return Payload{}, err
			}
		case typeLongName, typeLongLink:
			if n > maxExtension {
				return Payload{}, corrupt(p.Offset-BlockSize+offSize, "a name of %d bytes", n)
			}
		default:
			if recorded > 0 {
				n = recorded
			}
			if n > size-p.Offset {
				return Payload{}, corrupt(p.Offset, "a layer of %d bytes, %d are there", n, max(size-p.Offset, 0))
			}
			p.Size = n
			return p, nil
		}
		p.Offset += wholeBlocks(n)
	}
	return Payload{}, corrupt(p.Offset, "%d headers and no layer", maxExtensions)
}

func hasMagic(head []byte) bool {
	m := string(head[offMagic : offMagic+8])
	return m == "ustar\x0000" || m == "ustar  \x00"
}

// sumMatches compares the checksum with both sums that are in use: of the bytes as unsigned, and as signed numbers.
func sumMatches(head []byte) bool {
	want, err := parseNumber(head[offChecksum : offChecksum+8])
	if err != nil {
		return false
	}
	unsigned, signed := sums(head)
	return want == unsigned || want == signed
}

// sums counts the checksum itself as eight spaces.
func sums(head []byte) (unsigned, signed int64) {
	for i, b := range head[:BlockSize] {
		if i >= offChecksum && i < offChecksum+8 {
			b = ' '
		}
		unsigned += int64(b)
		signed += int64(int8(b))
	}
	return unsigned, signed
}

var errNumber = errors.New("not a number")

// parseNumber reads an octal number between spaces or NULs, or one in base 256 as GNU writes what octal has no room
// for. It is never negative.
func parseNumber(field []byte) (int64, error) {
	if field[0]&0x80 != 0 {
		return parseBinary(field)
	}
	text := bytes.Trim(field, " \x00")
	if len(text) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(text), 8, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", errNumber, field)
	}
	return int64(n), nil
}

func parseBinary(field []byte) (int64, error) {
	n := int64(field[0] & 0x7f)
	for _, b := range field[1:] {
		if n > math.MaxInt64>>8 {
			return 0, fmt.Errorf("%w below 2^63: %x", errNumber, field)
		}
		n = n<<8 | int64(b)
	}
	return n, nil
}

// readPax returns the size that n bytes of pax records at off say, or what was said before.
func readPax(r io.ReaderAt, off, n, size, before int64) (int64, error) {
	if n > maxExtension {
		return 0, corrupt(off, "%d bytes of pax records, %d at most", n, maxExtension)
	}
	records := make([]byte, min(n, max(size-off, 0)))
	if err := readFull(r, records, off, size); err != nil {
		return 0, err
	}
	if int64(len(records)) < n {
		return 0, corrupt(off, "the file ends inside the pax records")
	}
	for rest := records; len(rest) > 0; {
		key, value, next, ok := cutRecord(rest)
		if !ok {
			return 0, corrupt(off+n-int64(len(rest)), "no pax record")
		}
		if rest = next; key != "size" {
			continue
		}
		parsed, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			return 0, corrupt(off, "pax size %.40q", value)
		}
		before = int64(parsed)
	}
	return before, nil
}

// cutRecord splits the first record, "LENGTH KEY=VALUE\n", off; the length counts the whole record.
func cutRecord(b []byte) (key, value string, rest []byte, ok bool) {
	digits, _, found := bytes.Cut(b, []byte(" "))
	n, err := strconv.ParseUint(string(digits), 10, 31)
	if !found || err != nil || int(n) > len(b) || int(n) < len(digits)+2 || b[n-1] != '\n' {
		return "", "", nil, false
	}
	k, v, found := bytes.Cut(b[len(digits)+1:n-1], []byte("="))
	return string(k), string(v), b[n:], found
}

func wholeBlocks(n int64) int64 { return (n + BlockSize - 1) &^ (BlockSize - 1) }

func readFull(r io.ReaderAt, p []byte, off, size int64) error {
	if off > size-int64(len(p)) {
		return corrupt(off, "the file ends at byte %d", size)
	}
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corrupt(off, "the file ends at byte %d", off+int64(n))
	}
	return err
}

func corrupt(off int64, format string, args ...any) error {
	return &lsmt.CorruptError{Part: "tar envelope", Offset: off, Detail: fmt.Sprintf(format, args...)}
}
