package volume_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/reservation"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/internal/record"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// Each protocol that keeps data safe is broken here on purpose, one at a time: a store between the nodes and the real one takes
// a protection away from what the real code writes, or a request of it out of its order. The scenes and checks are those of the
// other tests. One that does not notice could not have failed for the real code either.

// violation is what a scene reports in place of failing its test.
type violation struct {
	*testing.T
	found *string
}

func (v violation) Helper() {}

func (v violation) Fatalf(format string, args ...any) {
	if *v.found == "" {
		*v.found = fmt.Sprintf(format, args...)
	}
	panic(violated{})
}

type violated struct{}

// altered is a store that changes what is written on the way.
type altered struct {
	store.Store
	volume func(*record.Volume, string) // a volume's state, and the op that made it
	key    func(string) string          // where a record is put, and removed from; empty: nowhere
}

func (a altered) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	if a.volume != nil && strings.HasPrefix(key, "v1/volumes/") {
		body = a.alter(body)
	}
	if a.key != nil {
		if key = a.key(key); key == "" {
			return nil
		}
	}
	return a.Store.PutIfAbsent(ctx, key, body)
}

func (a altered) Delete(ctx context.Context, key string) error {
	if a.key != nil {
		if key = a.key(key); key == "" {
			return nil
		}
	}
	return a.Store.Delete(ctx, key)
}

func (a altered) alter(body []byte) []byte {
	var g map[string]any
	var s struct {
		Op    string        `json:"op"`
		State record.Volume `json:"state"`
	}
	if json.Unmarshal(body, &g) != nil || json.Unmarshal(body, &s) != nil {
		panic("a generation that cannot be decoded was written")
	}
	a.volume(&s.State, s.Op)
	g["state"] = s.State
	body, err := json.Marshal(g, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return body
}

// badScene is a scene with two nodes, and what is checked after it.
type badScene struct {
	violation
	raw  *memstore.Store
	a, b *process
	look *inspector
	id   string
}

// scene plays f with or without the alteration, and returns what it found wrong.
func scene(t *testing.T, a altered, f func(*badScene)) (found string) {
	bubble(t, func(t *testing.T) {
		raw := memstore.New()
		a.Store = raw
		c := newCluster(t, a)
		c.opts = append(c.opts, volume.WithCompaction(3, 2))
		k := &badScene{violation: violation{t, &found}, raw: raw, a: c.mustStart("a"), b: c.mustStart("b")}
		k.look = newInspector(k, raw)
		defer func() {
			if p := recover(); p != nil && p != (violated{}) {
				panic(p)
			}
			ok(t, k.a.kill())
			ok(t, k.b.kill())
		}()
		f(k)
		k.look.look(t.Context())
	})
	return found
}

func (k *badScene) must(err error) {
	if err != nil {
		k.Fatalf("%v", err)
	}
}

func (k *badScene) collect(n int) {
	age := time.Duration(0)
	for range n {
		_, err := k.b.repo.Collect(k.Context(), volume.CollectOptions{MinAge: &age, TakeOver: true, DropUnusedBases: true})
		k.must(err)
	}
}

func (k *badScene) create() *volume.Session {
	v, err := k.a.team["team"].Create(k.Context(), volume.CreateOptions{Size: volume.MinSize})
	k.must(err)
	k.id = v.ID
	return k.attach(k.a)
}

func (k *badScene) attach(p *process) *volume.Session {
	s, err := p.team["team"].Attach(k.Context(), k.id, "sb")
	k.must(err)
	return s
}

func (k *badScene) write(s *volume.Session, block int, b byte) {
	_, err := s.Device().WriteAt(blockOf(b), blockAt[block])
	k.must(err)
}

func (k *badScene) publish(s *volume.Session) {
	c, err := s.Seal(k.Context(), volume.NewCut(volume.Crash, false))
	k.must(err)
	k.must(s.Publish(k.Context(), c))
}

func (k *badScene) release(s *volume.Session) {
	c, err := s.Seal(k.Context(), volume.NewCut(volume.Clean, true))
	k.must(err)
	k.must(s.Release(k.Context(), c))
}

// fence has b take the volume over.
func (k *badScene) fence() *volume.Session {
	v, err := k.b.team["team"].Get(k.Context(), k.id)
	k.must(err)
	s, err := k.b.team["team"].TakeOver(k.Context(), k.id,
		volume.TakeOverOptions{Epoch: v.Reservation.Epoch, Sandbox: "sb2", Reason: "known bad"})
	k.must(err)
	return s
}

// fenced makes a volume of which a has published x and not y, that b has taken over, given up and deleted.
func (k *badScene) fenced() {
	s := k.create()
	k.write(s, 2, 'x')
	k.publish(s)
	k.write(s, 2, 'y')
	c, err := s.Seal(k.Context(), volume.NewCut(volume.Crash, false))
	k.must(err)
	k.release(k.fence())
	if err := s.Publish(k.Context(), c); err == nil { // the bytes are uploaded, and nobody refers to them
		k.Fatalf("I1: a fenced holder has published")
	}
	k.must(k.b.team["team"].Delete(k.Context(), k.id))
}

// salvaged has a keep what it lost, and checks what is kept.
func (k *badScene) salvaged() {
	k.must(k.a.repo.Beat(k.Context()))
	for _, s := range k.a.repo.Salvage(k.Context()) {
		k.must(s.Err)
		if got := k.look.look(k.Context()).volumes[s.Salvage].Content[2]; got != 'y' {
			k.Fatalf("I13: the salvage holds %q", got)
		}
	}
}

// collectedBefore: the volume is collected before the fenced node comes back.
func collectedBefore(k *badScene) {
	k.fenced()
	k.collect(3)
	k.salvaged()
	k.collect(3)
}

// settledUnderARun: a collector run has listed the layers and passed the place of the salvage before it was there, and reads
// the source after the salvage was settled.
func settledUnderARun(k *badScene) {
	k.fenced()
	layers := k.look.list("v1/layers/")
	k.salvaged()
	source := k.look.volumeLog(k.Context(), "v1/volumes/team/"+k.id+"/")
	referred := slices.Collect(source.References())
	for _, e := range layers {
		if !slices.Contains(referred, e.Key) {
			k.must(k.raw.Delete(k.Context(), e.Key))
		}
	}
}

// merged: an attach shortens the stack of a volume.
func merged(k *badScene) {
	s := k.create()
	for i := range byte(4) {
		k.write(s, 2, 'u'+i)
		k.publish(s)
	}
	k.release(s)
	k.release(k.attach(k.b))
	if got := k.look.look(k.Context()).volumes[k.id].Content[2]; got != 'x' {
		k.Fatalf("I3: the volume holds %q", got)
	}
}

// staleHolder: a holder that was fenced publishes.
func staleHolder(k *badScene) {
	s := k.create()
	k.write(s, 2, 'x')
	k.fence()
	c, err := s.Seal(k.Context(), volume.NewCut(volume.Crash, false))
	k.must(err)
	if err := s.Publish(k.Context(), c); err == nil {
		k.Fatalf("I1: a fenced holder has published")
	}
}

// twoNodes: a sandbox attaches its volume on two nodes.
func twoNodes(k *badScene) {
	k.create()
	if _, err := k.b.team["team"].Attach(k.Context(), k.id, "sb"); err == nil {
		k.Fatalf("I1: two nodes have the volume open")
	}
}

// resumedReader: a sandbox mounts an ro volume on another node before the first node has unmounted it.
func resumedReader(k *badScene) {
	k.release(k.create())
	v, err := k.a.team["team"].Fork(k.Context(), k.id, volume.ForkOptions{Mode: volume.ReadOnly})
	k.must(err)
	first, err := k.a.team["team"].Pin(k.Context(), v.ID, "sb")
	k.must(err)
	second, err := k.b.team["team"].Pin(k.Context(), v.ID, "sb")
	k.must(err)
	k.must(first.Release(k.Context()))
	if err := k.a.team["team"].Delete(k.Context(), v.ID); err == nil {
		k.Fatalf("a volume was deleted under its reader")
	}
	k.must(second.Release(k.Context()))
}

// published: what was published is there, and what was paused stays its sandbox's.
func published(k *badScene) {
	s := k.create()
	k.write(s, 2, 'x')
	k.publish(s)
	if got := k.look.look(k.Context()).volumes[k.id].Content[2]; got != 'x' {
		k.Fatalf("I3: published is %q", got)
	}
	c, err := s.Seal(k.Context(), volume.NewCut(volume.Clean, true))
	k.must(err)
	k.must(s.Pause(k.Context(), c))
	if _, err := k.b.team["team"].Attach(k.Context(), k.id, "sb2"); err == nil {
		k.Fatalf("I9: a paused sandbox has lost its volume")
	}
}

// at least two ways to break each protocol, and each is noticed.
func TestProtectionsBrokenOnPurposeAreNoticed(t *testing.T) {
	always := func(f func(*record.Volume)) altered {
		return altered{volume: func(v *record.Volume, _ string) { f(v) }}
	}
	on := func(op string, f func(*record.Volume)) altered {
		return altered{volume: func(v *record.Volume, o string) {
			if o == op {
				f(v)
			}
		}}
	}
	for _, c := range []struct {
		name  string
		bad   altered
		scene func(*badScene)
	}{
		{"salvage: its base is not kept", always(func(v *record.Volume) { v.Fenced = nil }), collectedBefore},
		{"salvage: its base goes at once", always(func(v *record.Volume) { v.Leaving = nil }), settledUnderARun},
		{"salvage: layers reused by key", reusedByKey(), settledUnderARun},
		{"epoch: not raised by a takeover", asIfNotTaken(), staleHolder},
		{"epoch: the same owner while mounted elsewhere",
			on("acquire", func(v *record.Volume) { v.Reservation.Phase = reservation.Paused }), twoNodes},
		{"keys: carried over a takeover", carriedKeys(), staleHolder},
		{"keys: not declared before the stack has them", always(func(v *record.Volume) { v.Keys = nil }), published},
		{"pins: not there when the mount is", altered{key: pinsUnder("")}, resumedReader},
		{"pins: one key a sandbox", altered{key: pinsUnder("one")}, resumedReader},
		{"compaction: what was merged is not kept", always(func(v *record.Volume) { v.Former = nil }), merged},
		{"compaction: in another place", on("compact", func(v *record.Volume) { slices.Reverse(v.Stack.Layers) }), merged},
		{"cuts: a publish without its newest layer", on("publish", func(v *record.Volume) {
			v.Stack.Layers = v.Stack.Layers[:len(v.Stack.Layers)-1]
		}), published},
		{"cuts: a pause that frees", on("pause", func(v *record.Volume) { v.Reservation.Phase = reservation.Free }), published},
	} {
		t.Run(c.name, func(t *testing.T) {
			if found := scene(t, altered{}, c.scene); found != "" {
				t.Fatalf("with everything in place: %s", found)
			}
			found := scene(t, c.bad, c.scene)
			if found == "" {
				t.Fatal("nobody noticed")
			}
			t.Log(found)
		})
	}
}

// before hands an alteration what was stored last of the same volume.
func before(f func(last, v *record.Volume, op string)) altered {
	var mu sync.Mutex
	last := map[string]record.Volume{}
	return altered{volume: func(v *record.Volume, op string) {
		mu.Lock()
		defer mu.Unlock()
		old := last[v.ID]
		f(&old, v, op)
		last[v.ID] = *v
	}}
}

// asIfNotTaken is a takeover after which everything is as before.
func asIfNotTaken() altered {
	return before(func(last, v *record.Volume, op string) {
		if op == "takeover" {
			v.Reservation, v.Keys = last.Reservation, last.Keys
		}
	})
}

func carriedKeys() altered {
	return before(func(last, v *record.Volume, op string) {
		if op == "takeover" {
			v.Keys = append(v.Keys, last.Keys...)
		}
	})
}

// reusedByKey is a salvage that refers to what was uploaded under the source.
func reusedByKey() altered {
	return before(func(last, v *record.Volume, _ string) {
		if n := len(v.Stack.Layers); v.Origin.Fenced > 0 && n > 0 && strings.Contains(v.Stack.Layers[n-1].Key, v.ID) {
			v.Stack.Layers[n-1].Key = strings.Replace(v.Stack.Layers[n-1].Key, v.ID, v.Origin.Volume, 1)
		}
	})
}

// pinsUnder puts every pin of a sandbox under one name, or nowhere.
func pinsUnder(name string) func(string) string {
	return func(key string) string {
		if !strings.HasPrefix(key, "v1/pins/") {
			return key
		}
		if name == "" {
			return ""
		}
		return key[:strings.LastIndexByte(key, '/')+1] + name
	}
}
