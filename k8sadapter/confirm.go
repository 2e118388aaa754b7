package k8sadapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandvol/sandvol/volume"
)

// Token stands for a resolution. It can be stored as JSON and used by another process.
type Token struct {
	Namespace string  `json:"namespace"`
	Nonce     string  `json:"nonce"`
	Grants    []Grant `json:"grants,omitempty"`
}

// Grant is one volume of a resolution. The UID tells it from a later PersistentVolume of the same name.
type Grant struct {
	PV  string    `json:"pv"`
	UID types.UID `json:"uid"`
	// Lease and Version are set if only one may have the volume: the lease's name, and its resource version as the
	// resolution wrote it. The lease is the resolution's as long as it has that version.
	Lease   string `json:"lease,omitzero"`
	Version string `json:"version,omitzero"`
}

// check refuses a token that no Resolve has made, such as one that was lost on the way: without a nonce it would confirm nothing
// with success, and release leases that are nobody's.
func (t Token) check() error {
	if t.Namespace == "" || t.Nonce == "" {
		return fmt.Errorf("%w: token: namespace %q, nonce %q: neither may be empty", volume.ErrInvalid, t.Namespace, t.Nonce)
	}
	return nil
}

func compareLeases(x, y *corev1.PersistentVolume) int {
	return strings.Compare(writerLease(x.Spec.CSI.Driver, x.Spec.CSI.VolumeHandle),
		writerLease(y.Spec.CSI.Driver, y.Spec.CSI.VolumeHandle))
}

// reserveAll takes the leases of what only one may have, and then looks for users that came without one. Whoever comes
// later finds the lease; whoever came before has stored its use. The token has every lease that was taken, also on an error.
func (a *Adapter) reserveAll(ctx context.Context, token *Token, h Holder, mounts []resolved) error {
	for _, m := range mounts {
		if m.share == shared {
			token.Grants = append(token.Grants, Grant{PV: m.pv.Name, UID: m.pv.UID})
		}
	}
	exclusive := byLease(mounts)
	if len(exclusive) == 0 {
		return nil
	}
	names := make([][]string, len(exclusive)) // nil where a lease could not be taken
	var faults error
	for i, m := range exclusive {
		l, before, err := a.reserve(ctx, token, h, m)
		if errors.Is(err, volume.ErrConflict) {
			faults = errors.Join(faults, at(m.Mount, err))
			continue
		}
		if err != nil {
			return at(m.Mount, err)
		}
		token.Grants = append(token.Grants, Grant{PV: m.pv.Name, UID: m.pv.UID, Lease: l.Name, Version: l.ResourceVersion})
		names[i] = a.aliases(m.pv, before)
	}
	uses, err := a.uses(ctx)
	if err != nil {
		return cmp.Or(faults, err) // who has one of them is an answer already
	}
	for i, m := range exclusive {
		if names[i] != nil {
			faults = errors.Join(faults, at(m.Mount, conflict(m, h, names[i], uses)))
		}
	}
	return faults
}

// aliases returns the names of the PersistentVolumes that are known to be the same storage.
func (a *Adapter) aliases(pv *corev1.PersistentVolume, before string) []string {
	names := []string{pv.Name}
	if before != "" {
		names = append(names, before)
	}
	for _, other := range a.cache.all(byHandle, handleKey(pv)) {
		names = append(names, other.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// conflict finds a use, not the holder's own, that a mount cannot be beside.
func conflict(m resolved, h Holder, names []string, uses []Use) error {
	owner := m.pv.Labels[OwnerLabel]
	for _, u := range uses {
		other := slices.ContainsFunc(names, func(name string) bool { return u.of(name, owner) })
		if other && !u.by(h) && !m.share.allows(u) {
			return writerExists(m.pv, u.Holder)
		}
	}
	return nil
}

// writerExists names the other one only to its own namespace.
func writerExists(pv *corev1.PersistentVolume, h Holder) error {
	if h.Namespace == pv.Labels[OwnerLabel] && h.Name != "" {
		return refuse(pv.Name, WriterExists, "is in use by %s", h)
	}
	return refuse(pv.Name, WriterExists, "is in use by another sandbox")
}

// reserve takes the lease of one volume, from nobody, from the holder itself, or from a resolution that is over. before is
// the PersistentVolume that the lease was about.
func (a *Adapter) reserve(ctx context.Context, token *Token, h Holder, m resolved) (
	l *coordinationv1.Lease, before string, err error) {
	wanted := newWriterLease(m.pv, token.Nonce, h, a.now())
	for range tries {
		l, err = a.cfg.Leases.Create(ctx, wanted, metav1.CreateOptions{})
		if err == nil {
			a.lapsed(l) // seen from now on
			return l, before, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, "", unavailable("create a lease", err)
		}
		there, err := a.cfg.Leases.Get(ctx, wanted.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, "", unavailable("get a lease", err)
		}
		before = there.Annotations[pvAnnotation]
		if err := a.over(ctx, there, h, m); err != nil {
			return nil, "", err
		}
		if l, err = a.updateLease(ctx, there, wanted); l != nil || err != nil {
			if l != nil {
				a.lapsed(l)
			}
			return l, before, err
		}
		// Somebody else was faster.
		if err := pause(ctx); err != nil {
			return nil, "", err
		}
	}
	return nil, "", writerExists(m.pv, Holder{})
}

// over returns nil if a lease may be taken from who has it.
func (a *Adapter) over(ctx context.Context, l *coordinationv1.Lease, h Holder, m resolved) error {
	if l.Annotations[stateAnnotation] == stateOpen {
		// Nothing may have been asked for on behalf of nobody: without a name nobody is the same.
		if own := leaseHolder(l) == h && h != (Holder{}); own || a.lapsed(l) {
			return nil
		}
		return writerExists(m.pv, leaseHolder(l))
	}
	// It was confirmed, so whatever came of it is stored by now. Looking before it is taken over keeps it, with the
	// PersistentVolume that it names, where somebody still uses that.
	uses, err := a.uses(ctx)
	if err != nil {
		return err
	}
	return conflict(m, h, []string{l.Annotations[pvAnnotation]}, uses)
}

// Confirm is called when the mounts of a resolution are stored, in a claim or in a sandbox's annotation, and before anything
// is mounted. If it fails, the host removes what it stored and calls Release; the sandbox must not run with the mounts. It
// can be repeated.
//
// It fails with volume.ErrNotFound if a volume was deleted since, volume.ErrConflict if the resolution has lapsed, and as
// Resolve does if a volume cannot be mounted any more. A deletion under way that has not yet taken effect is stopped.
func (a *Adapter) Confirm(ctx context.Context, t Token) (err error) {
	defer a.observed(OpConfirm, a.now(), &err)
	if err := t.check(); err != nil {
		return err
	}
	for _, g := range t.Grants {
		if err := a.confirmPV(ctx, t.Namespace, g); err != nil {
			return err
		}
	}
	for _, g := range t.Grants {
		if g.Lease == "" {
			continue
		}
		if err := a.confirmLease(ctx, t, g); err != nil {
			return err
		}
	}
	return nil
}

// confirmPV reads the PersistentVolume after the mount was stored: see Delete.
func (a *Adapter) confirmPV(ctx context.Context, namespace string, g Grant) error {
	for range tries {
		pv, err := a.live(ctx, g.PV)
		switch {
		case err != nil:
			return err
		case pv == nil, pv.UID != g.UID, !owned(pv, namespace):
			return absent(g.PV)
		}
		if err := a.checkMount(ctx, pv, namespace); err != nil {
			return err
		}
		if pv.Annotations[deletingAnnotation] == "" {
			return nil
		}
		// Whoever deletes finds its flag gone, begins again, and then finds the mount.
		if updated, err := a.removeFlag(ctx, pv); updated != nil || err != nil {
			return err
		}
	}
	return refuse(g.PV, Deleting, "is being deleted")
}

func (a *Adapter) confirmLease(ctx context.Context, t Token, g Grant) error {
	l, err := a.cfg.Leases.Get(ctx, g.Lease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return refuse(g.PV, Replaced, "was given to another resolution or released")
	case err != nil:
		return unavailable("get a lease", err)
	case l.Annotations[nonceAnnotation] != t.Nonce:
		return refuse(g.PV, Replaced, "was given to another resolution or released")
	case l.Annotations[stateAnnotation] == stateConfirmed:
		return nil // by an earlier call
	case l.ResourceVersion != g.Version:
		return refuse(g.PV, Replaced, "was given to another resolution or released")
	case a.lapsed(l):
		return refuse(g.PV, Lapsed, "was resolved more than %s ago", ConfirmTime)
	}
	confirmed := l.DeepCopy()
	confirmed.Annotations[stateAnnotation] = stateConfirmed
	updated, err := a.updateLease(ctx, l, confirmed)
	if err != nil {
		return err
	}
	if updated == nil {
		return refuse(g.PV, Replaced, "was given to another resolution or released")
	}
	return nil
}

// Release gives up a resolution: its mounts were not stored, or have been removed. It can be repeated. A sandbox that ends
// needs none, since a confirmed resolution keeps nobody out.
func (a *Adapter) Release(ctx context.Context, t Token) (err error) {
	defer a.observed(OpRelease, a.now(), &err)
	if err := t.check(); err != nil {
		return err
	}
	return a.release(ctx, t)
}

func (a *Adapter) release(ctx context.Context, t Token) (errs error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	for _, g := range t.Grants {
		if g.Lease == "" {
			continue
		}
		l, err := a.cfg.Leases.Get(ctx, g.Lease, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = errors.Join(errs, unavailable("get a lease", err))
		case l.Annotations[nonceAnnotation] == t.Nonce:
			errs = errors.Join(errs, a.deleteLease(ctx, l))
		}
	}
	return errs
}
