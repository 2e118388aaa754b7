package k8sadapter_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandvol/sandvol/k8sadapter"
)

var deleteNow = metav1.DeleteOptions{}

// deaf is the real server to an adapter whose watch brings nothing: the stalest cache there is.
type deaf struct {
	coreclient.PersistentVolumeInterface
}

func (deaf) IsWatchListSemanticsUnSupported() bool { return true }

func (d deaf) List(ctx context.Context, o metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	if o.LabelSelector == k8sadapter.OwnerLabel {
		return &corev1.PersistentVolumeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
	}
	return d.PersistentVolumeInterface.List(ctx, o)
}

func (deaf) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

// beforeUpdate stops the first update of one PersistentVolume until it is woken.
type beforeUpdate struct {
	coreclient.PersistentVolumeInterface
	name         string
	once         sync.Once
	asleep, wake chan struct{}
}

func (b *beforeUpdate) Update(ctx context.Context, pv *corev1.PersistentVolume, o metav1.UpdateOptions) (
	*corev1.PersistentVolume, error) {
	if pv.Name == b.name {
		b.once.Do(func() { close(b.asleep); <-b.wake })
	}
	return b.PersistentVolumeInterface.Update(ctx, pv, o)
}

// failing is the real server with updates, or the last step of a deletion, that fail.
type failing struct {
	coreclient.PersistentVolumeInterface
	fail func(pv *corev1.PersistentVolume) error
}

func (f failing) Update(ctx context.Context, pv *corev1.PersistentVolume, o metav1.UpdateOptions) (
	*corev1.PersistentVolume, error) {
	if err := f.fail(pv); err != nil {
		return nil, err
	}
	return f.PersistentVolumeInterface.Update(ctx, pv, o)
}

// usage answers with a list or an error.
type usage struct {
	uses []k8sadapter.Use
	err  error
}

func (u usage) Uses(context.Context) ([]k8sadapter.Use, error) {
	return append([]k8sadapter.Use(nil), u.uses...), u.err
}

// after calls a function when it has the answer, before it gives it.
type after struct {
	k8sadapter.Usage
	do func()
}

func (a after) Uses(ctx context.Context) ([]k8sadapter.Use, error) {
	uses, err := a.Usage.Uses(ctx)
	a.do()
	return uses, err
}

// forgetful makes the first update and loses its answer.
type forgetful struct {
	failing
	made *int
}

func (f forgetful) Update(ctx context.Context, pv *corev1.PersistentVolume, o metav1.UpdateOptions) (
	*corev1.PersistentVolume, error) {
	updated, err := f.failing.Update(ctx, pv, o)
	if *f.made == 1 {
		return nil, errInjected
	}
	return updated, err
}

// many is a server with many registered PersistentVolumes, ten for each namespace, or as many as each says.
type many struct {
	k8sadapter.PersistentVolumes
	n     int
	each  int
	lists atomic.Int64
}

func (*many) IsWatchListSemanticsUnSupported() bool { return true }

func (m *many) List(context.Context, metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	m.lists.Add(1)
	list := &corev1.PersistentVolumeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for i := range m.n {
		name := fmt.Sprintf("pv-%05d", i)
		list.Items = append(list.Items, corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			Labels: map[string]string{k8sadapter.OwnerLabel: fmt.Sprintf("team-%d", i/cmp.Or(m.each, 10)), k8sadapter.NameLabel: name}}})
	}
	return list, nil
}

func (*many) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

type noLeases struct{ k8sadapter.Leases }

func (noLeases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return nil, errInjected
}

var errInjected = errors.New("injected")

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func replace(text, old, with string) string { return strings.ReplaceAll(text, old, with) }

func csiDriver(name string, attach *bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: attach}}
}
