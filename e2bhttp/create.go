package e2bhttp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// source is what a create request asks to start from, with what is needed to explain that it is not there.
type source struct {
	volume.Source
	kind string // kindVolume or kindSnapshot; empty for an empty file system and an image
	ref  string
}

// create serves POST /volumes.
func (c *call) create() error {
	f, err := c.fields(false)
	if err != nil {
		return err
	}
	o, from, err := c.createOptions(f)
	if err != nil {
		return err
	}
	size := o.Size
	if size == 0 {
		size = volume.DefaultSize
	}
	if from.kind != "" && (o.Size != 0 || c.h.limits != nil) {
		if size, err = c.sourceSize(from); err != nil {
			return err
		}
		if o.Size != 0 && o.Size < size {
			return bad(wire.InvalidSize, "sizeMB: %d is less than the source's %d", o.Size/volume.MiB, size/volume.MiB)
		}
		size = max(size, o.Size)
	}
	leave, err := c.admit(o.Token, size, o.Name)
	if err != nil {
		return err
	}
	defer leave()
	v, err := c.volumes.Create(c.r.Context(), o)
	if err != nil {
		return from.explain(taken(err, o.Name))
	}
	return c.replyVolume(http.StatusCreated, v)
}

// createOptions decodes the body of POST /volumes.
func (c *call) createOptions(f *fields) (o volume.CreateOptions, from source, err error) {
	o.Name = f.name(true)
	o.Mode = f.mode()
	o.Size = f.whole("sizeMB", wire.InvalidSize, volume.MinSize/volume.MiB, volume.MaxSize/volume.MiB) * volume.MiB
	o.Labels = f.texts("labels")
	o.Flush = f.flag("flush")
	if f.fault != nil {
		return o, from, f.fault
	}
	if o.Token, err = c.token(); err != nil {
		return o, from, err
	}
	if from, err = c.source(f); err != nil {
		return o, from, err
	}
	o.Source = from.Source
	return o, from, nil
}

// source decodes the member source: an object with exactly one of three members.
func (c *call) source(f *fields) (source, error) {
	object, ok := f.take("source")
	if !ok {
		return source{}, nil
	}
	members, err := parseFields("source", object)
	if err != nil {
		return source{}, err
	}
	var given []string
	refs := map[string]string{}
	for _, name := range []string{"volumeID", "snapshotID", "image"} {
		if ref, ok := members.text(name, ""); ok {
			given, refs[name] = append(given, name), ref
		}
	}
	if members.fault != nil {
		return source{}, members.fault
	}
	if len(given) != 1 || refs[given[0]] == "" {
		return source{}, bad("", "source: must have exactly one of volumeID, snapshotID and image, has %d", len(given))
	}
	return c.sourceOf(given[0], refs[given[0]])
}

func (c *call) sourceOf(member, ref string) (source, error) {
	switch member {
	case "volumeID":
		return source{volume.FromVolume(ref), kindVolume, ref}.check()
	case "snapshotID":
		return source{volume.FromCheckpoint(ref), kindSnapshot, ref}.check()
	}
	if c.h.images == nil {
		return source{}, unsupported("source.image: this host does not import images")
	}
	from, err := c.h.images(ref)
	return source{Source: from}, err
}

// check refuses ids that no volume has before they reach a key.
func (s source) check() (source, error) {
	if !wellFormed(s.ref) {
		return s, missing(s.kind, s.ref)
	}
	return s, nil
}

// explain says which source is missing.
func (s source) explain(err error) error {
	if s.kind != "" && errors.Is(err, volume.ErrNotFound) {
		return missing(s.kind, s.ref)
	}
	return err
}

// sourceSize is the size that a copy has unless a larger one is asked for.
func (c *call) sourceSize(from source) (int64, error) {
	if from.kind == kindVolume {
		v, err := c.volumes.Get(c.r.Context(), from.ref)
		return v.Size, lookup(err, kindVolume, from.ref)
	}
	k, err := c.checkpoint(from.ref)
	return k.Size, err
}

// namePattern is E2B's; Go's $ does not match before a final newline.
var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// maxName is the longest name that a repository takes.
const maxName = 128

// name returns the name that a new volume is to have.
func (f *fields) name(required bool) string {
	name, given := f.text("name", wire.InvalidName)
	if !given && !required {
		return ""
	}
	if err := checkName(name); err != nil {
		f.fail(wire.InvalidName, "%s", err)
	}
	return name
}

func checkName(name string) error {
	if !namePattern.MatchString(name) || len(name) > maxName {
		return fmt.Errorf("name %.140q: must be 1 to %d characters of A-Z a-z 0-9 _ -", name, maxName)
	}
	// A name that reads as an id could hide the volume that has the id.
	if _, err := uuid.Parse(name); err == nil {
		return fmt.Errorf("name %q: must not be a UUID, volume ids are", name)
	}
	return nil
}

// mode returns the mode asked for. There is no shared-write, and nothing is silently turned into something else.
func (f *fields) mode() volume.Mode {
	text, given := f.text("mode", wire.UnsupportedMode)
	mode := volume.Mode(text)
	if given && mode != volume.Exclusive && mode != volume.ReadOnly {
		f.fail(wire.UnsupportedMode, "mode %.40q: modes are %q (default) and %q", text, volume.Exclusive, volume.ReadOnly)
	}
	return mode
}

// idempotencyHeader makes a repeated request return what the first one made.
const idempotencyHeader = "Idempotency-Key"

// maxIdempotencyKey is the longest key, in bytes.
const maxIdempotencyKey = 255

// token returns the client token for a request's idempotency key: keys are free text, tokens are not.
func (c *call) token() (string, error) {
	keys := c.r.Header.Values(idempotencyHeader)
	switch {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1 || keys[0] == "" || len(keys[0]) > maxIdempotencyKey:
		return "", bad("", "%s: one header of 1 to %d bytes wanted", idempotencyHeader, maxIdempotencyKey)
	}
	sum := sha256.Sum256([]byte(keys[0]))
	return hex.EncodeToString(sum[:]), nil
}

// get serves GET /volumes/{volumeID}.
func (c *call) get() error {
	v, err := c.volume(c.r.Context())
	if err != nil {
		return err
	}
	return c.replyVolume(http.StatusOK, v)
}

// volume reads the volume in the path.
func (c *call) volume(ctx context.Context) (volume.Volume, error) {
	if !wellFormed(c.id) {
		return volume.Volume{}, missing(kindVolume, c.id)
	}
	v, err := c.volumes.Get(ctx, c.id)
	return v, lookup(err, kindVolume, c.id)
}

// delete serves DELETE /volumes/{volumeID}.
func (c *call) delete() error {
	if !wellFormed(c.id) {
		return missing(kindVolume, c.id)
	}
	if err := c.volumes.Delete(c.r.Context(), c.id); err != nil {
		return lookup(err, kindVolume, c.id)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
