package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// inspected is what inspect finds in one file.
type inspected struct {
	Name   string      `json:"name"`
	Stored int64       `json:"stored"`
	Codec  string      `json:"codec"`
	Tar    *tarFacts   `json:"tar,omitempty"`
	ZFile  *zfileFacts `json:"zfile,omitempty"`
	Layer  *layerFacts `json:"layer,omitempty"`
	Other  string      `json:"other,omitempty"` // why there is no layer
}

type tarFacts struct {
	Offset int64 `json:"offset"`
	Size   int64 `json:"size"`
}

type zfileFacts struct {
	Compression string `json:"compression"`
	BlockSize   int    `json:"blockSize"`
	Blocks      int64  `json:"blocks"`
	Content     int64  `json:"content"`
	Stored      int64  `json:"stored"`
	Checksums   bool   `json:"checksums"`
	Digests     bool   `json:"digests"`
	FinalHeader bool   `json:"finalHeader"`
}

type layerFacts struct {
	UUID        uuid.UUID `json:"uuid"`
	Parent      uuid.UUID `json:"parent"`
	UserTag     string    `json:"userTag,omitempty"`
	VirtualSize int64     `json:"virtualSize"`
	Segments    int       `json:"segments"`
	Mapped      int64     `json:"mapped"` // bytes
	Zeroed      int64     `json:"zeroed"` // bytes
}

func inspect(c *call, args []string) error {
	stack := c.stackFlags()
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	var all []inspected
	for _, l := range layers {
		i, err := inspectOne(l)
		if err != nil {
			return err
		}
		all = append(all, i)
	}
	return c.print(all, func(w io.Writer) {
		for _, i := range all {
			i.text(w)
		}
	})
}

func inspectOne(l layerArg) (i inspected, err error) {
	i.Name = l.name
	if l.path != "" {
		// The envelopes are looked at on the way; what they hold is opened below.
		if err := i.envelopes(l.path); err != nil {
			return i, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	src, err := l.open()
	if err != nil {
		return i, err
	}
	defer src.Close() // only read
	if l.path == "" {
		i.Stored = src.Size()
	}
	layer, err := lsmt.OpenLayer(src, src.Size())
	if err = l.explain(err); err != nil {
		// A ZFile may hold anything.
		if i.ZFile != nil && errors.Is(err, overlaybd.ErrCorrupt) {
			i.Other = err.Error()
			return i, nil
		}
		return i, fmt.Errorf("%s: %w", l.name, err)
	}
	i.Layer = factsOf(layer)
	return i, nil
}

func factsOf(l *lsmt.Layer) *layerFacts {
	f := &layerFacts{
		UUID: l.UUID, Parent: l.Parent, UserTag: l.UserTag, VirtualSize: l.VirtualSize,
		Segments: len(l.Segments), Mapped: l.MappedBytes(),
	}
	for _, s := range l.Segments {
		if s.Zeroed() {
			f.Zeroed += int64(s.Len()) * lsmt.SectorSize
		}
	}
	return f
}

func (i *inspected) envelopes(path string) error {
	f, err := overlaybd.OpenFile(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	i.Stored = f.Size()
	if i.Codec, err = overlaybd.Detect(f, f.Size()); err != nil {
		return err
	}
	inner := io.NewSectionReader(f, 0, f.Size())
	if strings.HasPrefix(i.Codec, overlaybd.CodecTar) {
		p, err := tarlayer.Open(f, f.Size())
		if err != nil {
			return err
		}
		i.Tar = &tarFacts{p.Offset, p.Size}
		inner = io.NewSectionReader(f, p.Offset, p.Size)
	}
	if i.Codec != overlaybd.CodecZFile && i.Codec != overlaybd.CodecTarZFile {
		return nil
	}
	z, err := zfile.Open(inner, inner.Size())
	if err != nil {
		return err
	}
	n := z.Info()
	i.ZFile = &zfileFacts{n.Codec.String(), n.BlockSize, n.Blocks, n.Size, n.Stored, n.Checksums, n.Digests, n.FinalHeader}
	return nil
}

func (i *inspected) text(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", i.Name, bytesText(i.Stored))
	if t := i.Tar; t != nil {
		fmt.Fprintf(w, "  tar      the layer is at byte %d, %s\n", t.Offset, bytesText(t.Size))
	}
	if z := i.ZFile; z != nil {
		fmt.Fprintf(w, "  zfile    %d blocks of %s in %s, %s; %s of content in %s\n", z.Blocks, bytesText(int64(z.BlockSize)),
			z.Compression, checksumText(z.Checksums), bytesText(z.Content), bytesText(z.Stored))
	}
	l := i.Layer
	if l == nil {
		fmt.Fprintf(w, "  content  no layer: %s\n", i.Other)
		return
	}
	tag := ""
	if l.UserTag != "" {
		tag = fmt.Sprintf(", %q", l.UserTag)
	}
	fmt.Fprintf(w, "  layer    uuid %s%s\n", l.UUID, tag)
	if l.Parent != uuid.Nil {
		fmt.Fprintf(w, "  above    uuid %s\n", l.Parent)
	}
	fmt.Fprintf(w, "  disk     %s: %s mapped and %s of zeroes in %d segments\n",
		bytesText(l.VirtualSize), bytesText(l.Mapped), bytesText(l.Zeroed), l.Segments)
}

func checksumText(yes bool) string {
	if yes {
		return "with checksums"
	}
	return "without checksums"
}
