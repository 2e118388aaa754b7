// Package store defines the narrow waist between volumes and the medium that all nodes share: a Store of small records
// and large blobs under slash-separated keys, in which nothing is ever overwritten.
//
//	err := s.PutIfAbsent(ctx, "v1/names/acme/data/fffffffffffffffe", record) // one writer of many gets nil
//	err = s.PutBlob(ctx, "v1/layers/"+id+"/1-9f3a", store.BytesSource(layer)) // visible only whole
//	for e, err := range s.List(ctx, "v1/names/acme/data/", "", 1) { ... }    // the first key in byte order
//
// # Keys
//
// A key is one or more segments joined by "/". A segment is 1 to 255 of A-Z a-z 0-9 "." "_" "-" and does not begin with
// ".", so that stores have a shape of name to themselves for what is not finished. A key has at most 1024 bytes. A
// prefix is empty, or segments each followed by "/". ValidKey and ValidPrefix check this, and every method of every
// Store calls them first. No key may be a directory of another one ("a" and "a/b"): some stores refuse the second of
// them with ErrInvalidKey, others cannot see it, and whoever lays out keys takes care.
//
// # What a Store guarantees
//
//   - Create, never replace: of any number of concurrent PutIfAbsent or PutBlob calls for one key, one returns nil and
//     the others ErrExists, and the key holds what that one wrote until it is deleted.
//   - Durable before nil: what a write acknowledged survives a power cut, and so does a Delete. What a reader was shown
//     is durable too, whether its writer was acknowledged or not; a reader may act on it.
//   - Whole or absent: no reader sees part of a record or blob, whatever happens to its writer.
//   - No stale answers: every method sees all writes that finished before it began, from every node. There is no cache.
//   - Byte order: List yields keys as bytes.Compare orders them, so "a-b/x" before "a/x", and Dirs yields names in the
//     order of the prefixes that they stand for, "a-b" before "a".
//   - Retry: every method may be repeated. A write that ends in an error other than those of this package may or may
//     not have taken effect, now or later; the caller reads back before it decides.
//
// A Store promises no order between concurrent writes, no snapshot in a listing, and no time at which an unacknowledged
// write is known to have failed. An absence may be seen before it is durable: what a Delete that was not acknowledged
// removed may be there again after a power cut.
//
// Package storetest checks all of this, and is the only definition of "implements Store".
package store
