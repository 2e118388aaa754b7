// Package reservation says who may write a volume: a durable right of one owner, as a value with pure transitions.
//
// The owner is the sandbox that holds the volume; the node is where it runs now. The epoch is the number of a grant: it
// rises with every change of owner or node and never falls, so whoever publishes under an older epoch is found out. A
// reservation survives a pause, and no clock ends it: times are in it for people to read.
//
//	acquire     free, or paused by the same owner   ->  preparing, epoch+1
//	mounted     preparing                           ->  mounted
//	pause       preparing or mounted                ->  paused
//	expire      mounted or paused                   ->  expiring
//	release     any but free                        ->  free
//	take over   any but free                        ->  preparing, epoch+1
//
// A transition takes the state by value and returns the next one, and whether it differs. On a state that already
// holds its effect it succeeds and reports no change, so that a caller who does not know whether a write arrived
// repeats it. On any other phase than those listed it returns a *ConflictError, and when it was made under another
// epoch or owner than the current one, a *FencedError.
//
//	s := reservation.New()
//	s, changed, err := s.Acquire(reservation.Grant{ID: id, Owner: "sandbox-1", Node: "node-a", At: now})
//	s, changed, err = s.Mounted(s.Epoch, "sandbox-1")
//	err = s.Check(s.Epoch, "sandbox-1") // before anything that the owner publishes
//
// The package does no I/O and keeps nothing: the caller stores the state where only one writer can replace it.
package reservation
