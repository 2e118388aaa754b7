package volume

import (
	"context"

	"github.com/sandvol/sandvol/volume/internal/record"
)

// Expire claims the volume for the end of its sandbox: same owner, same epoch, and from then on nobody acquires, pauses or
// mounts it again; what was written is published and the volume freed by Release. It may be repeated.
func (s *Session) Expire(ctx context.Context) error {
	return s.do(ctx, "expire", func() error {
		return s.append(ctx, record.Expire(s.grant.Epoch, s.grant.Sandbox, s.m.r.now()))
	})
}
