package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

func cat(c *call, args []string) error {
	stack := c.stackFlags()
	var off, n sizeFlag
	c.flags.Var(&off, "off", "first byte")
	c.flags.Var(&n, "len", "number of bytes; 0: all behind the first")
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	if c.json {
		return usage("-json: cat prints the disk's bytes")
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	e, s, err := newEngine(layers, int64(stack.size))
	if err != nil {
		return err
	}
	end := s.VirtualSize
	if int64(off) > end || int64(n) > end-int64(off) {
		return lsmt.Invalid("range", fmt.Sprintf("of %d bytes at %d", n, off), fmt.Sprintf("within the disk's %d bytes", end))
	}
	if n > 0 {
		end = int64(off + n)
	}
	dev, err := e.OpenReadOnly(c.ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(c.copyRange(dev, int64(off), end), dev.Close())
}

// copyRange prints [off, end) of a device, which is read in whole sectors.
func (c *call) copyRange(dev overlaybd.Device, off, end int64) error {
	buf := make([]byte, 1<<20)
	for off < end {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		skip := off % lsmt.SectorSize
		p := buf[:min(int64(len(buf)), (end-off+skip+lsmt.SectorSize-1)/lsmt.SectorSize*lsmt.SectorSize)]
		if n, err := dev.ReadAt(p, off-skip); n < len(p) {
			return err
		}
		p = p[skip:min(int64(len(p)), skip+end-off)]
		if _, err := c.stdout.Write(p); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}

// difference is what diff prints.
type difference struct {
	Ranges []rangeFacts `json:"ranges"`
	Bytes  int64        `json:"bytes"`
	Same   bool         `json:"same"`
}

type rangeFacts struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

func diff(c *call, args []string) error {
	stack := c.stackFlags()
	with := c.flags.String("with", "", "`files` of the other disk's layers, bottom first, with a comma between two")
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	if *with == "" {
		return usage("no -with")
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	var others []layerArg
	for _, path := range strings.Split(*with, ",") {
		others = append(others, fileLayer(path))
	}
	return c.diff(layers, others, int64(stack.size))
}

func (c *call) diff(layers, others []layerArg, size int64) error {
	// One engine opens both stacks, and a file is one layer by whatever name.
	for _, list := range [][]layerArg{layers, others} {
		for i, l := range list {
			if l.path == "" {
				continue
			}
			path, err := filepath.EvalSymlinks(l.path)
			if err == nil {
				path, err = filepath.Abs(path)
			}
			if err != nil {
				return err
			}
			list[i].name = path
		}
	}
	e, _, err := newEngine(append(layers[:len(layers):len(layers)], others...), 1)
	if err != nil {
		return err
	}
	_, a, err := newEngine(layers, size)
	if err != nil {
		return err
	}
	_, b, err := newEngine(others, size)
	if err != nil {
		return err
	}
	d := difference{Ranges: []rangeFacts{}}
	for r, err := range e.Diff(c.ctx, a, b) {
		if err != nil {
			return err
		}
		d.Ranges = append(d.Ranges, rangeFacts{r.Off, r.Len})
		d.Bytes += r.Len
	}
	d.Same = len(d.Ranges) == 0
	if err := c.print(d, d.text); err != nil {
		return err
	}
	if !d.Same {
		return errDiffer
	}
	return nil
}

func (d difference) text(w io.Writer) {
	if d.Same {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "offset\tlength\t")
	for _, r := range d.Ranges {
		fmt.Fprintf(t, "%d\t%d\t\n", r.Offset, r.Length)
	}
	t.Flush() // to w, a buffer
	fmt.Fprintf(w, "%d ranges, %s\n", len(d.Ranges), bytesText(d.Bytes))
}
