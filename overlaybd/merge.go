package overlaybd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// MergedLayer is one layer of a MergedRun. Uuids are canonical lower-case text, the null uuid if there is none.
type MergedLayer struct {
	UUID, ParentUUID string
	Segments         int
}

// MergedRun is what MergeParts made of a run of layers.
type MergedRun struct {
	Layers []MergedLayer // bottom first; no two map the same sector
	// Content is "sha256:" and 64 hex digits over which sectors the run maps to data and to zeroes, and over the
	// data. Lists of layers that show the same from above have the same.
	Content string
}

// Merge writes a run of layers, bottom first, as one canonical layer to w: what is visible of them from above, zeroes
// included, because they hide what is below the run. The result has the uuid of the run's topmost layer, which it
// returns, and the parent of its lowest, so that it takes the run's place in a stack. The same layers give the same
// bytes.
//
// A run whose result would have more segments than a layer may is ErrInvalid, before anything is written; see
// MergeParts.
func (e *Engine) Merge(ctx context.Context, run []Layer, w io.Writer) (uuid string, err error) {
	r, err := e.mergeRun(ctx, run, 1, func(int) (io.Writer, error) { return w, nil })
	if err != nil {
		return "", err
	}
	return r.Layers[0].UUID, nil
}

// MergeParts is Merge for runs whose result may have more segments than one layer may: it becomes several, split by
// address. The topmost has the uuid of the run's topmost layer and the lowest the parent of its lowest; the uuids
// between follow from what is merged. create returns what layer number part, from the bottom, is written to; the next
// is asked for when that one is complete.
func (e *Engine) MergeParts(
	ctx context.Context, run []Layer, create func(part int) (io.Writer, error),
) (MergedRun, error) {
	return e.mergeRun(ctx, run, len(run), create)
}

func (e *Engine) mergeRun(
	ctx context.Context, run []Layer, most int, create func(int) (io.Writer, error),
) (r MergedRun, err error) {
	defer func() {
		if err != nil {
			if ctx.Err() != nil { // whatever it was that noticed
				err = ctx.Err()
			}
			r, err = MergedRun{}, fmt.Errorf("overlaybd: merge %d layers: %w", len(run), err)
		}
	}()
	if len(run) < 2 || len(run) > lsmt.MaxLowers {
		return r, lsmt.Invalid("run", fmt.Sprintf("of %d layers", len(run)), fmt.Sprintf("2 to %d", lsmt.MaxLowers))
	}
	s, err := e.openLayers(ctx, run)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	parts := lsmt.SplitForCompact(s.index.Segments(), e.splitAt)
	if len(parts) > most {
		return r, lsmt.Invalid("run", fmt.Sprintf("whose merge makes %d layers", len(parts)),
			fmt.Sprintf("one that makes at most %d", most))
	}
	content := newContentDigest(s.index.Segments())
	layers, heads := s.mergedLayers(parts, content.Sum(nil))
	for i, part := range parts {
		w, err := create(i)
		if err != nil {
			return r, err
		}
		out := &mergeOutput{w: w, content: content, skip: lsmt.HeaderSize, data: dataBytes(part), pace: e.pace(ctx)}
		if err := lsmt.Compact(ctx, out, part, s.files(), heads[i]); err != nil {
			return r, err
		}
	}
	return MergedRun{Layers: layers, Content: digestText(content)}, nil
}

// openLayers opens published layers, bottom first; reads end with ctx.
func (e *Engine) openLayers(ctx context.Context, layers []Layer) (*sealedStack, error) {
	ids, err := layerUUIDs(Stack{Layers: layers})
	if err != nil {
		return nil, err
	}
	open := make([]opener, len(layers))
	for i, l := range layers {
		if err := checkCodec(fmt.Sprintf("codec of layer %d", i), l.Codec); err != nil {
			return nil, err
		}
		open[i] = e.openPublished(l)
	}
	s, err := e.openSealed(ctx, open, ids)
	if err != nil {
		return nil, err
	}
	for _, ls := range s.sources {
		ls.watch(ctx.Done(), context.Canceled)
	}
	return s, nil
}

// mergedLayers names the layers that the parts of a merged run become.
func (s *sealedStack) mergedLayers(parts [][]lsmt.Segment, mapping []byte) ([]MergedLayer, []lsmt.CompactOptions) {
	layers, heads := make([]MergedLayer, len(parts)), make([]lsmt.CompactOptions, len(parts))
	top, parent := s.layers[len(s.layers)-1].uuid, s.layers[0].parent
	for i, part := range parts {
		id := top
		if i < len(parts)-1 {
			// The same run gives the same layers each time; another run of the same top gives others.
			id = uuid.NewSHA1(top, binary.BigEndian.AppendUint32(mapping[:len(mapping):len(mapping)], uint32(i)))
		}
		heads[i] = lsmt.CompactOptions{VirtualSize: s.virtualSize(), UUID: id, Parent: parent}
		layers[i] = MergedLayer{UUID: id.String(), ParentUUID: parent.String(), Segments: len(part)}
		parent = id
	}
	return layers, heads
}

// virtualSize is that of the topmost layer that has one: 0 stands for that of the layer below.
func (s *sealedStack) virtualSize() int64 {
	for i := len(s.layers) - 1; i >= 0; i-- {
		if n := s.layers[i].virtualSize; n > 0 {
			return n
		}
	}
	return 0
}

// newContentDigest begins the digest of MergedRun.Content: the mapping; the data follows in order of addresses.
func newContentDigest(segs []lsmt.Segment) hash.Hash {
	h := sha256.New()
	var b [17]byte
	_ = lsmt.Runs(segs, func(lba, n uint64, zeroed bool) error { // a hash returns no errors
		binary.LittleEndian.PutUint64(b[:], lba)
		binary.LittleEndian.PutUint64(b[8:], n)
		b[16] = 0
		if zeroed {
			b[16] = 1
		}
		h.Write(b[:])
		return nil
	})
	return h
}

func digestText(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

func dataBytes(segs []lsmt.Segment) (n int64) {
	for _, s := range segs {
		if !s.Zeroed() {
			n += int64(s.Len()) * SectorSize
		}
	}
	return n
}

// mergeOutput passes a compacted layer on, at its pace, and adds the data in it, which follows the header in order of
// addresses, to the content digest.
type mergeOutput struct {
	w          io.Writer
	content    io.Writer
	skip, data int64 // bytes of header and of data that are still to come
	pace       func(int) error
}

func (m *mergeOutput) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	if err != nil {
		return n, err
	}
	body := p[min(m.skip, int64(len(p))):]
	m.skip -= int64(len(p) - len(body))
	body = body[:min(m.data, int64(len(body)))]
	m.data -= int64(len(body))
	_, _ = m.content.Write(body) // a hash returns no errors
	return n, m.pace(len(p))
}

// pace returns a function that keeps the bytes it is told of below the engine's rate: it returns when n more may have
// passed, or with the error of the context.
func (e *Engine) pace(ctx context.Context) func(n int) error {
	start, bytes := time.Now(), int64(0)
	return func(n int) error {
		bytes += int64(n)
		if e.mergeRate <= 0 {
			return ctx.Err()
		}
		early := time.Duration(float64(bytes)/float64(e.mergeRate)*float64(time.Second)) - time.Since(start)
		if early <= 0 {
			return ctx.Err()
		}
		t := time.NewTimer(early)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
