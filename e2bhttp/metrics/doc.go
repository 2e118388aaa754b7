// Package metrics counts what an e2bhttp.Handler and the library behind it do, in Prometheus.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	repo, err := volume.Open(ctx, cfg, volume.WithObserver(m))
//	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), auth, e2bhttp.WithObserver(m.Observe))
//	state, err := metrics.NewRepository(prometheus.DefaultRegisterer, repo, tenants)
//	go state.Run(ctx, 5*time.Minute, logError)
//
// There are three sources.
//
//   - Operations: volume_operation_total and volume_operation_duration_seconds count the requests, and what a host has timed
//     with [Metrics.Timed], such as [Attach] and [Publish]. A conflict is a result of these.
//   - Events: volume_event_total and volume_event_bytes_total count what happens on the node by itself: volumes that were
//     fenced, salvaged or compacted, publishes that are late, collector runs and what they freed.
//   - State: a [Repository] shows the node's cache, what the node holds, and what all tenants have: volumes, snapshots, bytes,
//     reservations and suspects.
//
// Operations and events are labelled by operation and result, which take no values from requests; state has no labels. So
// the number of series is bounded, and none names a tenant, a volume or a sandbox.
//
// It is a package of its own so that a program without Prometheus does not link it.
package metrics
