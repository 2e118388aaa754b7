package k8sadapter

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfirmTime is how long a resolution may stay unconfirmed. Whoever waits for it counts from when it first saw it, on its
// own clock: no clock is compared with another.
const ConfirmTime = 2 * time.Minute

// The states of a resolution, on its lease. A confirmed one reserves nothing: what was resolved is then found where it is
// used. It stays to tell which PersistentVolume of several with one handle that was.
const (
	stateOpen      = "open"
	stateConfirmed = "confirmed"
)

func newLease(name, role string, pv *corev1.PersistentVolume, nonce string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{roleLabel: role},
		Annotations: map[string]string{
			pvAnnotation: pv.Name, uidAnnotation: string(pv.UID), nonceAnnotation: nonce,
		},
	}}
}

// newWriterLease is the lease of an open resolution. Times in it are for people.
func newWriterLease(pv *corev1.PersistentVolume, nonce string, h Holder, now time.Time) *coordinationv1.Lease {
	l := newLease(writerLease(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle), roleWriter, pv, nonce)
	l.Annotations[stateAnnotation] = stateOpen
	identity := nonce
	if h != (Holder{}) {
		identity = string(h.Kind) + "/" + h.Namespace + "/" + h.Name
	}
	seconds, at := int32(ConfirmTime/time.Second), metav1.NewMicroTime(now)
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &at}
	return l
}

// leaseHolder returns who a resolution is for; without a name if its caller gave none.
func leaseHolder(l *coordinationv1.Lease) Holder {
	h := Holder{Kind: Resolving}
	if l.Spec.HolderIdentity == nil {
		return h
	}
	if parts := strings.Split(*l.Spec.HolderIdentity, "/"); len(parts) == 3 {
		h = Holder{Kind: Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
	}
	return h
}

// updateLease makes a lease what is wanted if it is still as it was read. It returns nil without an error if it is not.
func (a *Adapter) updateLease(ctx context.Context, l, wanted *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	changed := wanted.DeepCopy()
	changed.UID, changed.ResourceVersion = l.UID, l.ResourceVersion
	if l.Spec.LeaseTransitions != nil || wanted.Spec.HolderIdentity != nil {
		n := int32(1)
		if l.Spec.LeaseTransitions != nil {
			n += *l.Spec.LeaseTransitions
		}
		changed.Spec.LeaseTransitions = &n
	}
	updated, err := a.cfg.Leases.Update(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, unavailable("update a lease", err)
	}
	return updated, nil
}

// deleteLease deletes a lease if it is still as it was read. If it is not, it is somebody else's by now.
func (a *Adapter) deleteLease(ctx context.Context, l *coordinationv1.Lease) error {
	err := a.cfg.Leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return unavailable("delete a lease", err)
}

// seen remembers since when this process knows open resolutions as they are.
type seen struct {
	mu sync.Mutex
	at map[string]sighting
}

type sighting struct {
	id    string
	since time.Time
}

// maxSeen bounds what is remembered. What is forgotten is waited for anew.
const maxSeen = 4096

// lapsed reports whether a lease has not been changed for ConfirmTime while this process knew it.
func (a *Adapter) lapsed(l *coordinationv1.Lease) bool {
	now, id := a.now(), string(l.UID)+"/"+l.ResourceVersion
	a.seen.mu.Lock()
	defer a.seen.mu.Unlock()
	s, ok := a.seen.at[l.Name]
	if !ok || s.id != id {
		if a.seen.at == nil || len(a.seen.at) >= maxSeen {
			a.seen.at = map[string]sighting{}
		}
		a.seen.at[l.Name] = sighting{id, now}
		return false
	}
	return now.Sub(s.since) >= ConfirmTime
}
