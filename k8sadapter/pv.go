package k8sadapter

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/volume"
)

// registered reports whether a PersistentVolume is a volume of some namespace.
func registered(pv *corev1.PersistentVolume) bool {
	return pv.Labels[OwnerLabel] != "" && pv.Labels[NameLabel] != ""
}

// owned reports whether a PersistentVolume is a volume of the namespace.
func owned(pv *corev1.PersistentVolume, namespace string) bool {
	return registered(pv) && pv.Labels[OwnerLabel] == namespace
}

// view is a PersistentVolume as a volume. A mode is shown only where it says the truth: one that many may write has none.
func (a *Adapter) view(pv *corev1.PersistentVolume) volume.Volume {
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	modes := make([]string, 0, len(pv.Spec.AccessModes))
	for _, m := range pv.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	v := volume.Volume{ID: pv.Name, Name: pv.Labels[NameLabel], Status: status(pv), Size: capacity.Value(),
		CreatedAt: pv.CreationTimestamp.Time, Labels: map[string]string{"accessModes": strings.Join(modes, ",")}}
	switch access := accessOf(pv); {
	case access == readMany:
		v.Mode = volume.ReadOnly
	case access != writeMany || a.cfg.Strict:
		v.Mode = volume.Exclusive
	}
	return v
}

// status is ready, or the first thing that keeps a volume from being mounted.
func status(pv *corev1.PersistentVolume) volume.Status {
	switch {
	case pv.DeletionTimestamp != nil:
		return volume.StatusDeleting
	case pv.Status.Phase == corev1.VolumeFailed:
		return volume.StatusFailed
	case pv.Status.Phase == corev1.VolumePending, pv.Status.Phase == "", pv.Status.Phase == corev1.VolumeReleased:
		return volume.StatusUploading // the API's word for not ready yet
	}
	return volume.StatusReady
}

// checkRegister says whether a PersistentVolume can become a volume of the namespace. One that is not ready yet can.
func (a *Adapter) checkRegister(ctx context.Context, pv *corev1.PersistentVolume, namespace string) error {
	if pv.DeletionTimestamp != nil {
		return refuse(pv.Name, Deleting, "is being deleted")
	}
	if err := a.checkDriver(ctx, pv); err != nil {
		return err
	}
	switch pv.Status.Phase {
	case corev1.VolumeFailed:
		return refuse(pv.Name, Failed, "failed to be reclaimed")
	case corev1.VolumeReleased:
		if !a.cfg.AcceptReleased {
			return releasedError(pv)
		}
	case corev1.VolumeBound:
		return checkBound(pv, namespace)
	}
	return nil
}

// checkMount says whether a PersistentVolume can be mounted by a sandbox of the namespace now.
func (a *Adapter) checkMount(ctx context.Context, pv *corev1.PersistentVolume, namespace string) error {
	if pv.DeletionTimestamp != nil {
		return refuse(pv.Name, Deleting, "is being deleted")
	}
	if err := a.checkDriver(ctx, pv); err != nil {
		return err
	}
	switch pv.Status.Phase {
	case corev1.VolumeAvailable:
		return nil
	case corev1.VolumeBound:
		return checkBound(pv, namespace)
	case corev1.VolumeReleased:
		return releasedError(pv)
	case corev1.VolumeFailed:
		return refuse(pv.Name, Failed, "failed to be reclaimed")
	}
	return refuse(pv.Name, NotReady, "is pending")
}

// checkBound refuses a PersistentVolume whose data belongs to a claim of another namespace. The message does not say whose.
func checkBound(pv *corev1.PersistentVolume, namespace string) error {
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != namespace {
		return refuse(pv.Name, BoundElsewhere, "is bound to a claim of another namespace")
	}
	return nil
}

func releasedError(pv *corev1.PersistentVolume) error {
	return refuse(pv.Name, Released,
		"still has the data of a claim that is gone: an administrator has to clear spec.claimRef first")
}

// checkDriver says whether the way on which sandboxes mount volumes, a NodePublish of a file system and nothing before it,
// can mount this one.
func (a *Adapter) checkDriver(ctx context.Context, pv *corev1.PersistentVolume) error {
	csi := pv.Spec.CSI
	if csi == nil {
		return refuse(pv.Name, NotCSI, "is not of a CSI driver")
	}
	if mode := pv.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return refuse(pv.Name, BlockMode, "is a block device; sandboxes mount file systems")
	}
	if _, ok := a.cfg.Drivers[csi.Driver]; !ok {
		return refuse(pv.Name, DriverRefused, "is of driver %q, which sandboxes here cannot mount", csi.Driver)
	}
	if ref := csi.NodePublishSecretRef; ref != nil && !slices.Contains(a.cfg.SecretNamespaces, ref.Namespace) {
		return refuse(pv.Name, SecretNamespace, "needs a secret of a namespace from which none may be used")
	}
	return a.checkPublishOnly(ctx, pv)
}

// checkPublishOnly refuses what has to be staged or attached first, because nothing on the way to a sandbox does that.
func (a *Adapter) checkPublishOnly(ctx context.Context, pv *corev1.PersistentVolume) error {
	csi := pv.Spec.CSI
	if csi.NodeStageSecretRef != nil || csi.ControllerPublishSecretRef != nil {
		if a.cfg.PublishOnly {
			return refuse(pv.Name, NeedsStaging, "has to be staged or attached on a node first")
		}
		a.log.WarnContext(ctx, "volume has a secret for staging or attaching, which sandboxes do not use", "volume", pv.Name)
	}
	if !a.cfg.PublishOnly {
		return nil
	}
	driver, err := a.cfg.CSIDrivers.Get(ctx, csi.Driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return unavailable("get CSIDriver "+csi.Driver, err)
	case driver.Spec.AttachRequired != nil && !*driver.Spec.AttachRequired:
		return nil
	}
	// No object, and no field, mean that the driver attaches.
	return refuse(pv.Name, NeedsStaging, "is of a driver that attaches volumes to nodes first")
}

// checkSecret asks the host whether the secret of a volume exists. What is missing is not told to the tenant.
func (a *Adapter) checkSecret(ctx context.Context, pv *corev1.PersistentVolume) error {
	ref := pv.Spec.CSI.NodePublishSecretRef
	if ref == nil || a.cfg.CheckSecret == nil {
		return nil
	}
	err := a.cfg.CheckSecret(ctx, *ref)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	a.log.WarnContext(ctx, "a volume's secret cannot be used", "volume", pv.Name, "error", err)
	return refuse(pv.Name, SecretMissing, "has credentials that are not there yet")
}

// warnRegister logs what is allowed and often a mistake.
func (a *Adapter) warnRegister(ctx context.Context, pv *corev1.PersistentVolume) {
	if p := pv.Spec.PersistentVolumeReclaimPolicy; p != corev1.PersistentVolumeReclaimRetain {
		a.log.WarnContext(ctx, "registered volume is not retained: its data goes when a claim that is bound to it goes",
			"volume", pv.Name, "reclaimPolicy", string(p))
	}
	if pv.Spec.ClaimRef == nil {
		// The binder gives an available volume to any claim of any tenant that fits.
		a.log.WarnContext(ctx, "registered volume has no claimRef: keep its storage class out of tenants' reach",
			"volume", pv.Name, "storageClass", pv.Spec.StorageClassName)
	}
	for _, other := range a.cache.all(byHandle, handleKey(pv)) {
		if other.Name != pv.Name {
			a.log.WarnContext(ctx, "two volumes are the same storage: they share one writer", "volume", pv.Name,
				"other", other.Name)
		}
	}
}
