package mount

import (
	"context"
	"errors"
	"fmt"
)

// Guest is a host's way into a running sandbox that has a kernel of its own: an agent in it, as a rule. Package mount/guest
// has one that speaks HTTP. ErrUnsupported means that there is no such agent: the sandbox is then cut as after a crash.
type Guest interface {
	// Freeze brings the file systems on drives to rest, all of them before it returns; thaw lets them go on, and answers an
	// error if they have not been at rest all the time. The context bounds the freeze.
	Freeze(ctx context.Context, drives []Drive) (thaw func() error, err error)
	// PatchDrives makes the guest mount exactly these drives at their paths. A drive that is mounted already with the same
	// path, volume and epoch stays as it is, so the call may be repeated.
	PatchDrives(ctx context.Context, drives []Drive) error
}

// WithGuest gives the node a way into its sandboxes, instead of a Freezer; guest may return nil for one that has none.
func WithGuest(guest func(ID) Guest) Option { return func(s *settings) { s.guest = guest } }

// PatchDrives makes a running sandbox's guest mount its drives: after Create, and after Resume, when a guest that was
// suspended with file systems mounted has other devices under them. The host calls it when the guest is up. It is
// ErrUnsupported if the guest has no agent.
func (n *Node) PatchDrives(ctx context.Context, id ID) error {
	return n.do(ctx, "patch the drives of", id, func(sb *sandbox) error {
		if !sb.running {
			return fmt.Errorf("%w: it does not run on node %s", ErrNotFound, n.repo.Node())
		}
		g := n.guestOf(id)
		if g == nil {
			return fmt.Errorf("%w: the sandbox has no guest agent", ErrUnsupported)
		}
		return g.PatchDrives(ctx, sb.list())
	})
}

func (n *Node) guestOf(id ID) Guest {
	if n.guest == nil {
		return nil
	}
	return n.guest(id)
}

// freeze brings drives of a running sandbox to rest through its guest or the host's Freezer. thaw is nil if there is neither.
func (n *Node) freeze(ctx context.Context, id ID, drives []*drive) (thaw func() error, err error) {
	if g := n.guestOf(id); g != nil {
		thaw, err = g.Freeze(ctx, listOf(drives))
	} else if n.freezer != nil {
		thaw, err = n.freezer(ctx, id)
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		n.log.Warn("the sandbox cannot be frozen: its drives are cut as after a crash", "sandbox", id.String(), "error", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("freeze: %w", err)
	}
	return thaw, nil
}
