package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/turbo"
)

// layerArg is a layer as the command line names it. Opening it gives the LSMT stream, whatever it is wrapped in.
type layerArg struct {
	name  string
	path  string // of the file, if it is one
	upper bool
	open  func() (overlaybd.Source, error)
}

// stackFlags name the layers of a disk.
type stackFlags struct {
	config string
	size   sizeFlag
}

func (c *call) stackFlags() *stackFlags {
	s := &stackFlags{}
	c.flags.StringVar(&s.config, "config", "", "read the layers from config.v1.json `file`")
	c.flags.Var(&s.size, "size", "virtual size, if not that of the topmost layer")
	return s
}

// layers returns those of the command line, bottom first.
func (s *stackFlags) layers(args []string) (all []layerArg, err error) {
	if s.config != "" {
		if len(args) > 0 {
			return nil, usage("layers beside -config")
		}
		return readConfig(s.config)
	}
	if len(args) == 0 {
		return nil, usage("no layer, and no -config")
	}
	for _, arg := range args {
		l, err := parseLayer(arg)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// parseLayer understands FILE, DATA,INDEX and turbo:META,TARGET[,GZIPINDEX].
func parseLayer(arg string) (layerArg, error) {
	rest, isTurbo := strings.CutPrefix(arg, "turbo:")
	parts := strings.Split(rest, ",")
	switch {
	case isTurbo && (len(parts) == 2 || len(parts) == 3):
		return turboLayer(parts[0], parts[1], strings.Join(parts[2:], "")), nil
	case isTurbo || len(parts) > 2:
		return layerArg{}, usage("layer %q is neither FILE, DATA,INDEX nor turbo:META,TARGET[,GZIPINDEX]", arg)
	case len(parts) == 2:
		return upperLayer(parts[0], parts[1]), nil
	}
	return fileLayer(arg), nil
}

func fileLayer(path string) layerArg {
	return layerArg{name: path, path: path, open: func() (overlaybd.Source, error) { return openUnwrapped(path) }}
}

func openUnwrapped(path string) (overlaybd.Source, error) {
	f, err := overlaybd.OpenFile(path)
	if err != nil {
		return nil, err
	}
	src, err := overlaybd.Unwrap(f, overlaybd.CodecAuto)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return src, nil
}

func turboLayer(meta, target, gzipIndex string) layerArg {
	return layerArg{name: "turbo:" + meta, open: func() (overlaybd.Source, error) {
		m, err := openUnwrapped(meta)
		if err != nil {
			return nil, err
		}
		t, err := openTarget(target, gzipIndex)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		l, err := turbo.Open(m, t)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", meta, err), m.Close(), t.Close())
		}
		return l, nil
	}}
}

// openTarget opens a tar file, or the one in a gzip file that has an index.
func openTarget(target, gzipIndex string) (turbo.Blob, error) {
	t, err := overlaybd.OpenFile(target)
	if err != nil || gzipIndex == "" {
		return t, err
	}
	b, err := os.ReadFile(gzipIndex)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	x, err := turbo.OpenIndex(strings.NewReader(string(b)), int64(len(b)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", gzipIndex, err), t.Close())
	}
	r, err := x.Open(t)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", target, err), t.Close())
	}
	return r, nil
}

// explain says of a file that is corrupt as a layer that it is half of another kind of layer, if it is.
func (l layerArg) explain(err error) error {
	if l.path == "" || !errors.Is(err, overlaybd.ErrCorrupt) {
		return err
	}
	src, openErr := l.open()
	if openErr != nil {
		return err
	}
	defer src.Close() // only read
	t, readErr := lsmt.ReadTrailer(src, src.Size())
	if readErr != nil {
		return err
	}
	segs, readErr := lsmt.ReadRemoteIndex(src, t)
	inTarget := func(s lsmt.Segment) bool { return s.Tag() == lsmt.TagTarget }
	if readErr != nil || !slices.ContainsFunc(segs, inTarget) {
		return err
	}
	return usage("%s is the metadata of a TurboOCI layer: name it turbo:%s,TARGET[,GZIPINDEX]", l.name, l.path)
}

// newEngine returns an engine for some layers, and the stack of them. size 0: that of the topmost layer that has one.
func newEngine(layers []layerArg, size int64) (*overlaybd.Engine, overlaybd.Stack, error) {
	byKey := map[string]layerArg{}
	s := overlaybd.Stack{VirtualSize: size}
	for _, l := range layers {
		byKey[l.name] = l
		s.Layers = append(s.Layers, overlaybd.Layer{Key: l.name})
	}
	for i := len(layers) - 1; i >= 0 && s.VirtualSize == 0; i-- {
		t, err := readTrailer(layers[i])
		if err != nil {
			return nil, s, err
		}
		s.VirtualSize = t.VirtualSize
	}
	e, err := overlaybd.New(overlaybd.Config{Open: func(_ context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
		return byKey[l.Key].open()
	}})
	return e, s, err
}

func readTrailer(l layerArg) (lsmt.Header, error) {
	src, err := l.open()
	if err != nil {
		return lsmt.Header{}, err
	}
	defer src.Close() // only read
	t, err := lsmt.ReadTrailer(src, src.Size())
	if err != nil {
		err = fmt.Errorf("%s: %w", l.name, err)
	}
	return t, err
}

// openLayers are layers with their indexes.
type openLayers struct {
	layers  []*lsmt.Layer
	sources []overlaybd.Source
}

func openAll(args []layerArg) (*openLayers, error) {
	o := &openLayers{}
	for _, arg := range args {
		src, err := arg.open()
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.sources = append(o.sources, src)
		l, err := lsmt.OpenLayer(src, src.Size())
		if err != nil {
			return nil, errors.Join(arg.explain(fmt.Errorf("%s: %w", arg.name, err)), o.close())
		}
		o.layers = append(o.layers, l)
	}
	return o, nil
}

func (o *openLayers) close() (err error) {
	for _, src := range o.sources {
		err = errors.Join(err, src.Close())
	}
	return err
}

// size returns the virtual size of the topmost layer that has one.
func (o *openLayers) size() int64 {
	for i := len(o.layers) - 1; i >= 0; i-- {
		if n := o.layers[i].VirtualSize; n > 0 {
			return n
		}
	}
	return 0
}

// merged resolves the layers to one list, tagged as the OverlayBD project tags them: the topmost layer is 0. An upper
// is the exception: its tag is the number of the others. files holds the streams by tag.
func (o *openLayers) merged(upper bool) (segs []lsmt.Segment, files []io.ReaderAt, err error) {
	if len(o.layers) > lsmt.MaxLowers {
		return nil, nil, lsmt.Invalid("stack", fmt.Sprintf("of %d layers", len(o.layers)), fmt.Sprintf("at most %d", lsmt.MaxLowers))
	}
	n := len(o.layers)
	files = make([]io.ReaderAt, n)
	lists := make([][]lsmt.Segment, n)
	for i, l := range o.layers {
		tag := n - 1 - i
		if upper {
			tag = (tag + n - 1) % n
		}
		lsmt.SetTags(l.Segments, uint8(tag))
		lists[i], files[tag] = l.Segments, o.sources[i]
	}
	segs, err = lsmt.Merge(lists)
	return segs, files, err
}
