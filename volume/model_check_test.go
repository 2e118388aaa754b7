package volume_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// inspector reads a store as it is, past everything that is tested, and checks the invariants that hold whatever
// happened. Keys are never written twice, so what it has read of one stays true.
type inspector struct {
	t      failer
	raw    store.Store
	engine *overlaybd.Engine

	gens     map[string]genlog.Generation[record.Volume] // by key
	newest   map[string]uint64                           // by prefix
	checked  map[string]bool                             // keys whose bytes have the recorded digest
	contents map[string]content                          // by the keys of a stack
	layers   map[string]int64                            // what the store holds now
}

func newInspector(t failer, raw store.Store) *inspector {
	i := &inspector{t: t, raw: raw, gens: map[string]genlog.Generation[record.Volume]{}, newest: map[string]uint64{},
		checked: map[string]bool{}, contents: map[string]content{}}
	var err error
	open := func(ctx context.Context, l overlaybd.Layer) (overlaybd.Source, error) {
		body, err := readBlob(ctx, raw, l.Key, l.Size)
		return memSource{strings.NewReader(string(body))}, err
	}
	i.engine, err = overlaybd.New(overlaybd.Config{Open: open})
	if err != nil {
		t.Fatalf("engine: %v", err)
	}
	return i
}

type memSource struct{ *strings.Reader }

func (memSource) Close() error { return nil }

func readBlob(ctx context.Context, st store.Store, key string, size int64) ([]byte, error) {
	b, err := st.OpenBlob(ctx, key)
	if err != nil {
		return nil, err
	}
	body := make([]byte, size)
	_, err = b.ReadRange(ctx, body, 0)
	return body, errors.Join(err, b.Close())
}

// volumeState is what the model knows about a volume, and what a record says about it.
type volumeState struct {
	Tenant, Name string
	Mode         volume.Mode
	Status       volume.Status
	Owner, Node  string // of the holder; empty when free
	Phase        reservation.Phase
	Epoch        uint64
	Size         int64
	Label        string
	Content      content
}

// checkpointState is the same for a checkpoint.
type checkpointState struct {
	Tenant, Volume string
	Size           int64
	Content        content
}

// seen is the whole store at one moment.
type seen struct {
	volumes     map[string]volumeState // ready and deleting ones
	records     map[string]record.Volume
	checkpoints map[string]checkpointState
	pins        map[heldPin]bool
	garbage     []string // layers that nothing refers to
}

// heldPin is one grant of a read-only mount, as its key names it.
type heldPin struct{ volume, sandbox, nonce string }

// look reads everything and checks I1, I2, I4, I5 and I8 on the way.
func (i *inspector) look(ctx context.Context) seen {
	i.t.Helper()
	s := seen{volumes: map[string]volumeState{}, records: map[string]record.Volume{},
		checkpoints: map[string]checkpointState{}, pins: map[heldPin]bool{}}
	i.layers = map[string]int64{}
	for _, e := range i.list("v1/layers/") {
		i.layers[e.Key] = e.Size
	}
	referred := map[string]bool{}
	for _, prefix := range i.logs("v1/volumes/") {
		r := i.volumeLog(ctx, prefix)
		for key := range r.References() {
			referred[key] = true
		}
		s.records[r.ID] = r
		for _, f := range r.Fenced { // I7: what was fenced can be kept until it is settled, whatever has become of the volume
			i.stack(ctx, "volume "+r.ID+" as of a fenced epoch", f.Stack)
		}
		if r.Status != record.StatusReady && r.Status != record.StatusDeleting {
			continue
		}
		c := i.stack(ctx, "volume "+r.ID, r.Stack)
		if r.Tenant != record.ReservedTenant {
			s.volumes[r.ID] = stateOf(r, c)
		}
	}
	for _, prefix := range i.logs("v1/checkpoints/") {
		i.checkpoint(ctx, prefix, &s, referred)
	}
	for _, e := range i.list("v1/pins/") {
		part := strings.Split(e.Key, "/")
		s.pins[heldPin{part[2], part[3], part[4]}] = true
	}
	for key := range i.layers {
		if !referred[key] {
			s.garbage = append(s.garbage, key)
		}
	}
	i.names(ctx, s)
	return s
}

func stateOf(r record.Volume, c content) volumeState {
	v := volumeState{Tenant: r.Tenant, Name: r.Name, Mode: r.Mode, Status: r.Status, Phase: r.Reservation.Phase,
		Epoch: r.Reservation.Epoch, Size: r.Stack.VirtualSize, Label: r.Labels["n"], Content: c}
	if g, held := r.Reservation.Holder(); held {
		v.Owner, v.Node = g.Owner, g.Node
	}
	return v
}

func (i *inspector) list(prefix string) []store.Entry {
	i.t.Helper()
	all, err := storetest.Collect(i.raw.List(context.Background(), prefix, "", 0))
	if err != nil {
		i.t.Fatalf("list %s: %v", prefix, err)
	}
	return all
}

// logs returns the prefixes of the logs below one, in order.
func (i *inspector) logs(prefix string) []string {
	var out []string
	for _, e := range i.list(prefix) {
		if p, _, _ := genlog.ParseKey(e.Key); len(out) == 0 || out[len(out)-1] != p {
			out = append(out, p)
		}
	}
	return out
}

// volumeLog checks one log and returns its newest state. I2: generations are contiguous, nonces chain, the newest is
// never taken away.
func (i *inspector) volumeLog(ctx context.Context, prefix string) record.Volume {
	i.t.Helper()
	log := genlog.New[record.Volume](i.raw, prefix)
	var later *genlog.Generation[record.Volume]
	var newest record.Volume
	for _, e := range i.list(prefix) { // newest first
		_, n, _ := genlog.ParseKey(e.Key)
		g, known := i.gens[e.Key]
		if !known {
			var err error
			if g, err = log.Read(ctx, n); err != nil {
				i.t.Fatalf("%s: %v", e.Key, err)
			}
			i.gens[e.Key] = g
		}
		if later == nil {
			newest = g.State
			if n < i.newest[prefix] {
				i.t.Fatalf("I2: %s: generation %d was there, and now the newest is %d", prefix, i.newest[prefix], n)
			}
			i.newest[prefix] = n
		} else {
			if later.Number != n+1 || later.Previous != g.Nonce {
				i.t.Fatalf("I2: %s: generation %d does not continue %d", prefix, later.Number, n)
			}
			if broken := checkChange(g.State, later.State, later.Op); broken != "" {
				i.t.Fatalf("%s: generation %d (%s): %s\nbefore %+v\nafter  %+v", prefix, later.Number, later.Op, broken,
					g.State, later.State)
			}
		}
		later = &g
	}
	return newest
}

// checkChange says which invariant the step from one generation to the next breaks.
func checkChange(a, b record.Volume, op string) string {
	ra, rb := a.Reservation, b.Reservation
	_, held := ra.Holder()
	raises := op == "acquire" || op == "carry-on" || op == "takeover"
	keys := func(s record.Stack) (out []string) {
		for _, l := range s.Layers {
			out = append(out, l.Key)
		}
		return out
	}
	ka, kb := keys(a.Stack), keys(b.Stack)
	switch {
	case a.Status == record.StatusDeleted && b.Status != record.StatusDeleted:
		return "a tombstone is final"
	case op == "settle" || a.Status == record.StatusUploading:
		return ""
	case raises && rb.Epoch != ra.Epoch+1, !raises && rb.Epoch != ra.Epoch:
		return "I2: the epoch rises by one with each acquire and stays otherwise"
	case raises && slices.ContainsFunc(b.Keys, func(k string) bool { return slices.Contains(a.Keys, k) }):
		return "I1: an upload key was carried over to another holder"
	case op == "acquire" && held && (ra.Phase != reservation.Paused || ra.Grant.Owner != rb.Grant.Owner):
		return "I1: acquired from somebody else"
	case !raises && ra.Grant.ID != rb.Grant.ID:
		return "I1: the grant changed without an acquire"
	case a.Mode == record.ReadOnly && !a.Stack.SameContent(b.Stack):
		return "I5: the stack of an ro volume changed"
	case op == "takeover" && ra.Phase != reservation.Paused && !keepsFenced(a, b):
		return "I7: the stack that was taken over is not kept"
	case op == "salvaged" || op == "discard-fenced" || op == "undone":
		return checkUnfenced(a, b)
	case len(b.Fenced) < len(a.Fenced):
		return "I7: a fenced stack was let go by " + op
	case op == "compact":
		return checkMerge(a, b, ka, kb, held)
	case len(kb) < len(ka) || !slices.Equal(kb[:len(ka)], ka):
		return "I3: the stack lost layers"
	case len(kb) > len(ka) && !held:
		return "I1: layers were published and nobody holds the volume"
	case op == "delete" && held:
		return "a held volume was deleted"
	}
	for _, k := range kb[len(ka):] {
		if !slices.Contains(a.Keys, k) {
			return "layer " + k + " was not declared"
		}
	}
	return ""
}

// keepsFenced reports whether a takeover has kept the stack that it found.
func keepsFenced(a, b record.Volume) bool {
	f, ok := b.FencedAt(a.Reservation.Epoch)
	return ok && f.Stack.SameContent(a.Stack)
}

// checkUnfenced is checkChange for the end of a fenced stack: its layers leave, and are still referred to.
func checkUnfenced(a, b record.Volume) string {
	for _, f := range a.Fenced {
		if _, still := b.FencedAt(f.Epoch); still {
			continue
		}
		for _, l := range f.Stack.Layers {
			if !slices.ContainsFunc(b.Leaving, func(o record.Left) bool { return o.Key == l.Key && o.Fenced == f.Epoch }) {
				return "I7: layer " + l.Key + " of a fenced stack went at once"
			}
		}
	}
	return ""
}

// checkMerge is checkChange for a compaction: one declared layer in the place of a run, which stays to be copied.
func checkMerge(a, b record.Volume, ka, kb []string, held bool) string {
	at := 0
	for at < len(kb) && ka[at] == kb[at] {
		at++
	}
	if !held || len(kb) != at+1 || !slices.Contains(a.Keys, kb[at]) {
		return "I1: layers were merged by somebody else, or in another place than the top"
	}
	for _, k := range ka[at:] {
		if !slices.ContainsFunc(b.Former, func(f record.Former) bool { return f.Key == k }) {
			return "I7: layer " + k + " was merged and nothing keeps it"
		}
	}
	return ""
}

func (i *inspector) checkpoint(ctx context.Context, prefix string, s *seen, referred map[string]bool) {
	i.t.Helper()
	g, err := genlog.New[record.Checkpoint](i.raw, prefix).Newest(ctx)
	if err != nil {
		i.t.Fatalf("%s: %v", prefix, err)
	}
	for key := range g.State.References() {
		referred[key] = true
	}
	if c := g.State; c.Status == record.StatusReady {
		s.checkpoints[c.ID] = checkpointState{Tenant: c.Tenant, Volume: c.Origin.Volume, Size: c.Stack.VirtualSize,
			Content: i.stack(ctx, "checkpoint "+c.ID, c.Stack)}
	}
}

// stack checks I4, that every layer is there with its size and digest, and returns what the stack holds.
func (i *inspector) stack(ctx context.Context, what string, s record.Stack) content {
	i.t.Helper()
	var id strings.Builder
	for _, l := range s.Layers {
		id.WriteString(l.Key)
		if size, ok := i.layers[l.Key]; !ok || size != l.Size {
			i.t.Fatalf("I4: %s: layer %s: there %t with %d bytes, recorded %d", what, l.Key, ok, size, l.Size)
		}
		if i.checked[l.Key] {
			continue
		}
		body, err := readBlob(ctx, i.raw, l.Key, l.Size)
		sum := sha256.Sum256(body)
		if got := "sha256:" + hex.EncodeToString(sum[:]); (err != nil && err != io.EOF) || got != l.Digest {
			i.t.Fatalf("I4: %s: layer %s has digest %s, recorded %s (%v)", what, l.Key, got, l.Digest, err)
		}
		i.checked[l.Key] = true
	}
	if c, ok := i.contents[id.String()]; ok {
		return c
	}
	dev, err := i.engine.OpenReadOnly(ctx, s.Value())
	if err != nil {
		i.t.Fatalf("open %s: %v", what, err)
	}
	c := contentOf(i.t, dev)
	if err := dev.Close(); err != nil {
		i.t.Fatalf("close %s: %v", what, err)
	}
	i.contents[id.String()] = c
	return c
}

// names checks I8: no two live volumes of a tenant have one name, and the name's log leads to the one that has it.
func (i *inspector) names(ctx context.Context, s seen) {
	i.t.Helper()
	has := map[string]string{}
	for id, r := range s.records {
		live := r.Status == record.StatusReady || r.Status == record.StatusDeleting
		if !live || r.Name == "" || r.Tenant == record.ReservedTenant {
			continue
		}
		key := "v1/names/" + r.Tenant + "/" + r.Name + "/"
		if other, taken := has[key]; taken {
			i.t.Fatalf("I8: volumes %s and %s both have the name %s", id, other, r.Name)
		}
		has[key] = id
		g, err := genlog.New[record.Name](i.raw, key).Newest(ctx)
		if err != nil || g.State.Volume != id {
			i.t.Fatalf("I8: name %s leads to %q (%v), and volume %s has it", r.Name, g.State.Volume, err, id)
		}
	}
}
