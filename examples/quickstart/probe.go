package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandvol/sandvol/mount/fuse"
)

// probe says what this machine lacks for mounted file systems; nothing if they work. The error is of a machine that can
// mount and cannot unmount.
func probe(ctx context.Context, dir string) (missing string, err error) {
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root")
	}
	for _, device := range []string{"/dev/fuse", "/dev/loop-control"} {
		if unix.Access(device, unix.R_OK|unix.W_OK) != nil {
			lacks = append(lacks, device)
		}
	}
	if len(lacks) > 0 {
		return strings.Join(lacks, ", "), nil
	}
	// In a container, root may not be allowed to mount all the same: only trying tells.
	server, err := fuse.New(filepath.Join(dir, "probe"))
	if err != nil {
		return fmt.Sprintf("the right to mount (%v)", err), nil
	}
	return "", server.Close(ctx)
}
