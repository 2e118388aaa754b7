// Package metrics counts the operations of a k8sadapter.Adapter for Prometheus:
//
//	volume_operation_total{operation, result}
//	volume_operation_duration_seconds{operation, result}
//	volume_foreign_access_total
//
// No label names a tenant, a volume or a sandbox. The first two have the names, labels and meaning that package
// e2bhttp/metrics gives them, and share a registerer with it: a host that uses both gives the adapter only the operations
// that no request has, with [Metrics.ObserveMounts], so that nothing is counted twice. Resolve, confirm and release are
// operations of their own, which tells the time that mounts add to the creation of a sandbox from the rest.
package metrics
