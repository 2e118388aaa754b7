package volume

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"
)

// Prefixes of the repository's layout. No node path is part of any key or record.
const (
	formatPrefix      = "v1/format/"
	namesPrefix       = "v1/names/"
	volumesPrefix     = "v1/volumes/"
	sandboxesPrefix   = "v1/sandboxes/"
	checkpointsPrefix = "v1/checkpoints/"
	pinsPrefix        = "v1/pins/"
	layersPrefix      = "v1/layers/"
	runsPrefix        = "v1/runs/"
	nodesPrefix       = "v1/nodes/"
	probesPrefix      = "v1/probes/"
)

// NewID returns a fresh volume id: a UUIDv7, so that ids sort by creation.
func NewID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return id.String(), nil
}

// newNonce returns 128 random bits as hex.
func newNonce() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}

func newNonces(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = newNonce()
	}
	return out
}
