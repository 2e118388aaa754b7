package volume

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// claimTries bounds how often a claim is judged again because somebody else appended to the name's log in between.
const claimTries = 16

// nameTakenError says which volume has a name. It is ErrExists.
type nameTakenError struct {
	name   string
	holder genlog.Generation[record.Volume]
}

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("name %q is taken by volume %s (%s)", e.name, e.holder.State.ID, e.holder.State.Status)
}

func (e *nameTakenError) Is(target error) bool { return target == ErrExists }

// nameHolder says what the newest generation of a name's log is, and which volume has the name by it: none if the volume is
// deleted, never came to be, or carries another name now.
type nameHolder struct {
	claim  genlog.Generation[record.Name] // zero: the name was never used
	taken  bool
	volume genlog.Generation[record.Volume]
}

func (m *Manager) lookupName(ctx context.Context, name string) (nameHolder, error) {
	claim, err := m.r.nameLog(m.tenant, name).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) {
		return nameHolder{}, nil
	}
	if err != nil {
		return nameHolder{}, fmt.Errorf("look up name %q: %w", name, err)
	}
	h := nameHolder{claim: claim}
	h.volume, err = m.volumeLog(claim.State.Volume).Newest(ctx)
	if errors.Is(err, genlog.ErrNotFound) {
		return h, nil
	}
	if err != nil {
		return h, fmt.Errorf("look up name %q: %w", name, err)
	}
	h.taken = h.volume.State.Carries(name)
	return h, nil
}

// claim points the name at a volume, unless another volume has it: then the error is a nameTakenError. The append is bound
// to the very generation that was judged, so of two that judge the same one, one wins and the other judges again.
func (m *Manager) claim(ctx context.Context, name string, want record.Name) error {
	h, err := m.lookupName(ctx, name)
	if err != nil {
		return err
	}
	return m.claimFrom(ctx, name, want, h)
}

// claimFrom is claim with a first judgement that was made before.
func (m *Manager) claimFrom(ctx context.Context, name string, want record.Name, h nameHolder) error {
	log := m.r.nameLog(m.tenant, name)
	for range claimTries {
		if h.taken && h.volume.State.ID != want.Volume {
			return &nameTakenError{name: name, holder: h.volume}
		}
		_, err := log.AppendNext(ctx, h.claim, record.Claim(want))
		if !errors.Is(err, genlog.ErrSuperseded) {
			return err
		}
		if h, err = m.lookupName(ctx, name); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: name %q is claimed by too many at once", ErrConflict, name)
}
