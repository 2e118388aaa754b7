package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/metrics"
)

func Example() {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		panic(err)
	}
	nobody := func(*http.Request) (string, error) { return "", e2bhttp.ErrUnauthenticated }
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(nil), nobody, e2bhttp.WithObserver(m.Observe))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/volumes", nil))

	families, err := reg.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		fmt.Println(f.GetName(), len(f.GetMetric()))
	}
	// Output:
	// volume_operation_duration_seconds 1
	// volume_operation_total 1
}
