package storetest

// Op names one kind of request on a store. OpenBlob is none: it sends nothing.
type Op string

// The requests that a store can be sent.
const (
	OpPutIfAbsent Op = "PutIfAbsent"
	OpGet         Op = "Get"
	OpList        Op = "List"
	OpDirs        Op = "Dirs"
	OpDelete      Op = "Delete"
	OpPutBlob     Op = "PutBlob"
	OpReadRange   Op = "ReadRange"
	OpSize        Op = "Size"
)

// Mutates reports whether the request can change what is stored.
func (o Op) Mutates() bool {
	return o == OpPutIfAbsent || o == OpDelete || o == OpPutBlob
}

// Call is one request that went through a decorator.
type Call struct {
	Op Op
	// Key is the key, or the prefix of a listing.
	Key string
	// N says that this is the N-th request of its Op through this decorator, counted from 1.
	N int
}
