// Package memstore is a store.Store in the memory of one process, for tests and for hosts that want volumes to live as
// long as they do. Handles are one pointer: "nodes" that share a store share the *Store.
//
//	s := memstore.New()
//
// It keeps every promise of package store but durability, and refuses, with store.ErrInvalidKey, a key that is a
// directory of another one, as posixstore does.
package memstore
