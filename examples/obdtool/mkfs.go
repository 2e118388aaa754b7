package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/ext4"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// mkfs makes a layer that holds an empty ext4 file system: what a new volume begins with.
func mkfs(c *call, args []string) (err error) {
	out, identity := c.outputFlags(), c.identityFlags()
	var size sizeFlag
	c.flags.Var(&size, "size", "virtual size")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if err := out.check(); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "obdtool-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	path, err := c.format(scratch, int64(size))
	if err != nil {
		return err
	}
	return c.compact([]layerArg{fileLayer(path)}, 0, out, identity)
}

// format writes the file system to a device in dir, and returns the file of its one layer.
func (c *call) format(dir string, size int64) (path string, err error) {
	e, err := overlaybd.New(overlaybd.Config{Open: func(_ context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
		return nil, fmt.Errorf("no layer %q", l.Key)
	}})
	if err != nil {
		return "", err
	}
	dev, err := e.OpenWritable(c.ctx, dir, overlaybd.Stack{VirtualSize: size})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if err := (ext4.Formatter{}).Format(c.ctx, dev); err != nil {
		return "", err
	}
	layers, err := dev.Seal(c.ctx, overlaybd.SealOptions{Final: true})
	if err != nil {
		return "", err
	}
	if len(layers) != 1 {
		return "", lsmt.Invalid("file system", fmt.Sprintf("in %d layers", len(layers)), "small enough for one")
	}
	return layers[0].Path, nil
}
