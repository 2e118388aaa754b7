// Package guest speaks HTTP with an agent inside a sandbox that has a kernel of its own, so that file systems can be frozen
// for a clean cut, and drives mounted again after a resume. A [Client] is a mount.Guest:
//
//	node := mount.NewNode(repo, exposer, mount.WithGuest(func(id mount.ID) mount.Guest {
//		return guest.New(agentURL(id), guest.WithDevice(func(d mount.Drive) string { return vmDevice(id, d.Volume) }))
//	}))
//
// # Protocol
//
// All bodies are JSON. Status 2xx is success, 404 that the agent has no such function, and anything else a failure, whose body
// is quoted in the error.
//
//	POST /patch/drives  {"drives":[{"path":"/work","device":"/dev/vdb","volumeID":"0190..","generation":7,"readOnly":false}]}
//	POST /freeze        {"paths":["/work"],"seconds":30}
//	POST /thaw          {"paths":["/work"]}
//
// /patch/drives names all drives that are to be mounted, and may be repeated: a drive that the agent has mounted already from
// the same volume and generation at the same path stays as it is; any other mount that an earlier call made goes, lazily if it
// must. Generation is the epoch of the volume's grant, 0 for an ro volume, whose content never changes.
//
// /freeze answers when all file systems are frozen, and thaws by itself after that many seconds, so that a host that dies
// leaves no sandbox frozen; freezing what is frozen already is success, and begins those seconds anew. /thaw answers 409 if that has happened: the cut that was made then is not clean.
package guest
