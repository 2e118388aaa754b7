package k8sadapter

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandvol/sandvol/volume"
)

// Request asks for mounts in a sandbox.
type Request struct {
	Mounts []Mount
	// Holder is the claim or sandbox, of the request's namespace, that is to have the mounts, if its name is known yet. What it
	// has already is then no conflict, and a repeated Resolve takes over from its own earlier one.
	Holder Holder
	// Replicas is how many sandboxes a claim takes; 0 is 1. More than one cannot share what only one may write.
	Replicas int
	// TemplatePaths are where the sandbox's template mounts something already, absolute and clean.
	TemplatePaths []string
	// RuntimeClass is passed to Config.CanMount.
	RuntimeClass string
}

// Resolution is what a request resolves to. Nothing is mounted yet: the host stores Mounts or Annotation, calls Confirm, and
// lets the pipeline mount.
type Resolution struct {
	Mounts []MountConfig
	// Annotation is the exact value for the sandbox's annotation VolumeConfig, empty if there are no mounts.
	Annotation string
	// Volumes says for each mount what is mounted.
	Volumes []ResolvedVolume
	Token   Token
}

// ResolvedVolume is the storage behind a mount.
type ResolvedVolume struct {
	ID     string
	UID    types.UID
	Driver string
	// Handle is the CSI volume id.
	Handle string
	// SecretRef names the secret for the mount, nil if it needs none. Its content is for whoever mounts to read.
	SecretRef *corev1.SecretReference
	// NodeAffinity says on which nodes the storage can be reached, nil for all. It is a hint for whoever picks the sandbox:
	// elsewhere the mount fails.
	NodeAffinity *corev1.VolumeNodeAffinity
}

// Apply sets the claim's spec.dynamicVolumesMount. Without mounts the claim stays as it is.
func (r Resolution) Apply(claim *unstructured.Unstructured) error {
	if len(r.Mounts) == 0 {
		return nil
	}
	list := make([]any, 0, len(r.Mounts))
	for _, m := range r.Mounts {
		one := map[string]any{"pvName": m.PVName, "mountPath": m.MountPath}
		if m.MountID != "" {
			one["mountID"] = m.MountID
		}
		if m.SubPath != "" {
			one["subPath"] = m.SubPath
		}
		if m.ReadOnly {
			one["readOnly"] = true
		}
		if len(m.Attributes) > 0 {
			attributes := make(map[string]any, len(m.Attributes))
			for k, v := range m.Attributes {
				attributes[k] = v
			}
			one["attributes"] = attributes
		}
		list = append(list, one)
	}
	return unstructured.SetNestedSlice(claim.Object, list, "spec", "dynamicVolumesMount")
}

// resolved is one mount under way through Resolve.
type resolved struct {
	Mount
	pv       *corev1.PersistentVolume
	readOnly bool
	share    share
}

// Resolve finds the volumes of a request in the namespace, checks everything that can be checked before a sandbox is taken,
// and keeps what only one may write from others until the resolution is confirmed, released, or lapses after ConfirmTime.
// All mounts resolve or none does; what is wrong with several is said at once, a line each: then the error is of the class of
// each. The same request resolves to the same bytes.
//
// Errors are volume.ErrNotFound, also for volumes of others; volume.ErrInvalid; volume.ErrNotReady; volume.ErrConflict, if
// somebody else writes; and volume.ErrUnavailable. A VolumeError says which volume and why.
func (a *Adapter) Resolve(ctx context.Context, namespace string, r Request) (res Resolution, err error) {
	defer a.observed(OpResolve, a.now(), &err)
	if err := errors.Join(checkNamespace(namespace), a.checkRequest(namespace, r)); err != nil {
		return res, err
	}
	mounts, err := a.findAll(ctx, namespace, r)
	if err != nil {
		return res, err
	}
	if err := checkTogether(mounts, r.Replicas); err != nil {
		return res, err
	}
	token := Token{Namespace: namespace, Nonce: uuid.NewString()}
	if err := a.reserveAll(ctx, &token, r.Holder, mounts); err != nil {
		return res, errors.Join(err, a.release(context.WithoutCancel(ctx), token))
	}
	res = describe(mounts)
	res.Token = token
	if res.Annotation, err = encode(res.Mounts); err != nil {
		return Resolution{}, errors.Join(err, a.release(context.WithoutCancel(ctx), token))
	}
	return res, nil
}

// checkRequest judges what is not about a single mount.
func (a *Adapter) checkRequest(namespace string, r Request) (faults error) {
	if len(r.Mounts) > a.cfg.MaxMounts {
		faults = fmt.Errorf("%w: %d mounts, at most %d allowed", volume.ErrInvalid, len(r.Mounts), a.cfg.MaxMounts)
	}
	if r.Replicas < 0 {
		faults = errors.Join(faults, fmt.Errorf("%w: Replicas %d: must not be negative", volume.ErrInvalid, r.Replicas))
	}
	for _, p := range r.TemplatePaths {
		if !strings.HasPrefix(p, "/") || path.Clean(p) != p || p == "/" {
			faults = errors.Join(faults, fmt.Errorf("%w: TemplatePaths: %q: must be absolute, clean and not the root",
				volume.ErrInvalid, shorten(p)))
		}
	}
	return errors.Join(faults, r.Holder.check(namespace))
}

// check refuses a holder that could be taken for another one, or for nobody.
func (h Holder) check(namespace string) error {
	switch {
	case h == Holder{}:
		return nil
	case h.Kind != Claim && h.Kind != Sandbox:
		return fmt.Errorf("%w: Holder: kind %q: must be %q or %q", volume.ErrInvalid, shorten(string(h.Kind)), Claim, Sandbox)
	case h.Namespace != namespace:
		return fmt.Errorf("%w: Holder: namespace %q: must be that of the request, %q", volume.ErrInvalid,
			shorten(h.Namespace), namespace)
	case len(validation.IsDNS1123Subdomain(h.Name)) > 0:
		return fmt.Errorf("%w: Holder: name %q: must be a DNS subdomain, as names of objects are", volume.ErrInvalid,
			shorten(h.Name))
	}
	return nil
}

// checkPaths judges the paths of one mount, which needs no volume.
func (a *Adapter) checkPaths(r Request, i int) (faults []error) {
	m := r.Mounts[i]
	faults = append(faults, a.checkPath(m.Path), checkSubPath(m.SubPath))
	inTheWay := func(p, what string) {
		if m.Path != "" && p != "" && nested(m.Path, p) {
			faults = append(faults, refuse("", MountPath, "path %q is, holds or is inside %s", shorten(m.Path), what))
		}
	}
	// The pipeline mounts in any order. A mount inside another would end up in that other's storage.
	for _, o := range r.Mounts[:i] {
		inTheWay(o.Path, "the path of "+o.Where)
	}
	for _, p := range r.TemplatePaths {
		inTheWay(p, fmt.Sprintf("%q of the template", p))
	}
	return faults
}

func at(m Mount, fault error) error {
	if fault == nil || m.Where == "" {
		return fault
	}
	return fmt.Errorf("%s: %w", m.Where, fault)
}

// findAll finds the volumes and judges each mount by itself. All that is wrong is said at once.
func (a *Adapter) findAll(ctx context.Context, namespace string, r Request) (mounts []resolved, faults error) {
	for i, m := range r.Mounts {
		all := append(a.checkPaths(r, i), m.Fault)
		one := resolved{Mount: m}
		if m.Fault == nil { // else what the mount names may not have been read
			var err error
			one, err = a.findOne(ctx, namespace, r, m)
			if err != nil && !told(err) || ctx.Err() != nil {
				return nil, errors.Join(at(m, err), ctx.Err())
			}
			all = append(all, err)
		}
		for _, fault := range all {
			faults = errors.Join(faults, at(m, fault))
		}
		mounts = append(mounts, one)
	}
	return mounts, faults
}

// told reports whether an error is about what was asked for, and not about the cluster.
func told(err error) bool {
	return slices.ContainsFunc([]error{volume.ErrInvalid, volume.ErrNotFound, volume.ErrNotReady, volume.ErrConflict},
		func(class error) bool { return errors.Is(err, class) })
}

func (a *Adapter) findOne(ctx context.Context, namespace string, r Request, m Mount) (one resolved, err error) {
	one.Mount = m
	if one.pv, err = a.findRefs(ctx, namespace, m.Refs); err != nil {
		return one, err
	}
	if one.pv, err = a.unflagged(ctx, one.pv); err != nil {
		return one, err
	}
	if mode := a.view(one.pv).Mode; m.Mode != "" && m.Mode != string(mode) {
		return one, refuse(one.pv.Name, ModeRefused, "does not have mode %q, by its access modes", shorten(m.Mode))
	}
	if one.readOnly, one.share, err = a.settle(one.pv, m.ReadOnly); err != nil {
		return one, err
	}
	driver := ""
	if one.pv.Spec.CSI != nil {
		driver = one.pv.Spec.CSI.Driver
	}
	err = a.checkMount(ctx, one.pv, namespace)
	switch {
	case err != nil:
		return one, err
	case m.SubPath != "" && a.cfg.Drivers[driver].SubPathAttribute == "":
		return one, refuse(one.pv.Name, SubPath, "is of driver %q, which mounts whole volumes only", driver)
	case a.cfg.CanMount != nil && !a.cfg.CanMount(r.RuntimeClass, driver):
		return one, refuse(one.pv.Name, Unsupported, "cannot be mounted in sandboxes of this runtime")
	}
	return one, a.checkSecret(ctx, one.pv)
}

// findRefs finds the volume that all references mean, as the API server has it now.
func (a *Adapter) findRefs(ctx context.Context, namespace string, refs []Ref) (found *corev1.PersistentVolume, err error) {
	if len(refs) == 0 {
		return nil, fmt.Errorf("%w: names no volume", volume.ErrInvalid)
	}
	for i, ref := range refs {
		pv, err := a.find(ctx, namespace, ref.Ref, true)
		switch {
		case err != nil:
			return nil, err
		case ref.ID && pv.Name != ref.Ref:
			return nil, absent(ref.Ref)
		case i > 0 && pv.UID != found.UID:
			return nil, fmt.Errorf("%w: names two volumes, %q and %q", volume.ErrInvalid, refs[0].Ref, ref.Ref)
		}
		found = pv
	}
	return found, nil
}

// unflagged waits a moment for a deletion under way to end. A flag that was left behind is removed.
func (a *Adapter) unflagged(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	name := pv.Name
	for range tries / 3 {
		flag := pv.Annotations[deletingAnnotation]
		if flag == "" {
			return pv, nil
		}
		if a.oldFlag(flag) {
			if updated, err := a.removeFlag(ctx, pv); updated != nil || err != nil {
				return updated, err
			}
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
		now, err := a.live(ctx, name)
		if err != nil {
			return nil, err
		}
		if now == nil || now.UID != pv.UID || !owned(now, pv.Labels[OwnerLabel]) {
			return nil, absent(name)
		}
		pv = now
	}
	return nil, refuse(name, Deleting, "is being deleted")
}

// checkTogether judges mounts of the same storage, which two PersistentVolumes can be, against each other.
func checkTogether(mounts []resolved, replicas int) (faults error) {
	for i, m := range mounts {
		if replicas > 1 && m.share != shared {
			faults = errors.Join(faults, at(m.Mount, refuse(m.pv.Name, ManyWriters,
				"can have one writer, and the claim takes %d sandboxes", replicas)))
		}
		for _, o := range mounts[:i] {
			if handleKey(m.pv) != handleKey(o.pv) || bothRead(m, o) || disjoint(m, o) {
				continue
			}
			faults = errors.Join(faults, at(m.Mount, refuse(m.pv.Name, MountedTwice, "is mounted at %q too", o.Path)))
		}
	}
	return faults
}

func bothRead(m, o resolved) bool {
	return m.readOnly && o.readOnly && m.share != sole && o.share != sole
}

// disjoint reports whether two mounts of what many may write are of different directories.
func disjoint(m, o resolved) bool {
	return m.share == shared && o.share == shared && m.SubPath != "" && o.SubPath != "" && !nested(m.SubPath, o.SubPath)
}

func describe(mounts []resolved) (r Resolution) {
	for _, m := range mounts {
		r.Mounts = append(r.Mounts, MountConfig{MountID: m.MountID, PVName: m.pv.Name, MountPath: m.Path, SubPath: m.SubPath,
			ReadOnly: m.readOnly, Attributes: m.Attributes})
		r.Volumes = append(r.Volumes, ResolvedVolume{ID: m.pv.Name, UID: m.pv.UID, Driver: m.pv.Spec.CSI.Driver,
			Handle: m.pv.Spec.CSI.VolumeHandle, SecretRef: m.pv.Spec.CSI.NodePublishSecretRef.DeepCopy(),
			NodeAffinity: m.pv.Spec.NodeAffinity.DeepCopy()})
	}
	return r
}

// byLease orders mounts as their leases are taken: everybody takes them in the same order.
func byLease(mounts []resolved) []resolved {
	var exclusive []resolved
	for _, m := range mounts {
		if m.share != shared {
			exclusive = append(exclusive, m)
		}
	}
	slices.SortFunc(exclusive, func(x, y resolved) int {
		return compareLeases(x.pv, y.pv)
	})
	return exclusive
}
