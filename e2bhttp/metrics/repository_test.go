package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/e2bhttp/metrics"
	"github.com/sandvol/sandvol/overlaybd"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// marker is a Formatter whose file system is one sector.
type marker struct{}

func (marker) Version() string             { return "marker/1" }
func (marker) Check(context.Context) error { return nil }
func (marker) Format(_ context.Context, dev overlaybd.Device) error {
	_, err := dev.WriteAt(bytes.Repeat([]byte{'F'}, overlaybd.SectorSize), 4096)
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openNode(t *testing.T, st store.Store, node string, opts ...volume.Option) *volume.Repository {
	t.Helper()
	repo, err := volume.Open(t.Context(), volume.Config{Store: st, Dir: filepath.Join(t.TempDir(), node), Node: node},
		append(opts, volume.WithFormatter(marker{}))...)
	must(t, err)
	t.Cleanup(func() { must(t, repo.Close()) })
	return repo
}

// values returns the sums by name.
func values(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) > 0 {
				t.Errorf("%s has labels %v", f.GetName(), m.GetLabel())
			}
			got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return got
}

// The state of a repository: what one node holds and keeps, what all tenants have, and whose node is not heard of.
func TestARepositorysStateIsShown(t *testing.T) {
	st := memstore.New()
	// Two nodes: this one's clock is an hour ahead, so that the other was not heard of for long.
	other := openNode(t, st, "node-2")
	repo := openNode(t, st, "node-1", volume.WithClock(func() time.Time { return time.Now().Add(time.Hour) }),
		volume.WithHeartbeat(time.Second))
	tenant := func(r *volume.Repository, name string) *volume.Manager {
		m, err := r.Tenant(name)
		must(t, err)
		return m
	}
	red, blue := tenant(repo, "red"), tenant(repo, "blue")
	for _, m := range []*volume.Manager{red, blue} {
		for _, name := range []string{"a", "b"} {
			_, err := m.Create(t.Context(), volume.CreateOptions{Name: name, Size: volume.MinSize})
			must(t, err)
		}
	}
	_, err := red.Snapshot(t.Context(), "a", volume.SnapshotOptions{})
	must(t, err)
	here, err := red.Attach(t.Context(), "a", "sbx")
	must(t, err)
	there, err := tenant(other, "blue").Attach(t.Context(), "a", "far")
	must(t, err)
	must(t, errors.Join(here.Mounted(t.Context()), there.Mounted(t.Context())))

	reg := prometheus.NewRegistry()
	names, fault := []string{"red", "blue"}, error(nil)
	state, err := metrics.NewRepository(reg, repo, func(context.Context) ([]string, error) { return names, fault })
	must(t, err)
	// What a node holds is in its next heartbeat.
	var got map[string]float64
	for range 200 {
		must(t, state.Poll(t.Context()))
		if got = values(t, reg); got["volume_node_held"] == 1 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got["volume_polled_timestamp_seconds"] == 0 {
		t.Error("when it was polled is not shown")
	}
	delete(got, "volume_polled_timestamp_seconds")
	want := map[string]float64{"volume_node_held": 1, "volume_node_pinned": 0, "volume_node_lost": 0,
		"volume_volumes": 4, "volume_snapshots": 1, "volume_reserved": 2, "volume_suspects": 1,
		"volume_provisioned_bytes": float64(4 * volume.MinSize),
		"volume_stored_bytes":      0, // nothing was written; empty file systems are everybody's
		"volume_cache_used_bytes":  got["volume_cache_used_bytes"], "volume_cache_budget_bytes": 0,
		"volume_cache_fetches_total": got["volume_cache_fetches_total"], "volume_cache_evicted_bytes_total": 0,
		"volume_cache_fetched_bytes_total": got["volume_cache_fetched_bytes_total"], "volume_cache_damaged_total": 0}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	stats := repo.LocalCache()
	if got["volume_cache_used_bytes"] != float64(stats.Used) || got["volume_cache_fetches_total"] != float64(stats.Fetches) {
		t.Errorf("cache %v, want %+v", got, stats)
	}

	// What cannot be read keeps its value, and is told.
	fault = errors.New("no tenants")
	if err := state.Poll(t.Context()); !errors.Is(err, fault) {
		t.Errorf("poll: %v", err)
	}
	if got := values(t, reg)["volume_volumes"]; got != 4 {
		t.Errorf("%v volumes after a failed poll", got)
	}
	// One repository has a registerer's names, until it is closed.
	if _, err := metrics.NewRepository(reg, other, nil); err == nil {
		t.Error("a second repository was registered under the same names")
	}
	state.Close()
	second, err := metrics.NewRepository(reg, other, nil)
	must(t, err)
	must(t, second.Poll(t.Context()))
	must(t, errors.Join(here.Release(t.Context(), sealed(t, here)), there.Release(t.Context(), sealed(t, there))))
}

func sealed(t *testing.T, s *volume.Session) *volume.Sealed {
	t.Helper()
	cut, err := s.Seal(t.Context(), volume.Cut{ID: "cut", Consistency: volume.Clean, Final: true})
	must(t, err)
	return cut
}

// Run polls until it is told to stop, and tells what failed.
func TestRunPollsUntilItsContextEnds(t *testing.T) {
	repo := openNode(t, memstore.New(), "node-1")
	fault := errors.New("no tenants")
	state, err := metrics.NewRepository(prometheus.NewRegistry(), repo,
		func(context.Context) ([]string, error) { return nil, fault })
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	state.Run(ctx, time.Millisecond, func(err error) {
		if n++; n == 3 {
			cancel()
		}
		if !errors.Is(err, fault) {
			t.Errorf("failed: %v", err)
		}
	})
	if n != 3 {
		t.Errorf("%d polls failed, want 3", n)
	}
}

// Attaches and publishes of a host are timed beside the requests, with conflicts and fenced holders apart.
func TestAttachesAreTimed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	must(t, err)
	conflict := &volume.ConflictError{Owner: "other"}
	for _, err := range []error{nil, nil, conflict, volume.ErrFenced, volume.ErrInvalid, errors.New("disk")} {
		if got := m.Timed(metrics.Attach, func() error { return err }); got != err {
			t.Errorf("error %v, want %v", got, err)
		}
	}
	families, err := reg.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			got[f.GetName()+" "+s.GetLabel()[0].GetValue()+" "+s.GetLabel()[1].GetValue()] +=
				s.GetCounter().GetValue() + float64(s.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{}
	for result, n := range map[string]float64{"ok": 2, "conflict": 1, "fenced": 1, "invalid": 1, "unavailable": 1} {
		want["volume_operation_total attach "+result] = n
		want["volume_operation_duration_seconds attach "+result] = n
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
