package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandvol/sandvol/overlaybd"
)

// verdict is what verify says of one layer.
type verdict struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	overlaybd.Verified
	Damage []overlaybd.Damage `json:"damage,omitempty"`
}

func verify(c *call, args []string) error {
	stack := c.stackFlags()
	digest := c.flags.String("digest", "", "sha256:... that the stored bytes of the one layer must have")
	args, err := c.parse(args, 0, -1)
	if err != nil {
		return err
	}
	layers, err := stack.layers(args)
	if err != nil {
		return err
	}
	if *digest != "" && len(layers) != 1 {
		return usage("-digest is for one layer")
	}
	var all []verdict
	var bad error
	for _, l := range layers {
		v, err := c.verifyOne(l, *digest)
		if err != nil && !errors.Is(err, overlaybd.ErrCorrupt) {
			return err
		}
		bad = errors.Join(bad, err)
		all = append(all, v)
	}
	if err := c.print(all, func(w io.Writer) { verdictText(w, all, *digest != "") }); err != nil {
		return err
	}
	return bad
}

func (c *call) verifyOne(l layerArg, digest string) (verdict, error) {
	open := func(context.Context, overlaybd.Layer) (overlaybd.Source, error) { return l.open() }
	layer := overlaybd.Layer{Key: l.name, Digest: digest}
	if l.path != "" {
		// All of the file, not only the stream in it.
		open = func(context.Context, overlaybd.Layer) (overlaybd.Source, error) { return overlaybd.OpenFile(l.path) }
		layer.Codec = overlaybd.CodecAuto
	}
	e, err := overlaybd.New(overlaybd.Config{Open: open})
	if err != nil {
		return verdict{}, err
	}
	progress, end := c.progress(l.name)
	v, err := e.Verify(c.ctx, layer, progress)
	end()
	if why := l.explain(err); why != err {
		return verdict{}, why
	}
	out := verdict{Name: l.name, OK: err == nil, Verified: v}
	if d, ok := errors.AsType[*overlaybd.DamageError](err); ok {
		out.Damage = d.Damage
	}
	return out, err
}

// progress returns what shows how far a verification is, on a terminal, and what takes that away.
func (c *call) progress(name string) (show func(done, total int64), end func()) {
	if _, terminal := width(c.stderr); !terminal {
		return nil, func() {}
	}
	last := int64(-1)
	show = func(done, total int64) {
		if percent := done * 100 / total; percent != last {
			last = percent
			fmt.Fprintf(c.stderr, "\r%s: %d %%\x1b[K", name, percent)
		}
	}
	return show, func() { fmt.Fprint(c.stderr, "\r\x1b[K") }
}

func verdictText(w io.Writer, all []verdict, compared bool) {
	for _, v := range all {
		for _, d := range v.Damage {
			fmt.Fprintf(w, "%s: %s\n", v.Name, d)
		}
		if !v.OK {
			continue
		}
		var how string
		switch {
		case compared:
			how = "the digest is right"
		case v.Checksums:
			how = fmt.Sprintf("%d blocks with their checksums", v.Blocks)
		default:
			// Nobody can tell whether data is what it was.
			how = "no checksums: compare " + v.Digest
		}
		fmt.Fprintf(w, "%s: ok, %d segments, %s\n", v.Name, v.Segments, how)
	}
}
