package volume

import "context"

// Quiet keeps a repository from doing anything by itself, so that a test decides when it happens.
func Quiet(s *settings) { s.quiet = true }

// Beat writes a heartbeat now, and reads the notices.
func (r *Repository) Beat(ctx context.Context) error {
	if err := r.beat(ctx); err != nil {
		return err
	}
	return r.readNotices(ctx)
}
