package guestvm

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// modules are loaded in this order; ext4 is part of the kernel.
var modules = []string{"virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk"}

// Kernel is a kernel with its first programs.
type Kernel struct{ image, initramfs string }

// Build finds the kernel in a directory that .ci/kernel has made, and puts an initramfs for it into another.
func Build(ctx context.Context, kernelDir, into string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(kernelDir, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return nil, fmt.Errorf("%d kernels in %s, %w; want one", len(images), kernelDir, err)
	}
	program := filepath.Join(into, "init")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/sandvol/sandvol/internal/guestvm/init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build init: %w\n%s", err, out)
	}
	files := []file{{"init", 0o755, program}}
	for i, m := range modules {
		path, err := findModule(kernelDir, m)
		if err != nil {
			return nil, err
		}
		files = append(files, file{fmt.Sprintf("modules/%d-%s.ko", i, m), 0o644, path})
	}
	k := &Kernel{image: images[0], initramfs: filepath.Join(into, "initramfs")}
	return k, writeInitramfs(k.initramfs, files)
}

func findModule(dir, name string) (found string, err error) {
	err = filepath.WalkDir(filepath.Join(dir, "lib", "modules"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), name+".ko") {
			found = path
			return fs.SkipAll
		}
		return err
	})
	if err == nil && !strings.HasSuffix(found, ".ko") {
		err = fmt.Errorf("no module %s.ko in %s, found %q", name, dir, found)
	}
	return found, err
}

type file struct {
	name string
	mode uint32
	from string
}

// writeInitramfs writes a cpio archive of the newc kind.
func writeInitramfs(to string, files []file) error {
	var b bytes.Buffer
	inode := 0
	add := func(name string, mode uint32, data []byte) {
		inode++
		fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
			inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
		b.WriteString(name + "\x00")
		pad(&b)
		b.Write(data)
		pad(&b)
	}
	for _, d := range []string{"dev", "modules"} {
		add(d, 0o040755, nil)
	}
	for _, f := range files {
		data, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		add(f.name, 0o100000|f.mode, data)
	}
	add("TRAILER!!!", 0, nil)
	return os.WriteFile(to, b.Bytes(), 0o600)
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
