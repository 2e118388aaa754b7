package metrics_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/metrics"
	"github.com/sandvol/sandvol/volume"
)

// operations are counted and timed, by operation and result and by nothing else.
func TestOperationsAreCountedAndTimed(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	h := e2bhttp.NewHandler(unused, func(*http.Request) (string, error) { return "", e2bhttp.ErrUnauthenticated }, e2bhttp.WithObserver(m.Observe))
	for _, c := range [][2]string{{"GET", "/volumes"}, {"POST", "/volumes"}, {"GET", "/volumes/a"}, {"DELETE", "/volumes/b"}, {"GET", "/volumes/c"}, {"GET", "/x"}} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c[0], c[1], nil))
	}
	m.Observe(e2bhttp.Observation{Operation: e2bhttp.OpGet, Result: "ok", Duration: time.Second})
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range got {
		for _, series := range family.GetMetric() {
			var names []string
			key := family.GetName()
			for _, l := range series.GetLabel() {
				names = append(names, l.GetName())
				key += " " + l.GetValue()
			}
			if !slices.Equal(names, []string{"operation", "result"}) {
				t.Errorf("%s has labels %q", family.GetName(), names)
			}
			counts[key] = series.GetCounter().GetValue() + float64(series.GetHistogram().GetSampleCount())
		}
	}
	for _, name := range []string{"volume_operation_total", "volume_operation_duration_seconds"} {
		for series, want := range map[string]float64{"list denied": 1, "register denied": 1, "get denied": 2, "delete denied": 1, "get ok": 1} {
			if counts[name+" "+series] != want {
				t.Errorf("%s %s: %v, want %v", name, series, counts[name+" "+series], want)
			}
		}
	}
	if len(counts) != 10 {
		t.Errorf("series %v", counts)
	}
}

var unused = e2bhttp.ForRepository(nil)

// What happens on a node is counted by kind, with the bytes it was about.
func TestEventsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	m.Event(volume.Event{Kind: volume.EventFenced, Tenant: "acme", Volume: "v", Sandbox: "s"})
	m.Event(volume.Event{Kind: volume.EventCollected, Bytes: 5})
	m.Event(volume.Event{Kind: volume.EventCollected, Bytes: 7})
	m.Event(volume.Event{Kind: volume.EventPublishLate, Err: errors.New("slow"), Bytes: -1})
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range got {
		for _, series := range family.GetMetric() {
			key := family.GetName()
			for _, l := range series.GetLabel() {
				key += " " + l.GetValue()
			}
			values[key] = series.GetCounter().GetValue()
		}
	}
	for key, want := range map[string]float64{"volume_event_total fenced ok": 1, "volume_event_total collected ok": 2,
		"volume_event_total publish-late error": 1, "volume_event_bytes_total collected ok": 12} {
		if values[key] != want {
			t.Errorf("%s: %v, want %v", key, values[key], want)
		}
	}
}

func TestRegisteringTwiceSharesAndClashesFail(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		if _, err := metrics.New(reg); err != nil {
			t.Fatal(err)
		}
	}
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "volume_operation_total", Help: "of somebody else"}))
	if _, err := metrics.New(other); err == nil {
		t.Error("a metric of the same name with another meaning was accepted")
	}
}
