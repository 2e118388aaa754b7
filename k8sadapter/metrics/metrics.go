package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/k8sadapter"
)

// Metrics feeds Prometheus. Its methods may be called concurrently.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	foreign  prometheus.Counter
}

// New registers the metrics. Whoever registered the same before shares them. A namespace goes before each name; it can be
// empty.
func New(r prometheus.Registerer, namespace string) (*Metrics, error) {
	labels := []string{"operation", "result"}
	total, err := register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "volume_operation_total", Help: "Volume operations, by operation and result.",
	}, labels))
	if err != nil {
		return nil, err
	}
	duration, err := register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "volume_operation_duration_seconds",
		Help:    "How long volume operations took, by operation and result.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 13),
	}, labels))
	if err != nil {
		return nil, err
	}
	foreign, err := register(r, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "volume_foreign_access_total",
		Help: "References to volumes of other namespaces, which were answered as missing.",
	}))
	return &Metrics{total, duration, foreign}, err
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

// Observe counts one operation: it is for k8sadapter.WithObserver.
func (m *Metrics) Observe(o k8sadapter.Observation) {
	switch o.Result {
	case k8sadapter.ResultForeign:
		m.foreign.Inc()
	case k8sadapter.ResultUnreadable:
		m.total.WithLabelValues(o.Operation, o.Result).Inc()
	default:
		m.total.WithLabelValues(o.Operation, o.Result).Inc()
		m.duration.WithLabelValues(o.Operation, o.Result).Observe(o.Duration.Seconds())
	}
}

// ObserveMounts is Observe without the operations that package e2bhttp counts by itself.
func (m *Metrics) ObserveMounts(o k8sadapter.Observation) {
	switch o.Operation {
	case k8sadapter.OpRegister, k8sadapter.OpList, k8sadapter.OpGet, k8sadapter.OpDelete:
		if o.Result != k8sadapter.ResultForeign {
			return
		}
	}
	m.Observe(o)
}
