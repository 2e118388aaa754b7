// Package e2bhttp serves volumes over the HTTP API of E2B, so that a program written for E2B's SDK works with them
// unchanged, and extends it by what E2B lacks: modes, sizes, sources, forks, snapshots and restores.
//
//	auth, err := e2bhttp.APIKeys(map[string]string{"e2b_0123": "acme"}) // or a hook of the host
//	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth)
//	mux.Handle("/", h)                                // also below any prefix, with http.StripPrefix
//	mux.Handle("POST /sandboxes", h.Mounts(create))   // what older SDKs send
//	mux.Handle("POST /v2/sandboxes", h.Mounts(create)) // what newer ones send
//
// # Volumes
//
// A Handler reaches volumes through the small interface [Volumes] alone; a volume.Manager implements it, and everything else
// that is optional. What an implementation cannot do is answered 501. Bodies are in package wire, a Go client in package
// client, the OpenAPI document in [OpenAPI] and at /openapi.json.
//
//	GET    /volumes                       list: all, or a page with ?limit=&nextToken=; ?label=k=v and ?status= narrow it
//	POST   /volumes                       create: {"name", "mode", "sizeMB", "labels", "source"}, source being one of
//	                                      {"volumeID"}, {"snapshotID"} and {"image"}
//	GET    /volumes/{volumeID}            get, by id or name
//	DELETE /volumes/{volumeID}            delete
//	POST   /volumes/{volumeID}/fork       {"name", "count", "mode", "flush"}
//	POST   /volumes/{volumeID}/snapshots  {"name", "flush"}
//	GET    /volumes/{volumeID}/snapshots
//	POST   /volumes/{volumeID}/restore    {"snapshotID", "name", "mode"}
//	GET    /volume-snapshots              ?volumeID=&name=
//	GET    /volume-snapshots/{snapshotID}
//	DELETE /volume-snapshots/{snapshotID}
//
// Every answer that is not a success is {"code", "message", "error_code"}: code equals the status, error_code is of a closed
// list. 503 means that the same request may succeed soon, and has a Retry-After. A creation with an Idempotency-Key can be
// repeated. E2B's content API, /volumecontent, is answered 501: files are reached through a sandbox.
//
// # Mounts
//
// [MountRules.Decode] reads the mounts in a body that creates a sandbox, in every form in which clients send them, and
// [MountRules.Resolve] finds their volumes and reports everything that is wrong at once. [Handler.Mounts] is both as
// middleware. A host passes the result to mount.Node.Create, which acquires all volumes or none, and shows it in its answers
// with [ShowMounts], [ShowDrives] and [AddMounts]. A host that cannot mount must refuse what a request
// asks for, and never drop it.
//
// # Tenants
//
// An [Authenticator] names the tenant of each request. Everything is looked up under that tenant, so a volume of another one
// is answered exactly like one that never existed, after the same work. Nothing that a request carried is logged but its
// method, route and id; what looks like a credential in an error's text is removed from logs and answers.
package e2bhttp
