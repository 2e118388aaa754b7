package k8sadapter

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// tries bounds how often an operation begins again because an object was changed under it.
	tries = 30
	// flagTime is how old a flag has to be before a mount removes it. It is only comfort: whoever set the flag and is slow
	// finds it gone when it deletes.
	flagTime = 2 * time.Minute
	// cleanTime bounds what is put in order after a request has ended.
	cleanTime = 10 * time.Second
)

// Delete removes a volume from its namespace, as Config.Delete says, unless it is in use: then it is an InUseError
// that names the users in the namespace.
//
// A mount may come at any moment, and nothing that holds both sides can be locked. So each side writes first and reads
// then: Delete flags the PersistentVolume and then looks for users; a mount is stored and then looks at the PersistentVolume
// (Confirm). The API server orders the writes, so at least one side sees the other. A mount that sees the flag removes it,
// and Delete's last step is refused by the server unless the flag is as Delete has set it: the mount wins.
func (a *Adapter) Delete(ctx context.Context, namespace, ref string) (err error) {
	defer a.observed(OpDelete, a.now(), &err)
	nonce := uuid.NewString()
	for attempt := range tries {
		pv, err := a.find(ctx, namespace, ref, true)
		if err != nil {
			return err
		}
		if pv.DeletionTimestamp != nil && a.cfg.Delete == DeletePV {
			return nil // finalizers hold it; there is nothing left to do
		}
		done, err := a.tryDelete(ctx, pv, nonce, attempt)
		if done || err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			a.unflag(ctx, pv, nonce)
			return err
		}
	}
	return refuse(shorten(ref), Contended, "is changed all the time")
}

// tryDelete makes one attempt. It is not done, without an error, if the PersistentVolume was changed meanwhile.
func (a *Adapter) tryDelete(ctx context.Context, pv *corev1.PersistentVolume, nonce string, attempt int) (done bool, err error) {
	// Another deletion of the same volume is let finish. One that died is taken over.
	if flag := pv.Annotations[deletingAnnotation]; flag != "" && !flagOf(flag, nonce) && attempt < tries/3 && !a.oldFlag(flag) {
		return false, nil
	}
	flagged, err := a.updatePV(ctx, pv, func(pv *corev1.PersistentVolume) {
		setAnnotation(pv, deletingAnnotation, nonce+" "+a.now().UTC().Format(time.RFC3339))
	})
	if flagged == nil || err != nil {
		return false, err
	}
	uses, err := a.users(ctx, flagged)
	if err == nil && len(uses) > 0 {
		err = inUse(flagged, uses)
	}
	if err == nil {
		done, err = a.remove(ctx, flagged)
	}
	if err != nil {
		a.unflag(ctx, flagged, nonce)
		return false, err
	}
	if done {
		a.forget(ctx, flagged)
	}
	return done, nil
}

// remove is the last step. It takes effect only on the very state that was flagged.
func (a *Adapter) remove(ctx context.Context, pv *corev1.PersistentVolume) (done bool, err error) {
	if a.cfg.Delete == Unregister {
		updated, err := a.updatePV(ctx, pv, func(pv *corev1.PersistentVolume) {
			delete(pv.Labels, OwnerLabel)
			delete(pv.Labels, NameLabel)
			delete(pv.Annotations, deletingAnnotation)
		})
		return updated != nil, err
	}
	err = a.cfg.PersistentVolumes.Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &pv.UID, ResourceVersion: &pv.ResourceVersion}})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil
	}
	return false, unavailable("delete PersistentVolume", err)
}

// updatePV changes a PersistentVolume if it is still as it was read. It returns nil without an error if it is not.
func (a *Adapter) updatePV(ctx context.Context, pv *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) (
	*corev1.PersistentVolume, error) {
	changed := pv.DeepCopy()
	change(changed)
	updated, err := a.cfg.PersistentVolumes.Update(ctx, changed, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, unavailable("update PersistentVolume", err)
	}
	return updated, nil
}

func setAnnotation(pv *corev1.PersistentVolume, key, value string) {
	if pv.Annotations == nil {
		pv.Annotations = map[string]string{}
	}
	pv.Annotations[key] = value
}

// unflag removes the flag of a deletion that is given up, if it is still there, so that mounts need not wait. It is done
// even if the request has ended; if it fails, the flag only ages.
func (a *Adapter) unflag(ctx context.Context, pv *corev1.PersistentVolume, nonce string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	name := pv.Name
	for range tries {
		now, err := a.live(ctx, name)
		if err != nil || now == nil || !flagOf(now.Annotations[deletingAnnotation], nonce) {
			return
		}
		if updated, err := a.removeFlag(ctx, now); updated != nil || err != nil {
			return
		}
	}
}

func (a *Adapter) removeFlag(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return a.updatePV(ctx, pv, func(pv *corev1.PersistentVolume) { delete(pv.Annotations, deletingAnnotation) })
}

func flagOf(flag, nonce string) bool { return strings.HasPrefix(flag, nonce+" ") }

// oldFlag reports whether a flag is one that nobody is going to remove.
func (a *Adapter) oldFlag(flag string) bool {
	_, stamp, _ := strings.Cut(flag, " ")
	at, err := time.Parse(time.RFC3339, stamp)
	return err != nil || a.now().Sub(at) > flagTime
}

// forget removes the leases of a volume that is gone. Those that stay behind do no harm: they are found to be stale.
func (a *Adapter) forget(ctx context.Context, pv *corev1.PersistentVolume) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	for _, ref := range refsOf(pv.Name, pv.Labels[NameLabel]) {
		a.dropLease(ctx, refLease(pv.Labels[OwnerLabel], ref), pv.UID)
	}
	if pv.Spec.CSI != nil {
		a.dropLease(ctx, writerLease(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle), pv.UID)
	}
}

// dropLease deletes a lease if it is about a PersistentVolume with this UID and no resolution is open.
func (a *Adapter) dropLease(ctx context.Context, name string, uid types.UID) {
	l, err := a.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil || l.Annotations[uidAnnotation] != string(uid) || l.Annotations[stateAnnotation] == stateOpen {
		return
	}
	if err := a.deleteLease(ctx, l); err != nil {
		a.log.WarnContext(ctx, "a stale lease stays behind", "lease", name, "error", err)
	}
}
