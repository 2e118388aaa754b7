//go:build race

package zfile

const raceEnabled = true
