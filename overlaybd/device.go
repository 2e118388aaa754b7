package overlaybd

import (
	"context"
	"errors"
	"io"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// SectorSize is the unit of every offset and length, in bytes.
const SectorSize = 512

// Error classes, tested with errors.Is.
var (
	// ErrInvalid: an argument is outside its limits; the message names field, value and limit. Nothing was changed.
	ErrInvalid = lsmt.ErrInvalid
	// ErrCorrupt: stored bytes contradict the format or their checksum.
	ErrCorrupt = lsmt.ErrCorrupt
	// ErrFailed: an fsync failed; the device refuses writes and flushes for ever.
	ErrFailed = lsmt.ErrFailed
	// ErrInUse: the directory belongs to another Writable, here or in another process.
	ErrInUse = errors.New("overlaybd: directory in use")
	// ErrClosed: the device was closed.
	ErrClosed = errors.New("overlaybd: device closed")
	// ErrFinal: the device was sealed for good and takes no more writes.
	ErrFinal = errors.New("overlaybd: device sealed, writes refused")
	// ErrReadOnly: the device was opened read-only.
	ErrReadOnly = errors.New("overlaybd: device is read-only")
	// ErrUnavailable: a layer could not be read within the engine's ReadTimeout.
	ErrUnavailable = errors.New("overlaybd: layer unavailable")
)

// Layer names one immutable layer of a stack: where its bytes are and how to check them. It is a copyable value.
type Layer struct {
	// Key is the store key of the layer's bytes.
	Key string `json:"key"`
	// Digest is "sha256:" and 64 lower-case hex digits, over the stored bytes.
	Digest string `json:"digest"`
	// Size is the number of stored bytes.
	Size int64 `json:"size"`
	// UUID is the layer's uuid in its trailer, canonical lower-case text.
	UUID string `json:"uuid"`
	// Codec is how the stored bytes wrap the LSMT stream: empty for not at all, or one of the Codec constants.
	Codec string `json:"codec,omitzero"`
	// Tail is how many bytes at the end of the stored bytes opening the layer reads; 0: unknown. It only saves requests.
	Tail int64 `json:"tail,omitzero"`
}

// Stack is the content of a disk: layers, bottom first, and the size of the disk in bytes. It is a value; forking,
// snapshotting and restoring copy it.
type Stack struct {
	VirtualSize int64   `json:"virtualSize"`
	Layers      []Layer `json:"layers"`
}

// Source is random access to the stored bytes of one layer.
type Source interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// Device is a block device. Offsets and lengths are multiples of SectorSize, else ErrInvalid. ReadAt returns io.EOF at
// Size; WriteAt and Discard beyond Size are ErrInvalid and write nothing. Discarded ranges read as zeroes. Flush makes
// every write and discard that was acknowledged before it durable on the local disk. All methods may be called
// concurrently; two overlapping writes leave either, sector by sector.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	Discard(off, n int64) error
	Flush() error
}

// Config is what an Engine cannot do without.
type Config struct {
	// Open returns the stored bytes of a layer that is not on this engine's disk. The engine closes it.
	Open func(ctx context.Context, l Layer) (Source, error)
}
