package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// changeUpper opens an upper for a change, in place.
func changeUpper(data, index string, change func(*lsmt.Log) error) error {
	if queue := pendingOf(data); queue != "" {
		return lsmt.Invalid("upper", "with "+queue, "one that no device has open; a device seals and grows its own")
	}
	log, _, err := lsmt.OpenLog(lsmt.LogPaths{Data: data, Index: index, Pending: index + ".pending"}, lsmt.LogOptions{})
	if err != nil {
		return err
	}
	return errors.Join(change(log), log.Close())
}

// upperFacts is what the commands that change an upper print.
type upperFacts struct {
	Data        string    `json:"data"`
	Index       string    `json:"index"`
	UUID        uuid.UUID `json:"uuid"`
	Parent      uuid.UUID `json:"parent"`
	VirtualSize int64     `json:"virtualSize"`
	Segments    int       `json:"segments"`
}

func (c *call) printUpper(verb string, f upperFacts) error {
	return c.print(f, func(w io.Writer) {
		fmt.Fprintf(w, "%s %s: %s, %d segments, uuid %s\n", verb, f.Data, bytesText(f.VirtualSize), f.Segments, f.UUID)
	})
}

func create(c *call, args []string) error {
	var size sizeFlag
	var id, parent uuidFlag
	c.flags.Var(&size, "size", "virtual size; 0: that of the layers below, when there are any")
	c.flags.Var(&id, "uuid", "uuid (default: a random one)")
	c.flags.Var(&parent, "parent", "uuid of the layer below")
	args, err := c.parse(args, 2, 2)
	if err != nil {
		return err
	}
	if size%lsmt.SectorSize != 0 || size > overlaybd.MaxVirtualSize {
		return lsmt.Invalid("size", int64(size), fmt.Sprintf("a multiple of %d up to %d", lsmt.SectorSize, int64(overlaybd.MaxVirtualSize)))
	}
	if !id.set {
		if id.id, err = uuid.NewRandom(); err != nil {
			return err
		}
	}
	o := lsmt.LogOptions{UUID: id.id, Parent: parent.id, VirtualSize: int64(size)}
	log, err := lsmt.CreateLog(lsmt.LogPaths{Data: args[0], Index: args[1], Pending: args[1] + ".pending"}, o)
	if err != nil {
		return err
	}
	err = errors.Join(log.Close(), syncDir(filepath.Dir(args[0])), syncDir(filepath.Dir(args[1])))
	if err != nil {
		return err
	}
	return c.printUpper("created", upperFacts{args[0], args[1], id.id, parent.id, int64(size), 0})
}

func resize(c *call, args []string) error {
	var size sizeFlag
	c.flags.Var(&size, "size", "the new virtual size")
	args, err := c.parse(args, 2, 2)
	if err != nil {
		return err
	}
	facts := upperFacts{Data: args[0], Index: args[1]}
	err = changeUpper(args[0], args[1], func(log *lsmt.Log) error {
		n := int64(size)
		if n < log.VirtualSize() || n%lsmt.SectorSize != 0 || n > overlaybd.MaxVirtualSize {
			return lsmt.Invalid("size", n, fmt.Sprintf("a multiple of %d from %d, the present one, to %d",
				lsmt.SectorSize, log.VirtualSize(), int64(overlaybd.MaxVirtualSize)))
		}
		facts.fill(log)
		facts.VirtualSize = n
		return log.Grow(n)
	})
	if err != nil {
		return err
	}
	return c.printUpper("resized", facts)
}

func (f *upperFacts) fill(log *lsmt.Log) {
	f.UUID, f.Parent, f.VirtualSize, f.Segments = log.UUID(), log.Parent(), log.VirtualSize(), log.Segments()
}

func seal(c *call, args []string) error {
	args, err := c.parse(args, 2, 2)
	if err != nil {
		return err
	}
	facts := upperFacts{Data: args[0], Index: args[1]}
	sparse, err := facts.sealSparse()
	if !sparse && err == nil {
		err = changeUpper(args[0], args[1], func(log *lsmt.Log) error {
			facts.fill(log)
			_, err := log.Seal()
			return err
		})
	}
	if err != nil {
		return err
	}
	return c.printUpper("sealed", facts)
}

// sealSparse seals a sparse upper, and reports whether it is one.
func (f *upperFacts) sealSparse() (sparse bool, err error) {
	file, err := os.OpenFile(f.Data, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if sparse, err = isSparse(file); err != nil || !sparse {
		return sparse, err
	}
	l, err := lsmt.SealSparse(file)
	if err != nil {
		return true, err
	}
	f.UUID, f.Parent, f.VirtualSize, f.Segments = l.UUID, l.Parent, l.VirtualSize, len(l.Segments)
	return true, nil
}

// uuidFlag is a uuid in text form.
type uuidFlag struct {
	id  uuid.UUID
	set bool
}

// String is the uuid.
func (u *uuidFlag) String() string {
	if u == nil || !u.set {
		return ""
	}
	return u.id.String()
}

// Set reads it.
func (u *uuidFlag) Set(text string) (err error) {
	if u.id, err = uuid.Parse(text); err != nil {
		return lsmt.Invalid("uuid", fmt.Sprintf("%q", text), "a uuid in canonical form")
	}
	u.set = true
	return nil
}
