// Package genlog keeps a record as a numbered log of whole states over a store.Store.
//
// A record is changed only by appending its next generation: an immutable object whose key holds the generation's
// number. The store creates a key at most once, so exactly one writer can create each generation, and no write can
// replace another. Volumes, names, checkpoints, drive sets and collector runs are all kept this way.
//
//	log := genlog.New[State](st, "v1/volumes/acme/"+id+"/")
//	g, err := log.Create(ctx, State{...})            // generation 1 of a fresh random id
//	g, err = log.Append(ctx, op)                     // read, apply, put, verify
//	g, err = log.AppendTo(ctx, g, op)                // the same, by a holder that knows the newest generation
//	g, err = log.AppendNext(ctx, g, op)              // once, and only as the direct successor of g
//	g, err = log.Newest(ctx)
//
// # Keys and bodies
//
// The last part of a key is the complement of the generation's number, as 16 lower-case hex digits: the newest
// generation is the first key of a listing and costs one request. A body is one JSON object:
//
//	format      number   of the writer's format; never falls within a log
//	minReader   number   a reader below it must not interpret or change the record; never falls
//	generation  number   N, as in the key
//	nonce       string   fresh for every put
//	previous    string   nonce of generation N-1; empty in generation 1
//	at          string   the writer's clock, RFC 3339; for people and for thinning, never for safety
//	op          string   what was done
//	kept        array    {n, nonce, at} of older generations that pruning leaves alone
//	encryption           reserved
//	state       object   the record itself
//
// Members that this version does not know are carried into the next generation.
//
// # What is guaranteed
//
// When an append returns nil, its effect is in the generation returned and in the lineage of every later one, exactly
// once: the success rests on a listing that began after the generation's body was written or read. An error that is not
// ErrInDoubt says that the op has had no effect and will have none. With ErrInDoubt the effect may be there, or may
// still arrive: the same op, appended again, finds it.
//
// This leans on two rules that ops obey. Apply is a pure function of the state. And it is idempotent: on a state that
// holds its effect it reports no change, on any other state than the one it expects it refuses.
//
// # Pruning
//
// The newest generation is never removed. The newest 64 are always kept, so that a writer can verify what it put.
// Below them a generation counts only if the newest one names its number and nonce in kept, at most 64 of them,
// thinned over 24 hours by default. A put that was delayed until its slot was pruned lands in an empty slot, and is a
// ghost: it is in no lineage, its author's verification fails, and the next pruning removes it.
//
// The package does not promise to keep any particular generation below the newest, and no read other than an append's
// own is checked against later listings: a reader that is stalled between listing and reading for more than 64
// generations may read such a ghost.
package genlog
