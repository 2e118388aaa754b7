package k8sadapter

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InUse returns who uses a volume of the namespace, as the API server has it now: claims, sandboxes, and resolutions that
// are not confirmed yet. Users of other namespaces have no name.
func (a *Adapter) InUse(ctx context.Context, namespace, ref string) ([]Use, error) {
	pv, err := a.find(ctx, namespace, ref, true)
	if err != nil {
		return nil, err
	}
	uses, err := a.users(ctx, pv)
	for i := range uses {
		uses[i].Raw = ""
		if uses[i].Holder.Namespace != namespace {
			uses[i].Holder, uses[i].Via = Holder{Kind: uses[i].Holder.Kind}, Holder{}
		}
	}
	return uses, err
}

// users returns who uses a PersistentVolume now. Whatever cannot be read counts as in use: it is an error.
func (a *Adapter) users(ctx context.Context, pv *corev1.PersistentVolume) ([]Use, error) {
	all, err := a.uses(ctx)
	if err != nil {
		return nil, err
	}
	owner := pv.Labels[OwnerLabel]
	uses := slices.DeleteFunc(all, func(u Use) bool { return !u.of(pv.Name, owner) })
	open, err := a.openResolution(ctx, pv)
	if err != nil {
		return nil, err
	}
	return append(uses, open...), nil
}

func (a *Adapter) uses(ctx context.Context) ([]Use, error) {
	all, err := a.cfg.Usage.Uses(ctx)
	if err != nil {
		return nil, unavailable("find the users of volumes", err)
	}
	for _, u := range all {
		if u.Unreadable {
			a.observe(Observation{Operation: OpUse, Result: ResultUnreadable})
			a.log.WarnContext(ctx, "what an object mounts cannot be read: it counts as a user", "object", u.Holder.String())
		}
	}
	return all, nil
}

// openResolution returns the resolution of a PersistentVolume that somebody has and has not confirmed yet.
func (a *Adapter) openResolution(ctx context.Context, pv *corev1.PersistentVolume) ([]Use, error) {
	if pv.Spec.CSI == nil {
		return nil, nil
	}
	name := writerLease(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
	l, err := a.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, unavailable("find a resolution", err)
	case l.Annotations[stateAnnotation] != stateOpen, l.Annotations[pvAnnotation] != pv.Name,
		l.Annotations[uidAnnotation] != string(pv.UID), a.lapsed(l):
		return nil, nil
	}
	return []Use{{Holder: leaseHolder(l), PV: pv.Name}}, nil
}

// inUse is the error for a volume that cannot be deleted. It names users of the volume's own namespace only.
func inUse(pv *corev1.PersistentVolume, uses []Use) error {
	e := &InUseError{Volume: pv.Name}
	for _, u := range uses {
		switch {
		case u.Holder.Namespace != pv.Labels[OwnerLabel] || u.Holder.Name == "":
			e.Unnamed++
		case !slices.Contains(e.Users, u.Holder):
			e.Users = append(e.Users, u.Holder)
		}
	}
	return e
}
