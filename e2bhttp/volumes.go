package e2bhttp

import (
	"context"
	"iter"

	"github.com/sandvol/sandvol/volume"
)

// Volumes is what the handler needs of a tenant's volumes. *volume.Manager implements it. Errors are of volume's classes;
// whoever cannot do what the options ask for returns volume.ErrUnsupported, which is answered 501. A reference is an id or a
// name, and what belongs to somebody else is volume.ErrNotFound, like what does not exist. The text of an error that is both
// volume.ErrExists and volume.ErrConflict is shown to the caller, with the code for a name that is taken.
type Volumes interface {
	Create(ctx context.Context, o volume.CreateOptions) (volume.Volume, error)
	Get(ctx context.Context, ref string) (volume.Volume, error)
	// List yields in a stable order, from the volume after ListOptions.After on.
	List(ctx context.Context, o volume.ListOptions) iter.Seq2[volume.Volume, error]
	Delete(ctx context.Context, ref string) error
}

// Forker is implemented by Volumes that can copy a volume. Without it the route for forks answers 501.
type Forker interface {
	Fork(ctx context.Context, ref string, o volume.ForkOptions) (volume.Volume, error)
}

// Snapshots is implemented by Volumes that can keep states of a volume. Without it the routes for snapshots answer 501.
type Snapshots interface {
	Snapshot(ctx context.Context, ref string, o volume.SnapshotOptions) (volume.Checkpoint, error)
	Checkpoint(ctx context.Context, id string) (volume.Checkpoint, error)
	Checkpoints(ctx context.Context, o volume.ListOptions) iter.Seq2[volume.Checkpoint, error]
	DeleteCheckpoint(ctx context.Context, id string) error
}

// Restorer is implemented by Volumes that can make a volume from a kept state. Without it the route for that answers 501.
type Restorer interface {
	Restore(ctx context.Context, checkpoint string, o volume.ForkOptions) (volume.Volume, error)
}

// Tenants finds the volumes of a tenant that an Authenticator named. The handler reaches nothing but through it, so that a
// request cannot see another tenant's volumes.
type Tenants func(ctx context.Context, tenant string) (Volumes, error)

// ForRepository serves the volumes of a repository's tenants.
func ForRepository(r *volume.Repository) Tenants {
	return func(_ context.Context, tenant string) (Volumes, error) {
		m, err := r.Tenant(tenant)
		if err != nil {
			return nil, err // not m: a nil *Manager would be a Volumes that is not nil
		}
		return m, nil
	}
}

var _ interface {
	Volumes
	Forker
	Snapshots
	Restorer
} = (*volume.Manager)(nil)

// can returns the tenant's volumes as I, or the answer that this host cannot do that.
func can[I any](v Volumes, what string) (I, error) {
	i, ok := v.(I)
	if !ok {
		return i, unsupported(what + ": these volumes cannot do that")
	}
	return i, nil
}
