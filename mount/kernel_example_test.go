package mount_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/mount/fuse"
	"github.com/sandvol/sandvol/mount/mounttest"
	"github.com/sandvol/sandvol/overlaybd/ext4"
)

// A fresh device gets a file system and is mounted on the host's kernel. It takes root.
func ExampleMountKernel() {
	if err := mountOnce("/run/sandvol/drives", "/sandboxes/sb1/data"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func mountOnce(drives, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := fuse.New(drives)
	if err != nil {
		return err
	}
	defer server.Close(ctx)
	dev := mounttest.NewMemDevice(1 << 30) // stands for an overlaybd device
	if err := (ext4.Formatter{}).Format(ctx, dev); err != nil {
		return err
	}
	exposure, err := server.Expose(ctx, "sb1-data", dev, false)
	if err != nil {
		return err
	}
	m, err := mount.MountKernel(ctx, exposure.Path(), target, mount.KernelOptions{})
	if err != nil {
		return err
	}
	// ... the sandbox runs ...
	if err := m.Unmount(ctx); err != nil {
		return err
	}
	return exposure.Close(ctx)
}
