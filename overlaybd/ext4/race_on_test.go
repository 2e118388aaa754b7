//go:build race

package ext4_test

// withRace: with the race detector, which has nothing to find in code of one goroutine, large cases take ten times as
// long. They are smaller then.
const withRace = true
