package e2bhttp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// Limits of a batch of forks.
const (
	maxForks    = 100
	forksAtOnce = 8
	forkMark    = "-fork-"
	restoreMark = "-restore-"
)

// fork serves POST /volumes/{volumeID}/fork: several children, each of which is made or not. An answer other than 201 means
// that none was made.
func (c *call) fork() error {
	forker, err := can[Forker](c.volumes, "fork")
	if err != nil {
		return err
	}
	f, err := c.fields(true)
	if err != nil {
		return err
	}
	o := volume.ForkOptions{Name: f.name(false), Mode: f.mode(), Flush: f.flag("flush")}
	count := max(1, int(f.whole("count", "", 1, maxForks)))
	if f.fault != nil {
		return f.fault
	}
	if o.Token, err = c.token(); err != nil {
		return err
	}
	v, err := c.forkable(c.r.Context())
	if err != nil {
		return err
	}
	names, err := c.forkNames(v, o, count)
	if err != nil {
		return err
	}
	leave, err := c.admit(o.Token, v.Size, names...)
	if err != nil {
		return err
	}
	defer leave()
	results, err := c.forkAll(forker, v.ID, names, o)
	if err != nil {
		return err
	}
	writeJSON(c.w, http.StatusCreated, results)
	return nil
}

// forkable reads the volume in the path and refuses one that has no content to copy.
func (c *call) forkable(ctx context.Context) (volume.Volume, error) {
	v, err := c.volume(ctx)
	if err == nil && v.Status != volume.StatusReady && v.Status != volume.StatusDeleting {
		err = &volume.StatusError{Kind: kindVolume, ID: v.ID, Status: v.Status, Op: "fork"}
	}
	return v, err
}

// forkNames gives each child its name, and refuses the whole batch if one is taken. A repeated request finds its own
// children there: then the token decides.
func (c *call) forkNames(v volume.Volume, o volume.ForkOptions, count int) ([]string, error) {
	names := make([]string, count)
	for i := range names {
		switch {
		case o.Name == "":
			names[i] = madeUp(v, forkMark, o.Token, i)
		case count == 1:
			names[i] = o.Name
		default:
			names[i] = fmt.Sprintf("%s-%d", o.Name, i+1)
		}
		if err := checkName(names[i]); err != nil {
			return nil, bad(wire.InvalidName, "%s", err)
		}
		if o.Name == "" || o.Token != "" {
			continue
		}
		_, err := c.volumes.Get(c.r.Context(), names[i])
		if err == nil {
			return nil, taken(volume.ErrExists, names[i])
		}
		if !errors.Is(err, volume.ErrNotFound) {
			return nil, err
		}
	}
	return names, nil
}

// madeUp is a name that nobody asked for: random, or the same each time a request is repeated.
func madeUp(v volume.Volume, infix, token string, i int) string {
	random := make([]byte, 4)
	suffix := ""
	if token == "" {
		_, _ = rand.Read(random) // never fails
		suffix = hex.EncodeToString(random)
	} else {
		at := 8 * (i % (len(token) / 8))
		suffix = token[at : at+8]
		if i >= len(token)/8 {
			suffix = fmt.Sprintf("%s-%d", suffix, i)
		}
	}
	// A volume over PersistentVolumes may be called what a new one may not.
	source := strings.Map(func(r rune) rune {
		if namePattern.MatchString(string(r)) {
			return r
		}
		return '-'
	}, nameOf(v))
	return source[:min(len(source), maxName-len(infix)-16)] + infix + suffix
}

// forkAll makes the children. The first is made alone, and flushes the source if that was asked for; the others then copy
// what is published.
func (c *call) forkAll(forker Forker, id string, names []string, o volume.ForkOptions) ([]wire.ForkResult, error) {
	errs := make([]error, len(names))
	children := make([]volume.Volume, len(names))
	one := func(i int, o volume.ForkOptions) {
		o.Name = names[i]
		var err error
		children[i], err = forker.Fork(c.r.Context(), id, o)
		errs[i] = gone(taken(err, o.Name), kindVolume, c.id)
	}
	one(0, o)
	if errs[0] != nil && (len(names) == 1 || o.Flush) {
		return nil, errs[0]
	}
	o.Flush = false
	var g errgroup.Group
	g.SetLimit(forksAtOnce)
	for i := 1; i < len(names); i++ {
		g.Go(func() error { one(i, o); return nil })
	}
	_ = g.Wait() // each child has its own error
	results := make([]wire.ForkResult, len(names))
	made := 0
	for i := range results {
		if errs[i] != nil {
			body := explain(errs[i]).body()
			results[i].Error = &body
			continue
		}
		child := c.withToken(children[i])
		results[i].Volume = &child
		made++
	}
	if made == 0 {
		return nil, errs[0]
	}
	return results, nil
}

// restore serves POST /volumes/{volumeID}/restore: a new volume from one of the volume's snapshots.
func (c *call) restore() error {
	restorer, err := can[Restorer](c.volumes, "restore")
	if err != nil {
		return err
	}
	f, err := c.fields(false)
	if err != nil {
		return err
	}
	snapshot, given := f.text("snapshotID", "")
	o := volume.ForkOptions{Name: f.name(false), Mode: f.mode()}
	if !given {
		f.fail("", "snapshotID: is missing")
	}
	if f.fault != nil {
		return f.fault
	}
	if o.Token, err = c.token(); err != nil {
		return err
	}
	v, err := c.volume(c.r.Context())
	if err != nil {
		return err
	}
	k, err := c.checkpoint(snapshot)
	if err != nil {
		return err
	}
	if k.Volume != v.ID {
		return missing(kindSnapshot, snapshot)
	}
	if o.Name == "" {
		o.Name = madeUp(v, restoreMark, o.Token, 0)
	}
	leave, err := c.admit(o.Token, k.Size, o.Name)
	if err != nil {
		return err
	}
	defer leave()
	made, err := restorer.Restore(c.r.Context(), k.ID, o)
	if err != nil {
		return gone(taken(err, o.Name), kindSnapshot, snapshot)
	}
	return c.replyVolume(http.StatusCreated, made)
}
