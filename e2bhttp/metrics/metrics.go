package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/volume"
)

// Metrics feeds Prometheus. Its methods may be called concurrently, and return at once.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	events   *prometheus.CounterVec
	bytes    *prometheus.CounterVec
}

var _ volume.Observer = (*Metrics)(nil)

// New registers the metrics. Several handlers with one registerer share them.
func New(r prometheus.Registerer) (*Metrics, error) {
	labels := []string{"operation", "result"}
	total, err := register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "volume_operation_total", Help: "Volume operations, by operation and result.",
	}, labels))
	if err != nil {
		return nil, err
	}
	// From a cached read to an image import.
	duration, err := register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "volume_operation_duration_seconds", Help: "How long volume operations took, by operation and result.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 13),
	}, labels))
	if err != nil {
		return nil, err
	}
	events, err := register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "volume_event_total", Help: "What has happened on this node, by kind of event and result.",
	}, labels))
	if err != nil {
		return nil, err
	}
	bytes, err := register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "volume_event_bytes_total", Help: "Bytes that events were about, by kind of event and result.",
	}, labels))
	if err != nil {
		return nil, err
	}
	return &Metrics{total, duration, events, bytes}, nil
}

// register registers a collector, or returns the one that is registered in its place.
func register[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	err := r.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if same, ok := there.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	return c, err
}

// Observe counts one operation: it is for e2bhttp.WithObserver.
func (m *Metrics) Observe(o e2bhttp.Observation) {
	m.total.WithLabelValues(o.Operation, o.Result).Inc()
	m.duration.WithLabelValues(o.Operation, o.Result).Observe(o.Duration.Seconds())
}

// Event counts one event of a repository: it is for volume.WithObserver.
func (m *Metrics) Event(e volume.Event) {
	result := "ok"
	if e.Err != nil {
		result = "error"
	}
	m.events.WithLabelValues(string(e.Kind), result).Inc()
	m.bytes.WithLabelValues(string(e.Kind), result).Add(float64(max(0, e.Bytes)))
}
