package s3store

import "time"

// WithSizes lowers what is put by one request and what is a part, so that small blobs go up in parts.
func (s *Store) WithSizes(single, part int64) *Store {
	s.single, s.part = single, part
	return s
}

// WithPause shortens the pauses between tries.
func (s *Store) WithPause(first time.Duration) *Store {
	s.first = first
	return s
}

// PartSize is the size of the parts of a blob.
func PartSize(blob int64) int { return partSize(blob, defaultPart) }

// Limits of a call.
const (
	Tries         = tries
	StallTimeout  = stallTimeout
	MaxRetryAfter = maxRetryAfter
)
