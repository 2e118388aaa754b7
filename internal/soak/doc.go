// Package soak lives a life with volumes in a process that is killed at any moment, and checks what is left. It serves
// tests only.
//
// The process runs Live over a directory: it recovers what an earlier one left, then creates, forks, attaches, writes,
// flushes, publishes, pauses, releases and deletes volumes at random, and says what it is about to do and what was
// acknowledged, one Event a line. Whoever killed it feeds the lines to a Ledger, which knows what must be there: every
// write, flush and publish that was acknowledged, and of the last one that was not, either outcome.
//
//	killed process  ->  events  ->  Ledger
//	its directory   ->  Open, Recover, Inspect  ->  Ledger.Settle
//
// A killed process loses nothing that it handed to the kernel. What a power cut takes is tested elsewhere, with crashfs.
package soak
