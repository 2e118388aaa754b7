package metrics_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	e2bmetrics "github.com/sandvol/sandvol/e2bhttp/metrics"
	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/k8sadapter/metrics"
)

// gather returns what was counted, by name and labels.
func gather(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			counts[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return counts
}

// operations are counted and timed by operation and result, those of mounts apart, and no label names
// a tenant or a volume.
func TestOperationsAreCountedAndTimed(t *testing.T) {
	r := prometheus.NewRegistry()
	if _, err := e2bmetrics.New(r); err != nil {
		t.Fatal(err)
	}
	m, err := metrics.New(r, "") // shared with the handler's
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{k8sadapter.OpRegister, k8sadapter.OpList, k8sadapter.OpGet, k8sadapter.OpDelete,
		k8sadapter.OpResolve} {
		m.Observe(k8sadapter.Observation{Operation: op, Result: "ok", Duration: time.Second})
		m.ObserveMounts(k8sadapter.Observation{Operation: op, Result: "ok", Duration: time.Second})
	}
	m.ObserveMounts(k8sadapter.Observation{Operation: k8sadapter.OpGet, Result: k8sadapter.ResultForeign})
	want := map[string]float64{"volume_foreign_access_total": 1}
	for op, n := range map[string]float64{"register": 1, "list": 1, "get": 1, "delete": 1, "resolve": 2} {
		want["volume_operation_total operation="+op+" result=ok"] = n
		want["volume_operation_duration_seconds operation="+op+" result=ok"] = n
	}
	if d := cmp.Diff(want, gather(t, r)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := metrics.New(prometheus.NewRegistry(), "acme"); err != nil {
		t.Error(err)
	}
}
