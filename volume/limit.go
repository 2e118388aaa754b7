package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/internal/record"
)

// Demand is what an operation would add to what a tenant has.
type Demand struct {
	Tenant string
	// Op is "create", for forks and restores too, "grow" or "publish".
	Op string
	// Volume is the id of the volume that grows or is published; empty for a new one.
	Volume string
	// Volumes is how many volumes come to be: 0 or 1.
	Volumes int
	// ProvisionedBytes is the size of a new disk, or by how much one grows.
	ProvisionedBytes int64
	// StoredBytes is how much a publish uploads.
	StoredBytes int64
}

// Limiter decides whether a tenant may have more. Its error refuses the operation, which then is ErrQuota as well; nothing was
// written before it was asked. What keeps data that exists already is never refused: a pause, a release, a salvage. A Limiter
// may call Usage of the tenant's Manager; it is asked several things at once, and decides about requests and not about
// outcomes, so a limit can be passed by what is under way.
type Limiter interface {
	Allow(ctx context.Context, d Demand) error
}

// WithLimiter has a tenant's operations checked against limits.
func WithLimiter(l Limiter) Option { return func(s *settings) { s.limiter = l } }

// QuotaError says which limit of a tenant would be exceeded, for Limiters. It is ErrQuota.
type QuotaError struct {
	Tenant string
	// What is limited: "volumes", "provisioned bytes", "stored bytes".
	What             string
	Limit, Used, Add int64
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("quota_exceeded: tenant %s has %d of %d %s and asks for %d more", e.Tenant, e.Used, e.Limit, e.What, e.Add)
}

// Is reports ErrQuota.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }

// allow asks the limiter. The hidden volumes belong to nobody.
func (m *Manager) allow(ctx context.Context, d Demand) error {
	if m.r.limiter == nil || m.tenant == record.ReservedTenant {
		return nil
	}
	d.Tenant = m.tenant
	err := m.r.limiter.Allow(ctx, d)
	if err == nil || errors.Is(err, ErrQuota) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrQuota, err)
}
