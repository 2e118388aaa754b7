package overlaybd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
	"github.com/sandvol/sandvol/overlaybd/tarlayer"
	"github.com/sandvol/sandvol/overlaybd/zfile"
)

// Damage is one thing that is wrong with a layer.
type Damage struct {
	Part string `json:"part"` // digest, size, tar envelope, header, block, index, trailer
	// Offset is the first suspect byte, in the stored bytes or, if Decoded, in the content of the ZFile.
	Offset  int64  `json:"offset"`
	Length  int64  `json:"length,omitzero"` // bytes; 0: unknown
	Decoded bool   `json:"decoded,omitzero"`
	Detail  string `json:"detail"`
}

// String is part, place and detail.
func (d Damage) String() string {
	in := ""
	if d.Decoded {
		in = " of the content"
	}
	return fmt.Sprintf("%s at byte %d%s: %s", d.Part, d.Offset, in, d.Detail)
}

// DamageError is all that Verify found wrong with a layer. It is an ErrCorrupt.
type DamageError struct {
	Layer  string // uuid or, without one, key
	Damage []Damage
}

func (e *DamageError) Error() string {
	first, more := "unknown", ""
	if len(e.Damage) > 0 {
		first = e.Damage[0].String()
	}
	if n := len(e.Damage) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("layer %s is corrupt: %s%s", e.Layer, first, more)
}

// Is makes a DamageError an ErrCorrupt.
func (e *DamageError) Is(target error) bool { return target == ErrCorrupt }

// Verified says what Verify looked at.
type Verified struct {
	Codec     string `json:"codec"`  // as it was read; never CodecAuto
	Stored    int64  `json:"stored"` // bytes
	Digest    string `json:"digest,omitzero"`
	Blocks    int64  `json:"blocks,omitzero"`    // of the ZFile
	Checksums bool   `json:"checksums,omitzero"` // each block has one
	Segments  int    `json:"segments"`
}

// Verify reads layer l whole and returns a DamageError that names all that is wrong with it, as far as reading can go
// on: size, digest and uuid as l has them, where it has them; the tar envelope; header, trailer, index and every block
// of the ZFile; header, trailer and index of the LSMT stream. Without a digest, and without checksums of blocks, damage
// in data cannot be found: Verified says what there was. Any other error means that the layer could not be read.
//
// A Source with a method Verify(context.Context) error is asked too, as one of package turbo is.
//
// progress, if not nil, is called with the number of bytes read and to be read; with a digest and a ZFile the stored
// bytes are read twice.
func (e *Engine) Verify(ctx context.Context, l Layer, progress func(done, total int64)) (v Verified, err error) {
	defer func() {
		if err != nil && !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("overlaybd: verify layer %s: %w", layerName(l), err)
		}
	}()
	if err := checkCodec("codec", l.Codec); err != nil {
		return v, err
	}
	want, err := layerUUID(l)
	if err != nil {
		return v, err
	}
	src, err := e.cfg.Open(ctx, l)
	if err != nil {
		return v, err
	}
	stored := newLayerSource(src, layerName(l), e.readTimeout)
	stored.watch(ctx.Done(), context.Canceled)
	w := &verification{stored: &meter{r: stored, progress: progress}, size: src.Size(), layer: l, want: want}
	err = w.run(ctx)
	if own, ok := src.(interface{ Verify(context.Context) error }); ok && err == nil {
		err = w.note(own.Verify(ctx), 0, false)
	}
	err = errors.Join(err, stored.Close())
	if cause := context.Cause(ctx); cause != nil {
		return w.Verified, cause
	}
	if err == nil && len(w.damage) > 0 {
		err = &DamageError{layerName(l), w.damage}
	}
	return w.Verified, err
}

func layerName(l Layer) string {
	if l.UUID != "" {
		return l.UUID
	}
	return l.Key
}

// verification is one run of Verify. Its steps return an error only if the layer could not be read, and note damage.
type verification struct {
	Verified
	stored *meter
	size   int64
	layer  Layer
	want   uuid.UUID
	damage []Damage
}

func (v *verification) run(ctx context.Context) error {
	v.Stored = v.size
	if want := v.layer.Size; want != 0 && want != v.size {
		v.found(Damage{Part: "size", Detail: fmt.Sprintf("%d bytes, %d are recorded", v.size, want)})
	}
	codec := v.layer.Codec
	if codec == CodecAuto {
		var err error
		if codec, err = Detect(v.stored, v.size); err != nil {
			return v.note(err, 0, false)
		}
	}
	v.Codec = codec
	compressed := codec == CodecZFile || codec == CodecTarZFile
	v.stored.total = v.size
	if compressed && v.layer.Digest != "" {
		v.stored.total += v.size
	}
	if v.layer.Digest != "" || !compressed {
		if err := v.checkDigest(ctx); err != nil {
			return err
		}
	}
	inner, at := io.NewSectionReader(v.stored, 0, v.size), int64(0)
	if codec == CodecTar || codec == CodecTarZFile {
		p, err := tarlayer.Open(v.stored, v.size)
		if err != nil {
			return v.note(err, 0, false)
		}
		inner, at = io.NewSectionReader(v.stored, p.Offset, p.Size), p.Offset
	}
	if compressed {
		return v.checkZFile(ctx, inner, at)
	}
	return v.checkLayer(inner, at, false)
}

func (v *verification) found(d Damage) { v.damage = append(v.damage, d) }

// checkDigest reads all stored bytes, so that a medium which has lost some is found even without a digest.
func (v *verification) checkDigest(ctx context.Context) error {
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for off := int64(0); off < v.size; off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		buf = buf[:min(int64(len(buf)), v.size-off)]
		if _, err := v.stored.ReadAt(buf, off); err != nil {
			return v.note(err, 0, false)
		}
		h.Write(buf)
	}
	v.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	if want := v.layer.Digest; want != "" && want != v.Digest {
		v.found(Damage{Part: "digest", Length: v.size, Detail: fmt.Sprintf("%s, %s is recorded", v.Digest, want)})
	}
	return nil
}

func (v *verification) checkZFile(ctx context.Context, inner *io.SectionReader, at int64) error {
	z, err := zfile.Open(inner, inner.Size())
	if err != nil {
		return v.note(zfileError(err), at, false)
	}
	info := z.Info()
	v.Blocks, v.Checksums = info.Blocks, info.Checksums
	if err := v.note(zfileError(z.Verify(ctx)), at, false); err != nil {
		return err
	}
	// A damaged block can hold the index: then this finds nothing that is not known.
	return v.checkLayer(z, 0, true)
}

// checkLayer checks the LSMT stream.
func (v *verification) checkLayer(s stream, at int64, decoded bool) error {
	l, err := lsmt.OpenLayer(s, s.Size())
	if err != nil {
		return v.note(zfileError(err), at, decoded)
	}
	v.Segments = len(l.Segments)
	if v.want != uuid.Nil && l.UUID != v.want {
		v.found(Damage{Part: "trailer", Offset: at + s.Size() - lsmt.HeaderSize, Length: lsmt.HeaderSize, Decoded: decoded,
			Detail: fmt.Sprintf("uuid %s, %s is recorded", l.UUID, v.want)})
	}
	head, err := lsmt.ReadHeader(s)
	if err != nil {
		return v.note(err, at, decoded)
	}
	if head.UUID != l.UUID || head.Parent != l.Parent {
		v.found(Damage{Part: "header", Offset: at, Length: lsmt.HeaderSize, Decoded: decoded,
			Detail: fmt.Sprintf("uuid %s below %s, but the trailer has %s below %s", head.UUID, head.Parent, l.UUID, l.Parent)})
	}
	return nil
}

// note adds what err says about the bytes to the damage. What says something else comes back.
func (v *verification) note(err error, at int64, decoded bool) error {
	if err == nil {
		return nil
	}
	for _, e := range leaves(err) {
		var z *zfile.CorruptError
		var l *lsmt.CorruptError
		d := Damage{Decoded: decoded, Offset: at, Detail: strings.TrimSpace(e.Error())}
		switch {
		case errors.As(e, &z):
			if decoded && len(v.damage) > 0 { // reached through a block that is in the list already
				continue
			}
			d.Part, d.Offset, d.Length, d.Decoded, d.Detail = string(z.Part), at+z.Offset, z.Length, false, z.Detail
			if z.Part == zfile.PartBlock {
				d.Part = fmt.Sprintf("block %d", z.Block)
			}
		case errors.As(e, &l):
			d.Part, d.Offset, d.Detail = l.Part, at+l.Offset, l.Detail
		case errors.Is(e, ErrCorrupt), errors.Is(e, zfile.ErrCorrupt), errors.Is(e, zfile.ErrNotZFile):
			d.Part = "layer"
		default:
			return err
		}
		v.found(d)
	}
	return nil
}

// leaves returns the errors that were joined to err, or err.
func leaves(err error) (all []error) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				if one != ErrCorrupt { // the class that zfileError adds
					all = append(all, leaves(one)...)
				}
			}
			return all
		}
	}
	return []error{err}
}

// meter counts what is read.
type meter struct {
	r        io.ReaderAt
	progress func(done, total int64)
	done     int64
	total    int64
}

func (m *meter) ReadAt(p []byte, off int64) (int, error) {
	n, err := m.r.ReadAt(p, off)
	m.done += int64(n)
	// Headers are read more than once, which is no reason to promise more than all.
	if m.progress != nil && m.total > 0 {
		m.progress(min(m.done, m.total), m.total)
	}
	return n, err
}
