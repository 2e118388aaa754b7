//go:build !race

package ext4_test

const withRace = false
