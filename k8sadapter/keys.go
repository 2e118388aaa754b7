package k8sadapter

import (
	"crypto/sha256"
	"encoding/hex"
)

// Labels of a registered PersistentVolume. Whoever may write them decides who owns a volume: see rbac.yaml.
const (
	// OwnerLabel holds the namespace that owns the volume.
	OwnerLabel = "agents.kruise.io/volume-owner-namespace"
	// NameLabel holds the name by which the owner calls it.
	NameLabel = "agents.kruise.io/volume-name"
)

// VolumeConfig is the key of the sandbox annotation, and of the E2B metadata, that holds mounts as a JSON array of
// MountConfig.
const VolumeConfig = "e2b.agents.kruise.io/csi-volume-config"

// Metadata keys of the older form, which names one mount.
const (
	LegacyName    = "e2b.agents.kruise.io/csi-volume-name"
	LegacyPath    = "e2b.agents.kruise.io/csi-mount-point"
	LegacySubPath = "e2b.agents.kruise.io/csi-subpath"
)

const (
	// ownerAnnotation is on a sandbox and holds the UID of the claim that took it. Unlike the label with the claim's name,
	// the claim's own labels cannot overwrite it.
	ownerAnnotation = "agents.kruise.io/owner"

	// deletingAnnotation is on a PersistentVolume while somebody tries to delete it: a nonce and the time.
	deletingAnnotation = "agents.kruise.io/volume-deleting"
	// voidAnnotation is on a PersistentVolume whose registration was given up by somebody else: see takeRef.
	voidAnnotation = "agents.kruise.io/volume-registration-void"

	// On leases.
	pvAnnotation    = "agents.kruise.io/persistent-volume"
	uidAnnotation   = "agents.kruise.io/persistent-volume-uid"
	nonceAnnotation = "agents.kruise.io/nonce"
	stateAnnotation = "agents.kruise.io/resolution"
	roleLabel       = "agents.kruise.io/volume-lease"
)

// The roles of leases.
const (
	roleRef    = "reference"
	roleWriter = "writer"
)

// refLease is the name of the lease that says which PersistentVolume a reference, a name or an id, means in a namespace.
// It is a hash: ids are longer than what fits, and a hash of a malformed id can be looked up like any other.
func refLease(namespace, ref string) string { return leaseName("volume-ref-", namespace, ref) }

// writerLease is the name of the lease of who may write what is behind a driver and a handle. Two PersistentVolumes can
// name the same storage, so their own names would not do.
func writerLease(driver, handle string) string { return leaseName("volume-writer-", driver, handle) }

func leaseName(prefix, a, b string) string {
	sum := sha256.Sum256([]byte(a + "\x00" + b))
	return prefix + hex.EncodeToString(sum[:20])
}
