package metrics

import (
	"errors"
	"time"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/volume"
)

// Operations of a host, beside those of e2bhttp. A host may name others; let their number be small and fixed.
const (
	// Attach gives a sandbox its volumes: mount.Node's Create, CreateFrom and Resume.
	Attach = "attach"
	// Publish makes durable what a sandbox has written: mount.Node's Pause, Snapshot, Delete and Expire.
	Publish = "publish"
)

// ResultFenced is the result of an operation that failed because the volume was taken over.
const ResultFenced = "fenced"

// Timed runs do, counts it as an operation, and returns its error. The result is "ok", ResultFenced, or a class as
// e2bhttp.Result has them: conflict is a volume that somebody else holds.
//
//	err := m.Timed(metrics.Attach, func() (err error) { drives, err = node.Create(ctx, id, mounts); return err })
func (m *Metrics) Timed(operation string, do func() error) error {
	began := time.Now()
	err := do()
	result := e2bhttp.Result(err)
	if errors.Is(err, volume.ErrFenced) {
		result = ResultFenced
	}
	m.Observe(e2bhttp.Observation{Operation: operation, Result: result, Duration: time.Since(began)})
	return err
}
