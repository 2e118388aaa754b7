// Package k8sadapter offers PersistentVolumes as volumes. A Kubernetes host, OpenKruise's agents first, keeps its CSI drivers
// and its PersistentVolumes and gets the E2B volume API and mounts, with tenants kept apart, use detected, and no race
// between a deletion and a mount. A namespace is a tenant, and a PersistentVolume's name is the volume's id.
//
//	a, err := k8sadapter.New(k8sadapter.Config{
//		PersistentVolumes: client.CoreV1().PersistentVolumes(),
//		Leases:            client.CoordinationV1().Leases("sandbox-system"),
//		Usage:             k8sadapter.OpenKruise{Claims: dyn.Resource(k8sadapter.SandboxClaims), Sandboxes: dyn.Resource(k8sadapter.Sandboxes)},
//		Drivers:           map[string]k8sadapter.Driver{"nas.example.com": {SubPathAttribute: "path"}},
//	})
//	err = a.Start(ctx)
//	defer a.Close()
//	v, err := a.Register(ctx, "team", k8sadapter.Registration{PV: "pv-001", Name: "data"})
//
//	r, err := a.Resolve(ctx, "team", k8sadapter.Request{Mounts: mounts})
//	err = r.Apply(claim)          // spec.dynamicVolumesMount; or r.Annotation on the sandbox
//	...                           // store it
//	err = a.Confirm(ctx, r.Token) // if it fails: remove what was stored, and a.Release(ctx, r.Token)
//
// Mounts are read from a request by ParseMetadata and ParseClaim, and by e2bhttp's MountRules: the example of Mount turns
// those entries into mounts. Tenant has the methods of e2bhttp's Volumes; there, forks, snapshots and restores are answered
// 501. After Close nothing is looked up any more, which is ErrClosed.
//
// # What is promised
//
//   - A volume of another namespace is as absent as one that never existed: same error, same requests. All look-ups go
//     through one function.
//   - A name is unique among the names and ids of a namespace, whoever races for it.
//   - A volume is not deleted while a claim, a sandbox or an unconfirmed resolution uses it, and no mount is confirmed on a
//     volume that was deleted. What cannot be read counts as in use.
//   - No use is stored. It is derived from the claims and sandboxes themselves, so it ends when they do.
//   - Decisions are made on live reads of the API server; only Get and List are answered from a watch.
//   - Whatever is changed is changed only as it was read, by its UID and resource version: a PersistentVolume that was made
//     anew under the same name is another volume, and old resolutions do not open it.
//   - The same request resolves to the same bytes. Secrets are named, never read; attributes are passed on, never logged.
//
// # Who may share
//
// The access modes of a PersistentVolume decide. ReadOnlyMany is read by many. ReadWriteMany is written by many, who see
// each other's files at once and coordinate among themselves; Config.Strict allows one writer and any number of readers.
// ReadWriteOnce has one writer, and readers beside it. ReadWriteOncePod has one sandbox at all. Kubernetes itself enforces
// little of this for volumes that are not attached to nodes. One writer means one for a driver and volume handle: two
// PersistentVolumes can name the same storage, also in two namespaces. Each mount goes by the access modes of its own one: do
// not describe the same storage as ReadWriteOnce and as ReadWriteMany. Registering a second one is logged.
//
// # What is not promised
//
// The adapter declares mounts; agent-runtime and the CSI sidecars of the sandbox make them. So a template must enable the
// runtimes "csi" and "agent-runtime", the mount path must be an empty directory there, storage must be reachable from the
// sandbox's node, and a missing sub-directory is not created: the pipeline reports such failures after the claim, and a mount
// takes it extra time. Warm pools, creation without stock and image upgrades in place work alike. Mounts are not restored from a
// checkpoint unless a request asks for them again.
//
// Objects that somebody makes without the adapter are seen as users, but nothing stops them from naming a volume of another
// namespace: let only the host create claims. Whoever may write the two labels decides who owns what; rbac.yaml has what
// the adapter itself needs.
package k8sadapter
