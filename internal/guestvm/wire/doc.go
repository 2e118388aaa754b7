// Package wire is what host and guest say to each other: one JSON object a line.
package wire
