package k8sadapter

import (
	"context"
	"fmt"
	"iter"

	"github.com/sandvol/sandvol/volume"
)

// PVLabel is the label of a creation that names the PersistentVolume to register, where its name is not the volume's.
const PVLabel = "pvName"

// Tenant is the volumes of one namespace, with the methods that package e2bhttp wants of a tenant's volumes. It has no
// forks, snapshots and restores.
type Tenant struct {
	a         *Adapter
	namespace string
}

// Tenant returns the volumes of a namespace.
func (a *Adapter) Tenant(namespace string) (*Tenant, error) {
	if err := checkNamespace(namespace); err != nil {
		return nil, err
	}
	return &Tenant{a, namespace}, nil
}

// Create registers the PersistentVolume that the label PVLabel names, or else the one called as the volume is to be. What a
// PersistentVolume is, its size and mode, is fixed by who made it and cannot be asked for.
func (t *Tenant) Create(ctx context.Context, o volume.CreateOptions) (volume.Volume, error) {
	pv := o.Name
	for k, v := range o.Labels {
		if k != PVLabel {
			return volume.Volume{}, fmt.Errorf("%w: label %q: only %q can be given", volume.ErrInvalid, shorten(k), PVLabel)
		}
		pv = v
	}
	if o.Mode != "" || o.Size != 0 || o.Flush || o.Source != volume.Empty() {
		return volume.Volume{}, fmt.Errorf("%w: a registration takes no mode, size or source", volume.ErrUnsupported)
	}
	r := Registration{PV: pv, Name: o.Name}
	if r.checkName() == nil && checkPVName(pv) != nil {
		// To a caller who is not to learn which PersistentVolumes there are, one that cannot be is as absent as any other.
		return volume.Volume{}, absent(pv)
	}
	return t.a.Register(ctx, t.namespace, r)
}

// Get returns a volume by id or name.
func (t *Tenant) Get(ctx context.Context, ref string) (volume.Volume, error) {
	return t.a.Get(ctx, t.namespace, ref)
}

// List yields the volumes in the order of their ids.
func (t *Tenant) List(ctx context.Context, o volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return t.a.List(ctx, t.namespace, o)
}

// Delete does what Config.Delete says, unless the volume is in use.
func (t *Tenant) Delete(ctx context.Context, ref string) error {
	return t.a.Delete(ctx, t.namespace, ref)
}
