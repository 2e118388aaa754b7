package mount_test

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/posixstore"
)

// A host opens the repository from its node, and gives a sandbox a volume. It takes root.
func Example() {
	embed(context.Background(), "/mnt/volumes", "/var/lib/sandvol")
}

func embed(ctx context.Context, shared, local string) {
	st := must(posixstore.New(shared)) // a directory that all nodes mount
	repo := must(volume.Open(ctx, volume.Config{Store: st, Dir: filepath.Join(local, "volumes"), Node: "node-1"},
		volume.WithFormatter(ext4.Formatter{})))
	defer repo.Close()
	drives := must(fuse.New(filepath.Join(local, "drives"))) // a FUSE mount with one file per drive
	defer drives.Close(ctx)
	root := func(id mount.ID) string { return filepath.Join(local, "sandboxes", id.Sandbox) }
	node := mount.NewNode(repo, drives, mount.WithKernelMounts(root, mount.KernelOptions{}))
	defer node.Close(ctx)
	must(node.Recover(ctx)) // what was under way when this node stopped last is finished or undone

	acme := must(repo.Tenant("acme"))
	must(acme.Create(ctx, volume.CreateOptions{Name: "data"})) // 64 GiB, empty
	id := mount.ID{Tenant: "acme", Sandbox: "sandbox-1"}
	attached := must(node.Create(ctx, id, []mount.Mount{{Path: "/data", Volume: "data"}}))
	fmt.Println("mounted at", attached[0].Target) // a VMM would open attached[0].Device instead
	// The sandbox runs, and writes. Then the host stops it, and:
	if err := node.Pause(ctx, id); err != nil {
		panic(err) // nothing is lost: call it again, or Resume
	}
	// Every byte is in the repository now. Resume continues the sandbox, on any node.
}

// must stands for a host's own way to handle errors.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
