package wire

import "time"

// NewVolume is the body of POST /volumes. Only Name is E2B's.
type NewVolume struct {
	// Name is unique among the caller's volumes: A-Z a-z 0-9 _ -, and not a UUID.
	Name string `json:"name"`
	// Mode is "exclusive" when empty, or "ro".
	Mode string `json:"mode,omitzero"`
	// SizeMB is 65536 when 0, or the source's size.
	SizeMB int64 `json:"sizeMB,omitzero"`
	// Source is what the volume starts from; nil is an empty file system.
	Source *Source `json:"source,omitzero"`
	// Labels are kept with the volume and can be asked for in lists.
	Labels map[string]string `json:"labels,omitzero"`
	// Flush has the holder of a source volume publish its newest writes first.
	Flush bool `json:"flush,omitzero"`
}

// Source names what a volume starts from, or came from: exactly one member is set.
type Source struct {
	VolumeID   string `json:"volumeID,omitzero"`
	SnapshotID string `json:"snapshotID,omitzero"`
	Image      string `json:"image,omitzero"`
}

// Lineage says which state a volume is a copy of. It is text: what it names may be gone.
type Lineage struct {
	VolumeID   string `json:"volumeID,omitzero"`
	SnapshotID string `json:"snapshotID,omitzero"`
	Generation uint64 `json:"generation,omitzero"`
}

// Reservation says which sandbox has an exclusive volume.
type Reservation struct {
	SandboxID string    `json:"sandboxID"`
	Phase     string    `json:"phase"`
	Since     time.Time `json:"since"`
	// SuspectSince is when the sandbox's node was last heard of, if that is long ago. It changes nothing by itself.
	SuspectSince *time.Time `json:"suspectSince,omitzero"`
}

// Volume is an item of GET /volumes. Only VolumeID and Name are E2B's.
type Volume struct {
	VolumeID string `json:"volumeID"`
	// Name is the volume's name, or its id if it has none.
	Name        string            `json:"name"`
	Mode        string            `json:"mode,omitzero"`
	Status      string            `json:"status"`
	SizeMB      int64             `json:"sizeMB,omitzero"`
	CreatedAt   *time.Time        `json:"createdAt,omitzero"`
	Labels      map[string]string `json:"labels,omitzero"`
	Source      *Source           `json:"source,omitzero"`
	Lineage     *Lineage          `json:"lineage,omitzero"`
	Reservation *Reservation      `json:"reservation,omitzero"`
}

// VolumeAndToken is a volume as POST /volumes and GET /volumes/{volumeID} answer it.
type VolumeAndToken struct {
	Volume
	// Token is for E2B's content API, which this API does not have. It is always present: E2B's Python client fails
	// without it. E2B's clients send it to a host that is not ours, so it is never a credential.
	Token string `json:"token"`
}

// Fork is the body of POST /volumes/{volumeID}/fork. The zero value makes one exclusive child with a made-up name.
type Fork struct {
	Name string `json:"name,omitzero"`
	// Count is how many children, 1 to 100; 0 is 1. With a name and more than one they are called name-1 to name-n.
	Count int    `json:"count,omitzero"`
	Mode  string `json:"mode,omitzero"`
	Flush bool   `json:"flush,omitzero"`
}

// ForkResult is one child of a fork: either member is set.
type ForkResult struct {
	Volume *VolumeAndToken `json:"volume,omitzero"`
	Error  *Error          `json:"error,omitzero"`
}

// Restore is the body of POST /volumes/{volumeID}/restore.
type Restore struct {
	SnapshotID string `json:"snapshotID"`
	Name       string `json:"name,omitzero"`
	Mode       string `json:"mode,omitzero"`
}
