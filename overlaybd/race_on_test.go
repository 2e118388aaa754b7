//go:build race

package overlaybd

// crashStride: with the race detector each run of a device's life takes ten times as long, so each of the two kinds of
// power cut tries every second operation, and together they try all.
const crashStride = 2
