package vhostuser

import (
	"encoding/binary"
	"sync"

	"github.com/sandvol/sandvol/mount/internal/exposed"
	"github.com/sandvol/sandvol/overlaybd"
)

// Requests and answers of virtio-blk, as in the virtio specification, section 5.2.
const (
	blkIn          = 0
	blkOut         = 1
	blkFlush       = 4
	blkGetID       = 8
	blkDiscard     = 11
	blkWriteZeroes = 13

	blkOK          = 0
	blkIOError     = 1
	blkUnsupported = 2

	blkHeader  = 16 // type, reserved, sector
	blkID      = 20 // bytes of the device id
	blkSegment = 16 // of a discard: sector, number of sectors, flags
	unmapFlag  = 1
)

const (
	sector = overlaybd.SectorSize
	// pieceSize is how much of a request made of small buffers goes to the device at a time.
	pieceSize = 1 << 20
	// direct is from how many bytes on a buffer goes to the device by itself.
	direct = 64 << 10
	// maxSegments is how many ranges one discard may have.
	maxSegments = 64
	// maxDiscard is how many sectors one range may have: 1 TiB.
	maxDiscard = 1 << 31
)

var pieces = sync.Pool{New: func() any { b := make([]byte, pieceSize); return &b }}

// carryOut runs one request and returns how many bytes of the answer it has written, its status included.
func carryOut(d *exposed.SocketDrive, c chain, firm bool) (written int64) {
	room := total(c.in)
	if room == 0 || total(c.out) < blkHeader {
		return 0 // no place for a status, or no request
	}
	data, last := cut(c.in, int(room-1))
	out, body := cut(c.out, blkHeader)
	var head [blkHeader]byte
	gather(head[:], out)
	r := request{drive: d, kind: binary.LittleEndian.Uint32(head[:]), sector: binary.LittleEndian.Uint64(head[8:]),
		body: body, data: data, firm: firm}
	status, n := r.enter()
	last[0][0] = status
	return n + 1
}

// request is a chain that was understood.
type request struct {
	drive  *exposed.SocketDrive
	kind   uint32
	sector uint64
	body   [][]byte // from the guest
	data   [][]byte // to the guest
	firm   bool     // the device may have these buffers: it holds locks, and must not fault
}

// enter runs the request unless the drive is cut off.
func (r request) enter() (status byte, written int64) {
	if !r.drive.Gate.Enter() {
		return blkIOError, 0
	}
	defer r.drive.Gate.Leave() // also when the guest's memory faults
	return r.run()
}

func (r request) run() (status byte, written int64) {
	switch r.kind {
	case blkIn:
		n := total(r.data)
		if err := r.each(r.data, n, r.read); err != nil {
			return blkIOError, 0
		}
		return blkOK, n
	case blkGetID:
		var id [blkID]byte
		copy(id[:], r.drive.Name)
		scatter(r.data, id[:])
		return blkOK, min(total(r.data), blkID)
	case blkFlush:
		if r.drive.ReadOnly {
			return blkOK, 0
		}
		return statusOf(r.drive.Bytes.Flush()), 0
	case blkOut, blkDiscard, blkWriteZeroes:
		if r.drive.ReadOnly {
			return blkIOError, 0
		}
		if r.kind == blkOut {
			return statusOf(r.each(r.body, total(r.body), r.write)), 0
		}
		return r.zero(), 0
	}
	return blkUnsupported, 0
}

func statusOf(err error) byte {
	if err != nil {
		return blkIOError
	}
	return blkOK
}

// errRange says that a request is not on the drive.
type errRange struct{}

func (errRange) Error() string { return "outside the drive" }

// each calls f for all buffers in turn, in pieces that are worth a call.
func (r request) each(buffers [][]byte, n int64, f func(piece [][]byte, off int64) error) error {
	off, ok := r.at(r.sector, uint64(n))
	if !ok || n%sector != 0 {
		return errRange{}
	}
	if !r.firm {
		buffers = split(buffers)
	}
	for len(buffers) > 0 {
		piece, size := buffers[:1], int64(len(buffers[0]))
		// A small buffer is copied, and as many more as there is room for go with it; a large one goes by itself, uncopied.
		for len(piece) < len(buffers) && (size < direct || len(piece) > 1) {
			next := int64(len(buffers[len(piece)]))
			if size+next > pieceSize {
				break
			}
			piece, size = buffers[:len(piece)+1], size+next
		}
		if err := f(piece, off); err != nil {
			return err
		}
		buffers, off = buffers[len(piece):], off+size
	}
	return nil
}

// split makes buffers of no more than a piece each.
func split(buffers [][]byte) (out [][]byte) {
	for _, b := range buffers {
		for len(b) > pieceSize {
			out, b = append(out, b[:pieceSize]), b[pieceSize:]
		}
		out = append(out, b)
	}
	return out
}

// at is the offset of n bytes that are all on the drive.
func (r request) at(sectors, n uint64) (int64, bool) {
	size := uint64(r.drive.Bytes.Size())
	if sectors > size/sector || n > size-sectors*sector {
		return 0, false
	}
	return int64(sectors * sector), true
}

func (r request) read(piece [][]byte, off int64) error {
	if len(piece) == 1 && r.firm {
		return r.fill(piece[0], off)
	}
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	p := (*buf)[:total(piece)]
	if err := r.fill(p, off); err != nil {
		return err
	}
	scatter(piece, p)
	return nil
}

func (r request) fill(p []byte, off int64) error {
	n, err := r.drive.Bytes.Read(p, off)
	if err == nil && n < len(p) {
		err = errRange{}
	}
	return err
}

func (r request) write(piece [][]byte, off int64) error {
	if len(piece) == 1 && r.firm {
		return r.drive.Bytes.Write(piece[0], off)
	}
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	p := (*buf)[:total(piece)]
	gather(p, piece)
	return r.drive.Bytes.Write(p, off)
}

// zero carries out a discard, or a write of zeroes, which take the same here: all ranges are checked before the first changes.
func (r request) zero() byte {
	n := total(r.body)
	if n == 0 || n%blkSegment != 0 || n > maxSegments*blkSegment {
		return blkIOError
	}
	b := make([]byte, n)
	gather(b, r.body)
	type span struct{ off, n int64 }
	var spans []span
	for ; len(b) > 0; b = b[blkSegment:] {
		sectors, flags := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
		if known := uint32(unmapFlag); r.kind == blkDiscard && flags != 0 || flags&^known != 0 {
			return blkUnsupported
		}
		off, ok := r.at(binary.LittleEndian.Uint64(b), uint64(sectors)*sector)
		if !ok || sectors > maxDiscard {
			return blkIOError
		}
		spans = append(spans, span{off, int64(sectors) * sector})
	}
	for _, s := range spans {
		if s.n == 0 {
			continue
		}
		if err := r.drive.Bytes.Zero(s.off, s.n); err != nil {
			return blkIOError
		}
	}
	return blkOK
}

// config is what the guest reads about the device: struct virtio_blk_config, little-endian.
func config(d *exposed.SocketDrive) []byte {
	b := make([]byte, configSize)
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(d.Bytes.Size()/sector))
	le.PutUint32(b[12:], maxChain)
	le.PutUint32(b[20:], sector)
	b[24] = 3 // 2^3 sectors are a physical block
	le.PutUint16(b[26:], 1)
	b[32] = 1 // writes are to be flushed
	le.PutUint16(b[34:], MaxQueues)
	le.PutUint32(b[36:], maxDiscard)
	le.PutUint32(b[40:], maxSegments)
	le.PutUint32(b[44:], 8)
	le.PutUint32(b[48:], maxDiscard)
	le.PutUint32(b[52:], maxSegments)
	b[56] = 1 // zeroes may take no space
	return b
}

const (
	configSize = 256 // as much as the protocol has room for
	// maxChain is how many buffers one request may have: what a queue of 128 leaves beside header and status.
	maxChain = 126
)
