package main

import (
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// written is what the commands that write a file print.
type written struct {
	File        string     `json:"file"`
	Form        string     `json:"form"`
	Size        int64      `json:"size"`
	VirtualSize int64      `json:"virtualSize"`
	Segments    int        `json:"segments"`
	UUID        *uuid.UUID `json:"uuid,omitempty"`
}

func (c *call) printWritten(w written) error {
	return c.print(w, func(out io.Writer) {
		id := ""
		if w.UUID != nil {
			id = ", uuid " + w.UUID.String()
		}
		fmt.Fprintf(out, "%s: %s (%s) for a disk of %s in %d segments%s\n",
			w.File, bytesText(w.Size), w.Form, bytesText(w.VirtualSize), w.Segments, id)
	})
}

// identityFlags are the fields of a layer that its segments do not say.
type identityFlags struct {
	uuid, parent uuidFlag
	message      string
}

func (c *call) identityFlags() *identityFlags {
	i := &identityFlags{}
	c.flags.Var(&i.uuid, "uuid", "uuid of the layer (default: that of the topmost one)")
	c.flags.Var(&i.parent, "parent", "uuid of the layer below (default: that below the lowest one)")
	c.flags.StringVar(&i.message, "m", "", "`message` to store as user tag")
	return i
}

func (i *identityFlags) options(o *openLayers, size int64) (lsmt.CompactOptions, error) {
	opts := lsmt.CompactOptions{
		VirtualSize: size, UUID: o.layers[len(o.layers)-1].UUID, Parent: o.layers[0].Parent, UserTag: i.message,
	}
	if i.uuid.set {
		opts.UUID = i.uuid.id
	}
	if i.parent.set {
		opts.Parent = i.parent.id
	}
	if len(i.message) > lsmt.MaxUserTag {
		return opts, lsmt.Invalid("message", fmt.Sprintf("of %d bytes", len(i.message)), fmt.Sprintf("at most %d bytes", lsmt.MaxUserTag))
	}
	return opts, nil
}

func flatten(c *call, args []string) error {
	stack, out, identity := c.stackFlags(), c.outputFlags(), c.identityFlags()
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	return c.compact(layers, int64(stack.size), out, identity)
}

func commit(c *call, args []string) error {
	out, identity := c.outputFlags(), c.identityFlags()
	args, err := c.parse(args, 1, 2)
	if err != nil {
		return err
	}
	layer := fileLayer(args[0])
	if len(args) == 2 {
		layer = upperLayer(args[0], args[1])
	}
	return c.compact([]layerArg{layer}, 0, out, identity)
}

// compact writes what is visible of some layers.
func (c *call) compact(args []layerArg, size int64, out *outputFlags, identity *identityFlags) error {
	if err := out.check(); err != nil {
		return err
	}
	o, err := openAll(args)
	if err != nil {
		return err
	}
	defer o.close() // only read
	if size == 0 {
		size = o.size()
	}
	segs, files, err := o.merged(args[len(args)-1].upper)
	if err != nil {
		return err
	}
	w := written{File: out.path, Form: out.to, VirtualSize: size, Segments: len(segs)}
	if out.to == toRaw {
		w.Size, err = out.raw(c, segs, files, size)
	} else {
		var opts lsmt.CompactOptions
		if opts, err = identity.options(o, size); err != nil {
			return err
		}
		w.UUID = &opts.UUID
		w.Size, err = out.layer(func(to io.Writer) error { return lsmt.Compact(c.ctx, to, segs, files, opts) })
	}
	if err != nil {
		return err
	}
	return c.printWritten(w)
}

func convert(c *call, args []string) error {
	out, identity := c.outputFlags(), c.identityFlags()
	from := c.flags.String("from", overlaybd.CodecAuto, "`form` of the input: raw, or auto for a layer in any envelope")
	args, err := c.parse(args, 1, 1)
	if err != nil {
		return err
	}
	switch {
	case *from != toRaw && *from != overlaybd.CodecAuto:
		return lsmt.Invalid("form of the input", fmt.Sprintf("%q", *from), "raw or auto")
	case *from == toRaw && out.to == toRaw:
		return usage("from raw to raw")
	case *from == toRaw:
		return c.fromRaw(args[0], out, identity)
	case out.to == toRaw:
		return c.compact([]layerArg{fileLayer(args[0])}, 0, out, identity)
	}
	return c.rewrap(fileLayer(args[0]), out, identity)
}

// rewrap puts a layer, byte for byte, into another envelope.
func (c *call) rewrap(arg layerArg, out *outputFlags, identity *identityFlags) error {
	if identity.uuid.set || identity.parent.set || identity.message != "" {
		return usage("-uuid, -parent and -m need commit: convert does not change a layer")
	}
	if err := out.check(); err != nil {
		return err
	}
	o, err := openAll([]layerArg{arg})
	if err != nil {
		return err
	}
	defer o.close() // only read
	l, src := o.layers[0], o.sources[0]
	w := written{File: out.path, Form: out.to, VirtualSize: l.VirtualSize, Segments: len(l.Segments), UUID: &l.UUID}
	w.Size, err = out.layer(func(to io.Writer) error {
		_, err := io.Copy(to, io.NewSectionReader(src, 0, src.Size()))
		return err
	})
	if err != nil {
		return err
	}
	return c.printWritten(w)
}

// fromRaw makes a layer of a raw image; what is zero in it is not stored.
func (c *call) fromRaw(path string, out *outputFlags, identity *identityFlags) error {
	if err := out.check(); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size == 0 || size%lsmt.SectorSize != 0 {
		return lsmt.Invalid("image", fmt.Sprintf("%s of %d bytes", path, size),
			fmt.Sprintf("a file of whole sectors of %d bytes, not empty", lsmt.SectorSize))
	}
	segs, err := dataBlocks(c, f, size)
	if err != nil {
		return err
	}
	opts, err := identity.options(&openLayers{layers: []*lsmt.Layer{{}}}, size)
	if err != nil {
		return err
	}
	w := written{File: out.path, Form: out.to, VirtualSize: size, Segments: len(segs), UUID: &opts.UUID}
	w.Size, err = out.layer(func(to io.Writer) error { return lsmt.Compact(c.ctx, to, segs, []io.ReaderAt{f}, opts) })
	if err != nil {
		return err
	}
	return c.printWritten(w)
}
