package wire

import "time"

// NewSnapshot is the body of POST /volumes/{volumeID}/snapshots.
type NewSnapshot struct {
	// Name is text for people. It need not be unique.
	Name string `json:"name,omitzero"`
	// Flush has the volume's holder publish its newest writes first.
	Flush bool `json:"flush,omitzero"`
}

// VolumeSnapshot is a kept state of a volume. It outlives the volume.
type VolumeSnapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
	VolumeID   string   `json:"volumeID"`
	Status     string   `json:"status"`
	SizeMB     int64    `json:"sizeMB,omitzero"`
	// Consistency is "clean" if the file system was frozen or detached, else "crash".
	Consistency string     `json:"consistency,omitzero"`
	Generation  uint64     `json:"generation,omitzero"`
	CreatedAt   *time.Time `json:"createdAt,omitzero"`
}

// VolumeMount is an item of volumeMounts in a sandbox response. Only Name and Path are E2B's.
type VolumeMount struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	VolumeID string `json:"volumeID"`
	ReadOnly bool   `json:"readOnly"`
}
