package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/volume"
)

// Repository shows the state of a repository, as one node sees it. Its methods may be called concurrently.
type Repository struct {
	repo       *volume.Repository
	tenants    func(context.Context) ([]string, error)
	registry   prometheus.Registerer
	collectors []prometheus.Collector

	held, pinned, lost            prometheus.Gauge
	volumes, snapshots            prometheus.Gauge
	reserved, suspects            prometheus.Gauge
	provisioned, stored, polledAt prometheus.Gauge
}

// NewRepository registers the metrics of a repository; a registerer takes those of one. Those of the node's cache are read when
// they are gathered, and cost no request. The others are what Poll found last: what this node holds, and, if tenants is not
// nil, what the tenants have in all. One node of a repository is enough to poll that: it reads each record.
func NewRepository(r prometheus.Registerer, repo *volume.Repository, tenants func(context.Context) ([]string, error)) (
	*Repository, error) {
	p := &Repository{repo: repo, tenants: tenants, registry: r}
	for _, g := range []struct {
		gauge      *prometheus.Gauge
		name, help string
	}{
		{&p.held, "volume_node_held", "Exclusive volumes that this node holds."},
		{&p.pinned, "volume_node_pinned", "Read-only mounts of ro volumes on this node."},
		{&p.lost, "volume_node_lost", "Volumes that were taken over from this node, with writes that are not salvaged yet."},
		{&p.volumes, "volume_volumes", "Volumes of all tenants."},
		{&p.snapshots, "volume_snapshots", "Volume snapshots of all tenants."},
		{&p.reserved, "volume_reserved", "Volumes that a sandbox holds, paused ones included."},
		{&p.suspects, "volume_suspects", "Volumes whose holder's node has not been heard of."},
		{&p.provisioned, "volume_provisioned_bytes", "Sum of the volumes' sizes."},
		{&p.stored, "volume_stored_bytes", "Bytes stored for volumes and snapshots, each layer once for each tenant."},
		{&p.polledAt, "volume_polled_timestamp_seconds", "When all of these were read last."},
	} {
		*g.gauge = prometheus.NewGauge(prometheus.GaugeOpts{Name: g.name, Help: g.help})
		p.collectors = append(p.collectors, *g.gauge)
	}
	p.collectors = append(p.collectors, p.cache()...)
	for i, c := range p.collectors {
		if err := r.Register(c); err != nil {
			p.collectors = p.collectors[:i]
			p.Close()
			return nil, fmt.Errorf("register the metrics of a repository: %w", err)
		}
	}
	return p, nil
}

// cache is what LocalCache tells.
func (p *Repository) cache() []prometheus.Collector {
	gauge := func(name, help string, get func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(get()) })
	}
	counter := func(name, help string, get func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(get()) })
	}
	stats := p.repo.LocalCache
	return []prometheus.Collector{
		gauge("volume_cache_used_bytes", "Bytes of layers that this node keeps.", func() int64 { return stats().Used }),
		gauge("volume_cache_budget_bytes", "Bytes of layers that this node may keep; 0 is no bound.",
			func() int64 { return stats().Budget }),
		counter("volume_cache_fetches_total", "Requests for parts of layers.", func() int64 { return stats().Fetches }),
		counter("volume_cache_fetched_bytes_total", "Bytes of layers that were fetched.", func() int64 { return stats().Fetched }),
		counter("volume_cache_evicted_bytes_total", "Bytes of layers that were dropped to make room.",
			func() int64 { return stats().Evicted }),
		counter("volume_cache_damaged_total", "Parts of layers that did not fit their checksums.",
			func() int64 { return stats().Damaged }),
	}
}

// Close takes the metrics out of the registerer.
func (p *Repository) Close() {
	for _, c := range p.collectors {
		p.registry.Unregister(c)
	}
}

// Poll reads the state once. A part that cannot be read keeps its values, and is in the error.
func (p *Repository) Poll(ctx context.Context) error {
	err := errors.Join(p.pollNode(ctx), p.pollTenants(ctx))
	if err == nil {
		p.polledAt.SetToCurrentTime()
	}
	return err
}

// Run polls at once and then as often as it is told, until ctx ends. Errors go to failed, which may be nil.
func (p *Repository) Run(ctx context.Context, every time.Duration, failed func(error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := p.Poll(ctx); err != nil && failed != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Repository) pollNode(ctx context.Context) error {
	report, err := p.repo.Held(ctx, p.repo.Node())
	if err != nil && !errors.Is(err, volume.ErrNotFound) { // without heartbeats a node says nothing
		return fmt.Errorf("poll what the node holds: %w", err)
	}
	var held, pinned, lost float64
	for _, h := range report.Holds {
		switch {
		case h.Lost:
			lost++
		case h.Pin != "":
			pinned++
		default:
			held++
		}
	}
	p.held.Set(held)
	p.pinned.Set(pinned)
	p.lost.Set(lost)
	return nil
}

// totals are the sums over all tenants.
type totals struct {
	volume.Usage
	reserved, suspects int
}

func (p *Repository) pollTenants(ctx context.Context) error {
	if p.tenants == nil {
		return nil
	}
	names, err := p.tenants(ctx)
	if err != nil {
		return fmt.Errorf("poll tenants: %w", err)
	}
	var t totals
	for _, name := range names {
		if err := p.add(ctx, &t, name); err != nil {
			return fmt.Errorf("poll tenant %s: %w", name, err)
		}
	}
	p.volumes.Set(float64(t.Volumes))
	p.snapshots.Set(float64(t.Checkpoints))
	p.provisioned.Set(float64(t.ProvisionedBytes))
	p.stored.Set(float64(t.StoredBytes))
	p.reserved.Set(float64(t.reserved))
	p.suspects.Set(float64(t.suspects))
	return nil
}

func (p *Repository) add(ctx context.Context, t *totals, tenant string) error {
	m, err := p.repo.Tenant(tenant)
	if err != nil {
		return err
	}
	u, err := m.Usage(ctx)
	if err != nil {
		return err
	}
	t.Volumes += u.Volumes
	t.Checkpoints += u.Checkpoints
	t.ProvisionedBytes += u.ProvisionedBytes
	t.StoredBytes += u.StoredBytes
	for v, err := range m.List(ctx, volume.ListOptions{}) {
		if err != nil {
			return err
		}
		if _, held := v.Reservation.Holder(); held {
			t.reserved++
		}
		if !v.SuspectSince.IsZero() {
			t.suspects++
		}
	}
	return nil
}
