package k8sadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandvol/sandvol/volume"
)

// Registration says which PersistentVolume becomes a volume, and what it is to be called.
type Registration struct {
	PV string
	// Name is unique in the namespace, among names and ids: 1 to 63 characters of A-Z a-z 0-9 - _ . that begin and end with
	// a letter or digit, as label values are. Empty: the name of the PersistentVolume, or what it is called already.
	Name string
}

// name is what the volume is called if it is not registered yet.
func (r Registration) name() string {
	if r.Name == "" {
		return r.PV
	}
	return r.Name
}

func (r Registration) check() error { return errors.Join(checkPVName(r.PV), r.checkName()) }

func (r Registration) checkName() error {
	if r.name() == "" || len(validation.IsValidLabelValue(r.name())) > 0 {
		return fmt.Errorf("%w: name %q: must be 1 to 63 characters of A-Z a-z 0-9 - _ . and begin and end with a letter or digit",
			volume.ErrInvalid, shorten(r.name()))
	}
	return nil
}

func checkPVName(pv string) error {
	if len(validation.IsDNS1123Subdomain(pv)) > 0 {
		return fmt.Errorf("%w: PV %q: must be a DNS subdomain, as names of PersistentVolumes are: at most 253 characters of "+
			"a-z 0-9 - . that begin and end with a letter or digit", volume.ErrInvalid, shorten(pv))
	}
	return nil
}

// Register makes an existing PersistentVolume a volume of the namespace, by two labels on it. Registering again what the
// namespace has already returns it as it is; under another name than it has, that is a VolumeError with NamedOtherwise. A
// PersistentVolume that does not exist is volume.ErrNotFound, and so is one of another namespace; a name that the namespace
// uses is volume.ErrExists.
func (a *Adapter) Register(ctx context.Context, namespace string, r Registration) (v volume.Volume, err error) {
	defer a.observed(OpRegister, a.now(), &err)
	if err := errors.Join(checkNamespace(namespace), r.check()); err != nil {
		return v, err
	}
	nonce := uuid.NewString()
	for range tries {
		pv, err := a.tryRegister(ctx, namespace, r, nonce)
		if err != nil {
			a.giveBack(ctx, namespace, r, nonce)
			return v, err
		}
		if pv != nil {
			return a.view(pv), nil
		}
		if err := pause(ctx); err != nil {
			a.giveBack(ctx, namespace, r, nonce)
			return v, err
		}
	}
	a.giveBack(ctx, namespace, r, nonce)
	return v, refuse(r.PV, Contended, "is changed all the time")
}

// tryRegister makes one attempt. It returns nil without an error if the PersistentVolume was changed meanwhile.
//
// Labels are not unique. What makes a name unique is a lease, which one can create; see takeRef for why the
// PersistentVolume must be read before it and written after it.
func (a *Adapter) tryRegister(ctx context.Context, namespace string, r Registration, nonce string) (
	*corev1.PersistentVolume, error) {
	pv, err := a.live(ctx, r.PV)
	switch {
	case err != nil:
		return nil, err
	case pv == nil:
		return nil, absent(r.PV)
	case owned(pv, namespace) && pv.DeletionTimestamp == nil:
		if name := pv.Labels[NameLabel]; r.Name != "" && r.Name != name {
			return nil, refuse(pv.Name, NamedOtherwise, "is registered as %q already and cannot be %q too", name, r.Name)
		}
		return pv, nil
	case pv.Labels[OwnerLabel] != "" && pv.Labels[OwnerLabel] != namespace:
		a.foreign(OpRegister)
		return nil, absent(r.PV)
	case pv.Labels[OwnerLabel] == "" && a.cfg.MayRegister != nil && !a.cfg.MayRegister(namespace, pv):
		return nil, absent(r.PV)
	}
	if err := a.checkRegister(ctx, pv, namespace); err != nil {
		return nil, err
	}
	if err := a.checkLabels(ctx, namespace, r); err != nil {
		return nil, err
	}
	for _, ref := range refsOf(r.PV, r.name()) {
		if err := a.takeRef(ctx, namespace, ref, pv, nonce); err != nil {
			return nil, err
		}
	}
	updated, err := a.updatePV(ctx, pv, func(pv *corev1.PersistentVolume) {
		if pv.Labels == nil {
			pv.Labels = map[string]string{}
		}
		pv.Labels[OwnerLabel], pv.Labels[NameLabel] = namespace, r.name()
		delete(pv.Annotations, voidAnnotation)
		delete(pv.Annotations, deletingAnnotation)
	})
	if updated != nil {
		a.warnRegister(ctx, updated)
	}
	return updated, err
}

// refsOf is what a volume can be called by.
func refsOf(id, name string) []string {
	refs := []string{id, name}
	slices.Sort(refs) // everybody takes them in the same order
	return slices.Compact(refs)
}

// checkLabels finds volumes that somebody else has labelled, and that therefore have no lease.
func (a *Adapter) checkLabels(ctx context.Context, namespace string, r Registration) error {
	o := metav1.ListOptions{Limit: page, LabelSelector: OwnerLabel + "=" + namespace + "," + NameLabel}
	for {
		list, err := a.cfg.PersistentVolumes.List(ctx, o)
		if err != nil {
			return unavailable("list PersistentVolumes", err)
		}
		for i := range list.Items {
			other := &list.Items[i]
			if other.Name == r.PV || !registered(other) {
				continue
			}
			for _, ref := range refsOf(r.PV, r.name()) {
				if means(other, namespace, ref) {
					return exists(ref)
				}
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

func exists(name string) error { return fmt.Errorf("%w: volume %q", volume.ErrExists, name) }

// patience is how often takeRef looks at a registration under way before it takes it to be dead.
const patience = 50

// takeRef makes a reference mean a PersistentVolume in a namespace, or fails because it means another one.
//
// A lease may name a PersistentVolume that is not registered: its registration is under way, or has died, or the volume
// was deleted. One under way is waited for. To take over from one that seems dead, its PersistentVolume is changed first:
// the other reads it, takes the lease, and then writes what it read, so whichever order these come in, its write is refused
// and it begins again. Two volumes never get one name.
func (a *Adapter) takeRef(ctx context.Context, namespace, ref string, pv *corev1.PersistentVolume, nonce string) error {
	wanted := newLease(refLease(namespace, ref), roleRef, pv, nonce)
	waited, waitedFor := 0, ""
	for range 2 * patience {
		_, err := a.cfg.Leases.Create(ctx, wanted, metav1.CreateOptions{})
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return unavailable("create a lease", err)
		}
		l, err := a.cfg.Leases.Get(ctx, wanted.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return unavailable("get a lease", err)
		}
		if l.Annotations[nonceAnnotation] != waitedFor {
			waited, waitedFor = 0, l.Annotations[nonceAnnotation]
		}
		taken, err := a.takeOverRef(ctx, namespace, ref, l, wanted, waited >= patience)
		if taken || err != nil {
			return err
		}
		waited++
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return refuse(pv.Name, Contended, "cannot be called %q: others are taking the name", ref)
}

// takeOverRef takes a lease that exists. It is not taken, without an error, while somebody else may still want it.
func (a *Adapter) takeOverRef(ctx context.Context, namespace, ref string, l, wanted *coordinationv1.Lease, dead bool) (bool, error) {
	if !samePV(l, wanted) {
		other, err := a.live(ctx, l.Annotations[pvAnnotation])
		if err != nil {
			return false, err
		}
		same := other != nil && string(other.UID) == l.Annotations[uidAnnotation]
		switch {
		case same && means(other, namespace, ref):
			return false, exists(ref)
		case same && !dead:
			return false, nil
		case same:
			fenced, err := a.updatePV(ctx, other, func(pv *corev1.PersistentVolume) {
				setAnnotation(pv, voidAnnotation, wanted.Annotations[nonceAnnotation])
			})
			if fenced == nil || err != nil {
				return false, err
			}
		}
	}
	// Also if the lease is already about this PersistentVolume: whoever is about to take it over must find it changed.
	updated, err := a.updateLease(ctx, l, wanted)
	return updated != nil, err
}

func samePV(l, m *coordinationv1.Lease) bool {
	return l.Annotations[pvAnnotation] == m.Annotations[pvAnnotation] &&
		l.Annotations[uidAnnotation] == m.Annotations[uidAnnotation]
}

// giveBack removes the leases that a failed registration took. A registration of the same volume that goes on has taken
// them over, and they are its own.
func (a *Adapter) giveBack(ctx context.Context, namespace string, r Registration, nonce string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	pv, err := a.live(ctx, r.PV)
	if err != nil {
		return
	}
	for _, ref := range refsOf(r.PV, r.name()) {
		if pv != nil && means(pv, namespace, ref) {
			continue // the write that seemed to fail was made, or somebody else's was
		}
		l, err := a.cfg.Leases.Get(ctx, refLease(namespace, ref), metav1.GetOptions{})
		if err != nil || l.Annotations[nonceAnnotation] != nonce {
			continue
		}
		if err := a.deleteLease(ctx, l); err != nil {
			a.log.WarnContext(ctx, "a stale lease stays behind", "lease", l.Name, "error", err)
		}
	}
}
