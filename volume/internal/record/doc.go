// Package record holds the states that a repository keeps about volumes, checkpoints, names and collector runs, and the
// operations that change them. Everything here is a value or a pure function: no clock, no randomness, no I/O.
//
// An operation is built with everything it needs (times, nonces, what it expects to find) and applied to whatever state is
// the newest when it is its turn:
//
//	op := record.Acquire(grant, nonces)
//	next, changed, err := op.Apply(state)
//
// Applied to a state that already holds its effect, an operation succeeds and changes nothing; applied to any other state
// than the one it expects, it is refused. So a write that lands late is found and not repeated, and a retry never undoes
// what somebody else did in between.
//
// The states are JSON objects. Members that this version does not know are kept at every level and written back unchanged.
package record
