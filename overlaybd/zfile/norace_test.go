//go:build !race

package zfile

const raceEnabled = false
