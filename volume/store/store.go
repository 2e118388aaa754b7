package store

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// Errors that a Store returns, tested with errors.Is. Anything else is a fault of the medium: the operation may or may
// not have taken effect, and the caller reads back before it decides.
var (
	// ErrExists is returned by PutIfAbsent and PutBlob when the key is taken. What is stored there is unchanged.
	ErrExists = errors.New("store: key exists")
	// ErrNotExist is returned by Get and by a Blob's methods when nothing is stored under the key.
	ErrNotExist = errors.New("store: key does not exist")
	// ErrInvalidKey is returned when a key or prefix does not follow the rules of ValidKey or ValidPrefix.
	ErrInvalidKey = errors.New("store: invalid key")
)

// Store keeps small records and large blobs under slash-separated keys. It is the narrow waist of the project:
// everything that nodes share goes through these methods, and none of them can overwrite.
//
// All methods may be called concurrently, from any number of processes on any number of nodes. A method that returns an
// error other than the ones named may have taken effect; all of them may be repeated.
type Store interface {
	// PutIfAbsent stores body under key if nothing is stored there, and ErrExists otherwise. Of any number of
	// concurrent calls for one key, exactly one returns nil. When it returns nil the record is durable and visible to
	// every node.
	PutIfAbsent(ctx context.Context, key string, body []byte) error

	// Get returns the whole record, or ErrNotExist.
	Get(ctx context.Context, key string) ([]byte, error)

	// List yields the entries whose key begins with prefix and is greater than after (exclusive; empty: from the
	// start), in byte order, at most limit of them (0: all). It sees every write that finished before it began; it is
	// not a snapshot. An error ends the sequence.
	List(ctx context.Context, prefix, after string, limit int) iter.Seq2[Entry, error]

	// Dirs yields the distinct names one level below prefix: for keys p/a/x, p/a/y and p/b/z and the prefix "p/", the
	// names "a" and "b". Keys directly below prefix are left out. The order is that of List, so "a-b" comes before "a";
	// after is a name, and limit as in List.
	Dirs(ctx context.Context, prefix, after string, limit int) iter.Seq2[string, error]

	// Delete removes a record or blob, durably when it returns nil. Deleting what is absent is success.
	Delete(ctx context.Context, key string) error

	// PutBlob stores the bytes of src under key, which becomes visible only whole, or returns ErrExists. It may open
	// src several times. When it returns nil the blob is durable.
	PutBlob(ctx context.Context, key string, src Source) error

	// OpenBlob returns a handle on a blob. It sends no request: an absent key shows in the handle's methods.
	OpenBlob(ctx context.Context, key string) (Blob, error)
}

// Entry is one line of a listing. Size is in bytes. Modified is the store's clock, for people; nothing depends on it.
type Entry struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Source is a byte sequence of known size that can be read again from the start, so that an upload can be retried.
type Source interface {
	Open() (io.ReadCloser, error)
	Size() int64
}

// Blob reads ranges of one stored blob.
type Blob interface {
	// ReadRange fills p with the bytes at off. It returns io.EOF with the count when the blob ends first, ErrNotExist
	// when there is none.
	ReadRange(ctx context.Context, p []byte, off int64) (int, error)
	// Size returns the blob's size in bytes, or ErrNotExist.
	Size(ctx context.Context) (int64, error)
	Close() error
}
