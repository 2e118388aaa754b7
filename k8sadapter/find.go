package k8sadapter

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/volume"
)

// Get returns a volume of the namespace by its id, which is the PersistentVolume's name, or by its name. It is answered from
// the watch; on a miss, one read of the API server finds what was registered a moment ago.
func (a *Adapter) Get(ctx context.Context, namespace, ref string) (v volume.Volume, err error) {
	defer a.observed(OpGet, a.now(), &err)
	pv, err := a.find(ctx, namespace, ref, false)
	if err != nil {
		return v, err
	}
	return a.view(pv), nil
}

// List yields the namespace's volumes in the order of their ids, from the watch. No request is sent.
func (a *Adapter) List(ctx context.Context, namespace string, o volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return func(yield func(volume.Volume, error) bool) {
		began := a.now()
		pvs, err := a.list(namespace, o)
		a.observed(OpList, began, &err)
		if err != nil {
			yield(volume.Volume{}, err)
			return
		}
		left := o.Limit
		for _, pv := range pvs {
			if ctx.Err() != nil {
				yield(volume.Volume{}, ctx.Err())
				return
			}
			v := a.view(pv)
			if !matches(v, o) {
				continue
			}
			if left--; !yield(v, nil) || left == 0 {
				return
			}
		}
	}
}

// list returns what a listing may yield. Only references are sorted: a volume is made when its turn comes.
func (a *Adapter) list(namespace string, o volume.ListOptions) ([]*corev1.PersistentVolume, error) {
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	if o.Limit < 0 {
		return nil, fmt.Errorf("%w: limit %d: must not be negative", volume.ErrInvalid, o.Limit)
	}
	if err := a.cache.check(); err != nil {
		return nil, err
	}
	pvs := slices.DeleteFunc(a.cache.all(byOwner, namespace), func(pv *corev1.PersistentVolume) bool { return pv.Name <= o.After })
	slices.SortFunc(pvs, byID)
	return pvs, nil
}

func byID(x, y *corev1.PersistentVolume) int { return cmp.Compare(x.Name, y.Name) }

func matches(v volume.Volume, o volume.ListOptions) bool {
	for k, want := range o.Labels {
		if got, ok := v.Labels[k]; !ok || got != want {
			return false
		}
	}
	return (o.Status == "" || o.Status == v.Status) && (o.Mode == "" || o.Mode == v.Mode)
}

// find is the one place where a reference becomes a volume of a namespace; every operation goes through it, so isolation is
// decided here alone. With live set, the PersistentVolume is as the API server has it now.
//
// What does not exist, what belongs to somebody else and what cannot exist take the same way: a miss in the cache, one read
// of a lease whose name is a hash, and the same error. Neither the answer nor the requests tell them apart.
func (a *Adapter) find(ctx context.Context, namespace, ref string, live bool) (*corev1.PersistentVolume, error) {
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	if err := a.cache.check(); err != nil {
		return nil, err
	}
	pv, err := a.cached(namespace, ref)
	if err != nil {
		return nil, err
	}
	if pv != nil && !live {
		return pv, nil
	}
	if pv != nil {
		now, err := a.live(ctx, pv.Name)
		if err != nil || now != nil && means(now, namespace, ref) {
			return now, err
		}
		// It changed hands or name since the watch saw it.
	}
	return a.findLive(ctx, namespace, ref)
}

// cached looks a reference up in the cache, as an id first.
func (a *Adapter) cached(namespace, ref string) (*corev1.PersistentVolume, error) {
	if pv := a.cache.byID(ref); pv != nil {
		if owned(pv, namespace) {
			return pv, nil
		}
		a.foreign(OpGet)
	}
	named := a.cache.all(byName, nameKey(namespace, ref))
	if len(named) > 1 {
		// Labels that somebody else set. To mount either of two would be a guess.
		slices.SortFunc(named, byID)
		return nil, refuse(named[0].Name, Ambiguous, "and volume %q are both named %q: use an id", named[1].Name, ref)
	}
	if len(named) == 1 {
		return named[0], nil
	}
	return nil, nil
}

// findLive asks the API server what a reference means.
func (a *Adapter) findLive(ctx context.Context, namespace, ref string) (*corev1.PersistentVolume, error) {
	l, err := a.cfg.Leases.Get(ctx, refLease(namespace, ref), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, absent(ref)
	case err != nil:
		return nil, unavailable("look up a volume", err)
	}
	pv, err := a.live(ctx, l.Annotations[pvAnnotation])
	switch {
	case err != nil:
		return nil, err
	case pv == nil, string(pv.UID) != l.Annotations[uidAnnotation], !means(pv, namespace, ref):
		return nil, absent(ref)
	}
	return pv, nil
}

// means reports whether a reference means this PersistentVolume in a namespace.
func means(pv *corev1.PersistentVolume, namespace, ref string) bool {
	return owned(pv, namespace) && (pv.Name == ref || pv.Labels[NameLabel] == ref)
}

// live reads a PersistentVolume from the API server; nil if there is none. The read has no resource version, so it is as
// new as the last write that was acknowledged to anybody.
func (a *Adapter) live(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	pv, err := a.cfg.PersistentVolumes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, unavailable("get PersistentVolume", err)
	}
	return pv, nil
}
