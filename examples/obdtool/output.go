package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// What -to can be.
const (
	toRaw  = "raw"
	toBare = "bare"
)

// outputFlags say which file is written, and how.
type outputFlags struct {
	path, to, algorithm string
	blockKiB            int
	replace             bool
}

func (c *call) outputFlags() *outputFlags {
	o := &outputFlags{}
	c.flags.StringVar(&o.path, "o", "", "`file` to write")
	c.flags.BoolVar(&o.replace, "f", false, "replace the file if there is one")
	c.flags.StringVar(&o.to, "to", overlaybd.CodecZFile, "`form` of the file: raw, bare, zfile, tar or tar+zfile")
	c.flags.StringVar(&o.algorithm, "algorithm", "lz4", "compression of a ZFile: lz4 or zstd")
	c.flags.IntVar(&o.blockKiB, "bs", 4, "block size of a ZFile in `KiB`: 4, 8, 16, 32 or 64")
	return o
}

// check finds what is wrong with the flags before any work is done for them.
func (o *outputFlags) check() error {
	if o.path == "" {
		return usage("no -o")
	}
	switch o.to {
	case toRaw, toBare, overlaybd.CodecZFile, overlaybd.CodecTar, overlaybd.CodecTarZFile:
	default:
		return lsmt.Invalid("form", fmt.Sprintf("%q", o.to), "raw, bare, zfile, tar or tar+zfile")
	}
	if o.algorithm != "lz4" && o.algorithm != "zstd" {
		return lsmt.Invalid("algorithm", fmt.Sprintf("%q", o.algorithm), "lz4 or zstd")
	}
	if b := o.blockKiB; b < 4 || b > 64 || b&(b-1) != 0 {
		return lsmt.Invalid("block size", fmt.Sprintf("%d KiB", b), "4, 8, 16, 32 or 64 KiB")
	}
	if _, err := os.Lstat(o.path); err == nil && !o.replace {
		return fmt.Errorf("%s: %w; -f replaces it", o.path, os.ErrExist)
	}
	return nil
}

// create writes the file: under another name until it is complete and durable. It returns its size.
func (o *outputFlags) create(write func(f *os.File) error) (size int64, err error) {
	dir := filepath.Dir(o.path)
	f, err := os.CreateTemp(dir, ".obdtool-")
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if e := os.Remove(f.Name()); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}()
	if err := write(f); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return 0, err
	}
	// A link, unlike a rename, does not replace what came to be there meanwhile.
	if o.replace {
		err = os.Rename(f.Name(), o.path)
	} else {
		err = os.Link(f.Name(), o.path)
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), syncDir(dir)
}

// syncDir makes names in a directory durable: a file that is durable under no name is lost all the same.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// layer wraps the LSMT stream that write makes.
func (o *outputFlags) layer(write func(w io.Writer) error) (size int64, err error) {
	return o.create(func(f *os.File) error {
		if o.to == overlaybd.CodecTar || o.to == overlaybd.CodecTarZFile {
			return o.envelope(f, write)
		}
		return o.blocks(f, f, write)
	})
}

func (o *outputFlags) envelope(f *os.File, write func(w io.Writer) error) error {
	t, err := tarlayer.NewWriter(f)
	if err != nil {
		return err
	}
	if err := o.blocks(t, io.NewOffsetWriter(f, tarlayer.HeaderSize), write); err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return t.WriteHeader(f)
}

// blocks compresses, if that is wanted. at is where w began: the header is written again there once all is known.
func (o *outputFlags) blocks(w io.Writer, at io.WriterAt, write func(w io.Writer) error) error {
	if o.to != overlaybd.CodecZFile && o.to != overlaybd.CodecTarZFile {
		return write(w)
	}
	options := zfile.Options{BlockSize: o.blockKiB << 10}
	if o.algorithm == "zstd" {
		options.Codec = zfile.Zstd
	}
	z, err := zfile.NewWriter(w, options)
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return z.WriteFinalHeader(at)
}
