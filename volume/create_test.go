package volume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// everything has a default but the wish for a volume. It has an id of its own and comes
// from no sandbox.
func TestZeroOptionsMakeAnEmptyExclusiveVolumeOf64GiB(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	v := must[volume.Volume](t)(m.Create(t.Context(), volume.CreateOptions{}))
	want := volume.Volume{
		ID: v.ID, Mode: volume.Exclusive, Status: volume.StatusReady, Size: 65536 * volume.MiB, CreatedAt: w.clock,
		Reservation: v.Reservation, Generation: 2, Stack: v.Stack, Cut: v.Cut, Consistency: volume.Clean, PublishedAt: w.clock,
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Error(diff)
	}
	if id, err := uuid.Parse(v.ID); err != nil || id.Version() != 7 {
		t.Errorf("id %q is no UUIDv7: %v", v.ID, err)
	}
	if diff := cmp.Diff(v, get(t, m, v.ID)); diff != "" {
		t.Errorf("created and read differ: %s", diff)
	}
	reads(t, w.st, v, map[int64]byte{4096: 'F', 8192: 0})
}

// what is asked for is what there is.
func TestCreateKeepsWhatWasAskedFor(t *testing.T) {
	w := newWorld(t)
	m := w.node("a")
	labels := map[string]string{"app": "ci", "a.b/c_d-e": ""}
	v := create(t, m, volume.CreateOptions{Name: "data", Size: 17 * volume.MiB, Labels: labels})
	if v.Name != "data" || v.Size != 17*volume.MiB || !cmp.Equal(v.Labels, labels) || v.Mode != volume.Exclusive {
		t.Errorf("created %+v", v)
	}
	big := create(t, m, volume.CreateOptions{Source: volume.FromVolume("data"), Size: volume.MaxSize})
	if big.Size != volume.MaxSize || get(t, m, "data").Size != 17*volume.MiB {
		t.Errorf("child has %d bytes", big.Size)
	}
	same := create(t, m, volume.CreateOptions{Source: volume.FromVolume("data"), Mode: volume.ReadOnly})
	if same.Size != v.Size || same.Mode != volume.ReadOnly {
		t.Errorf("child %+v", same)
	}
}

// each argument outside its limits is refused by class, the message names field, value and limit, and
// nothing is written anywhere.
func TestBadInputIsNamedAndLeavesNothingBehind(t *testing.T) {
	w := newWorld(t)
	m, trace := w.traced("a")
	ctx := t.Context()
	src := create(t, m, volume.CreateOptions{Name: "src", Size: 17 * volume.MiB})
	shot := must[volume.Checkpoint](t)(m.Snapshot(ctx, "src", volume.SnapshotOptions{}))
	held := attach(t, m, create(t, m, volume.CreateOptions{}).ID, "sb")
	size := func(n int64) volume.CreateOptions { return volume.CreateOptions{Size: n} }
	from := func(s volume.Source) volume.CreateOptions { return volume.CreateOptions{Source: s} }
	long := strings.Repeat("n", 129)
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("l", i)] = ""
	}
	made := func(o volume.CreateOptions) func() error {
		return func() error { _, err := m.Create(ctx, o); return err }
	}
	update := func(u volume.Update) func() error {
		return func() error { _, err := m.Update(ctx, "src", u); return err }
	}
	listed := func(o volume.ListOptions) func() error {
		return func() error { _, err := storetest.Collect(m.List(ctx, o)); return err }
	}
	invalid, unsupported := volume.ErrInvalid, volume.ErrUnsupported
	for _, c := range []struct {
		name  string
		do    func() error
		class error
		parts string // of the message: field, value, limit
	}{
		{"size below", made(size(volume.MinSize - volume.MiB)), invalid, "size|15728640|16 MiB"},
		{"size negative", made(size(-1)), invalid, "size|-1|16 MiB"},
		{"size above", made(size(volume.MaxSize + volume.MiB)), invalid, "size|17592187092992|16 TiB"},
		{"size uneven", made(size(volume.MinSize + 1)), invalid, "size|16777217|multiple of 1 MiB"},
		{"size below source", made(volume.CreateOptions{Source: volume.FromCheckpoint(shot.ID), Size: volume.MinSize}),
			invalid, "size|16777216|17825792|only be larger"},
		{"name long", made(volume.CreateOptions{Name: long}), invalid, "name|nnn|128"},
		{"name path", made(volume.CreateOptions{Name: "../etc"}), invalid, "name|../etc|A-Z a-z 0-9 _ -"},
		{"name absolute", made(volume.CreateOptions{Name: "/data"}), invalid, "name|/data|A-Z"},
		{"name uuid", made(volume.CreateOptions{Name: src.ID}), invalid, "name|" + src.ID + "|UUID"},
		{"name bare uuid", made(volume.CreateOptions{Name: strings.ReplaceAll(src.ID, "-", "")}),
			invalid, "name|UUID"},
		{"mode shared-write", made(volume.CreateOptions{Mode: "shared-write"}),
			unsupported, "mode|shared-write|exclusive|ro"},
		{"mode unknown", made(volume.CreateOptions{Mode: "rw"}), unsupported, `mode|"rw"|exclusive|ro`},
		{"mode case", made(volume.CreateOptions{Mode: "RO"}), unsupported, `mode|"RO"`},
		{"empty ro", made(volume.CreateOptions{Mode: volume.ReadOnly}), invalid, "mode|ro|source"},
		{"flush empty", made(volume.CreateOptions{Flush: true}), invalid, "flush|true|source"},
		{"flush checkpoint", made(volume.CreateOptions{Source: volume.FromCheckpoint(shot.ID), Flush: true}),
			invalid, "flush"},
		{"token without name", made(volume.CreateOptions{Token: "t"}), invalid, "token|name"},
		{"token form", made(volume.CreateOptions{Name: "n", Token: "a b"}), invalid, "token|a b|128"},
		{"labels many", made(volume.CreateOptions{Labels: many}), invalid, "labels|65|64"},
		{"label key", made(volume.CreateOptions{Labels: map[string]string{"-a": ""}}), invalid, "label|-a|63"},
		{"label key empty", made(volume.CreateOptions{Labels: map[string]string{"": ""}}), invalid, "label|63"},
		{"label value", made(volume.CreateOptions{Labels: map[string]string{"a": strings.Repeat("v", 257)}}),
			invalid, "label|257|256"},
		{"source volume empty", made(from(volume.FromVolume(""))), invalid, `name|""|128`},
		{"source checkpoint empty", made(from(volume.FromCheckpoint(""))), invalid, `checkpoint|""|128`},
		{"source volume unknown", made(from(volume.FromVolume(uuid.NewString()))), volume.ErrNotFound, "volume"},
		{"source name unknown", made(from(volume.FromVolume("nobody"))), volume.ErrNotFound, "nobody"},
		{"source checkpoint unknown", made(from(volume.FromCheckpoint("c"))), volume.ErrNotFound, "checkpoint c"},
		{"source checkpoint path", made(from(volume.FromCheckpoint("a/b"))), invalid, "checkpoint|a/b"},
		{"fork id", func() error { _, err := m.ForkAs(ctx, "src", "mine", volume.ForkOptions{}); return err },
			invalid, "id|mine|UUID"},
		{"fork token", func() error {
			_, err := m.ForkAs(ctx, "src", uuid.NewString(), volume.ForkOptions{Name: "n", Token: "t"})
			return err
		}, invalid, "token"},
		{"restore flush", func() error { _, err := m.Restore(ctx, shot.ID, volume.ForkOptions{Flush: true}); return err },
			invalid, "flush"},
		{"snapshot id", func() error { _, err := m.Snapshot(ctx, "src", volume.SnapshotOptions{ID: "other_1"}); return err },
			invalid, "other_1|" + src.ID},
		{"snapshot name", func() error { _, err := m.Snapshot(ctx, "src", volume.SnapshotOptions{Name: "a b"}); return err },
			invalid, "name|a b|128"},
		{"snapshot unknown", func() error { _, err := m.Snapshot(ctx, "nobody", volume.SnapshotOptions{}); return err },
			volume.ErrNotFound, "nobody"},
		{"update name", update(volume.Update{Name: new("")}), invalid, `name|""|128`},
		{"update size", update(volume.Update{Size: new(int64(0))}), invalid, "size|0|16 MiB"},
		{"update labels", update(volume.Update{Labels: &many}), invalid, "labels|65|64"},
		{"shrink", update(volume.Update{Size: new(int64(volume.MinSize))}),
			invalid, "size|16777216|17825792|only grow"},
		{"sandbox", func() error { _, err := m.Attach(ctx, "src", "../sb"); return err },
			invalid, "sandbox|../sb|128"},
		{"sandbox empty", func() error { _, err := m.Attach(ctx, "src", ""); return err }, invalid, `sandbox|""`},
		{"reader", func() error { _, err := m.Pin(ctx, "src", "a/b"); return err }, invalid, "sandbox|a/b"},
		{"pin of an exclusive volume", func() error { _, err := m.Pin(ctx, "src", "sb"); return err },
			unsupported, "mode exclusive"},
		{"remove pin", func() error { return m.RemovePin(ctx, src.ID, "sb", "a/b") }, invalid, "pin|a/b"},
		{"cut id", func() error { _, err := held.Seal(ctx, volume.Cut{}); return err }, invalid, `cut|""`},
		{"consistency", func() error { _, err := held.Seal(ctx, volume.Cut{ID: "c", Consistency: "good"}); return err },
			invalid, "consistency|good|clean|crash"},
		{"list limit", listed(volume.ListOptions{Limit: -1}), invalid, "limit|-1"},
		{"list after", listed(volume.ListOptions{After: "a/b"}), invalid, "after|a/b"},
		{"list volume", func() error {
			_, err := storetest.Collect(m.Checkpoints(ctx, volume.ListOptions{Volume: "a/b"}))
			return err
		}, invalid, "volume|a/b"},
		{"get", func() error { _, err := m.Get(ctx, "a/b"); return err }, invalid, "name|a/b"},
		{"delete", func() error { return m.Delete(ctx, "") }, invalid, `name|""`},
		{"tenant reserved", func() error { _, err := m.Repository().Tenant("_"); return err },
			invalid, `tenant|"_"|reserved`},
		{"tenant form", func() error { _, err := m.Repository().Tenant("a/b"); return err },
			invalid, "tenant|a/b|128"},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace.Reset()
			err := c.do()
			wantErr(t, err, c.class)
			if !contains(err.Error(), strings.Split(c.parts, "|")...) {
				t.Errorf("message %q does not name %s", err, c.parts)
			}
			if p := puts(trace); len(p) > 0 {
				t.Errorf("wrote %q", p)
			}
		})
	}
	release(t, held)
}

// what the formatter lacks is said before any record exists.
func TestMissingFormatterLeavesNothingBehind(t *testing.T) {
	w := newWorld(t)
	missing := errors.New("no such tool")
	w.opts = append(w.opts, volume.WithFormatter(marker{err: missing}))
	m := w.node("a")
	before := keysBelow(t, w.st, "v1/")
	if _, err := m.Create(t.Context(), volume.CreateOptions{Name: "data"}); !errors.Is(err, missing) {
		t.Fatalf("error is %v", err)
	}
	if diff := cmp.Diff(before, keysBelow(t, w.st, "v1/")); diff != "" {
		t.Error(diff)
	}
	w.opts = append(w.opts, volume.WithFormatter(nil))
	_, err := w.node("b").Create(t.Context(), volume.CreateOptions{})
	wantErr(t, err, volume.ErrUnsupported)
}

// A failed creation leaves nothing that is listed, and its name is free.
func TestFailedCreateLeavesOnlyATombstone(t *testing.T) { synctest.Test(t, failedCreate) }

func failedCreate(t *testing.T) {
	w := newWorld(t)
	m, f := w.faulty("a")
	create(t, m, volume.CreateOptions{}) // the hidden volume is there
	f.plan = storetest.Match(storetest.OpPutIfAbsent, "v1/names/team/", storetest.ErrorBefore)
	if _, err := m.Create(t.Context(), volume.CreateOptions{Name: "data", Size: volume.MinSize}); err == nil {
		t.Fatal("created without a name")
	}
	f.plan = nil
	if n := len(liveVolumes(t, m)); n != 1 {
		t.Errorf("%d volumes are listed", n)
	}
	create(t, m, volume.CreateOptions{Name: "data"})
}

// A volume grows while it is free. Its device is larger from the next attach on, and a child can be larger than its source.
func TestUpdateGrowsAFreeVolumeOnly(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	ctx, v := t.Context(), written(t, a, "data", 'x')
	grow := func(m *volume.Manager, ref string, n int64) error {
		_, err := m.Update(ctx, ref, volume.Update{Size: &n})
		return err
	}
	s := attach(t, a, "data", "sb")
	err := grow(b, "data", 32*volume.MiB)
	var held *volume.InUseError
	if !errors.As(err, &held) || held.Holders[0] != (volume.Holder{Sandbox: "sb", Node: "a"}) {
		t.Fatalf("growing a held volume: %v", err)
	}
	pause(t, s)
	wantErr(t, grow(b, "data", 32*volume.MiB), volume.ErrInUse)
	release(t, attach(t, b, "data", "sb"))

	ok(t, grow(b, "data", 32*volume.MiB))
	ok(t, grow(a, "data", 32*volume.MiB))
	err = grow(a, "data", 31*volume.MiB)
	wantErr(t, err, volume.ErrInvalid)
	if !contains(err.Error(), "size 32505856", "33554432", "only grow") {
		t.Errorf("message %q", err)
	}
	s = attach(t, a, v.ID, "sb")
	if s.Device().Size() != 32*volume.MiB || at(t, s.Device(), 8192) != 'x' {
		t.Errorf("device has %d bytes", s.Device().Size())
	}
	write(t, s.Device(), 32*volume.MiB-512, 'z')
	release(t, s)
	reads(t, w.st, get(t, b, "data"), map[int64]byte{8192: 'x', 20 * volume.MiB: 0, 32*volume.MiB - 512: 'z'})

	ro := readOnly(t, a, 'r')
	wantErr(t, grow(a, ro.ID, 32*volume.MiB), volume.ErrUnsupported)
	if got := get(t, b, ro.ID); got.Size != volume.MinSize || got.Generation != ro.Generation {
		t.Errorf("ro volume is %+v", got)
	}
}
