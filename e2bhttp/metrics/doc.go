// Package metrics counts what an e2bhttp.Handler does, in Prometheus.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	repo, err := volume.Open(ctx, cfg, volume.WithObserver(m))
//	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth, e2bhttp.WithObserver(m.Observe))
//
// Of requests, volume_operation_total and volume_operation_duration_seconds; of what happens on the node, such as volumes
// that were fenced or a collector run, volume_event_total and volume_event_bytes_total. All are labelled by operation and
// result, which take no values from requests: the number of series is bounded.
//
// It is a package of its own so that a program without Prometheus does not link it.
package metrics
