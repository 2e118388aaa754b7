// Package storetest says what it means to implement store.Store, and gives tests stores that misbehave.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB) (a, b store.Store) {
//			dir := t.TempDir()
//			return open(t, dir), open(t, dir) // two handles, as two nodes would have them
//		})
//	}
//
// Every guarantee of package store has a subtest that is called after it. What a power cut leaves cannot be checked
// through the interface: an implementation that writes to a disk of its own has tests for that beside it.
//
// Decorators wrap any store:
//
//	Faulty(s, plan)       requests fail before or after their effect, land late, arrive twice, read half, or are slow
//	StopAt(s, n, applied) everything fails from the n-th write on, as for a process that dies there
//	Trace(s)              records requests, and how many of them followed one another
//
// CrossCheck lets an operator try a shared directory or bucket from two nodes at once, with the mount options and
// network that are to be used.
//
// The decorators pass on what they do not hit, so that they nest: Trace(Faulty(s, plan)) counts what was asked, Faulty(Trace(s),
// plan) what arrived.
package storetest
