package k8sadapter_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/k8sadapter/kubetest"
	"github.com/sandvol/sandvol/volume"
)

// grant applies rbac.yaml for a service account of this test, without one verb of one resource if that is given.
func (w *world) grant(without string) string {
	w.Helper()
	text, err := os.ReadFile("rbac.yaml")
	must(w.T, err)
	objects, err := kubetest.Decode(text)
	must(w.T, err)
	plurals := map[string]string{"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles",
		"RoleBinding": "rolebindings"}
	for _, o := range objects {
		o.SetName(w.name("adapter"))
		if o.GetNamespace() != "" {
			o.SetNamespace(w.system())
		}
		if ref, ok := o.Object["roleRef"].(map[string]any); ok {
			ref["name"] = o.GetName()
			o.Object["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "name": "manager", "namespace": w.system()}}
		}
		drop(o, without)
		r := w.dynamic.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1",
			Resource: plurals[o.GetKind()]})
		if o.GetNamespace() != "" {
			_, err = r.Namespace(o.GetNamespace()).Create(w.Context(), o, metav1.CreateOptions{})
		} else {
			_, err = r.Create(w.Context(), o, metav1.CreateOptions{})
		}
		must(w.T, err)
	}
	return "system:serviceaccount:" + w.system() + ":manager"
}

// drop takes one "verb resource" out of the rules of a role.
func drop(role *unstructured.Unstructured, without string) {
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	var kept []any
	for _, r := range rules {
		rule := r.(map[string]any)
		for _, resource := range rule["resources"].([]any) {
			var verbs []any
			for _, verb := range rule["verbs"].([]any) {
				if fmt.Sprint(verb, " ", resource) != without {
					verbs = append(verbs, verb)
				}
			}
			if len(verbs) == 0 {
				continue
			}
			kept = append(kept, map[string]any{"apiGroups": rule["apiGroups"], "resources": []any{resource}, "verbs": verbs})
		}
	}
	if rules != nil {
		role.Object["rules"] = kept
	}
}

// as returns the world as a service account sees it.
func (w *world) as(user string) *world {
	w.Helper()
	config := server.s.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	limited := *w
	limited.connect(config)
	return &limited
}

// life is everything that an adapter does.
func (w *world) life(admin *world, base string) error {
	ctx := w.Context()
	a, err := k8sadapter.New(func() k8sadapter.Config {
		c := w.config()
		c.Delete, c.PublishOnly = k8sadapter.DeletePV, true
		k := c.Usage.(k8sadapter.OpenKruise)
		k.Checkpoints = w.dynamic.Resource(k8sadapter.Checkpoints)
		c.Usage = k
		return c
	}())
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.Start(ctx); err != nil {
		return err
	}
	pv := admin.available(base)
	if _, err := a.Register(ctx, w.team(), k8sadapter.Registration{PV: pv.Name, Name: base}); err != nil {
		return err
	}
	r, err := a.Resolve(ctx, w.team(), ask(base))
	if err != nil {
		return err
	}
	if err := a.Confirm(ctx, r.Token); err != nil {
		return err
	}
	if err := a.Release(ctx, r.Token); err != nil {
		return err
	}
	return a.Delete(ctx, w.team(), base)
}

// The manifest is enough, and each verb in it is needed. It gives nothing else.
func TestRBACIsEnoughAndNoMore(t *testing.T) {
	w := newWorld(t)
	attach := false
	driver := csiDriver(w.driver(), &attach)
	_, err := w.drivers.Create(t.Context(), driver, metav1.CreateOptions{})
	must(t, err)
	limited := w.as(w.grant(""))
	must(t, limited.life(w, "all"))
	_, err = limited.secrets.Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("secrets can be listed: %v", err)
	}
	_, err = limited.pvs.Create(t.Context(), w.spec("made"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("PersistentVolumes can be made: %v", err)
	}
	for _, without := range []string{"get persistentvolumes", "list persistentvolumes", "update persistentvolumes", "delete persistentvolumes",
		"list sandboxclaims", "list sandboxes", "list checkpoints", "get csidrivers", "create leases", "get leases",
		"update leases", "delete leases"} {
		t.Run("without "+without, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.drivers.Create(t.Context(), csiDriver(w.driver(), &attach), metav1.CreateOptions{})
			must(t, err)
			is(t, w.as(w.grant(without)).life(w, "some"), volume.ErrUnavailable)
		})
	}
}

// Without the right to list or watch, Start says why it does not return; without watch alone, the log says why lists age.
func TestAWatchThatIsNotAllowedIsReported(t *testing.T) {
	w := newWorld(t)
	nobody := w.as("system:serviceaccount:" + w.system() + ":nobody")
	a, err := k8sadapter.New(nobody.config())
	must(t, err)
	defer a.Close()
	for range 2 { // a second wait goes on where the first ended
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		err = a.Start(soon)
		cancel()
		is(t, err, volume.ErrUnavailable)
		is(t, err, context.DeadlineExceeded)
		if !apierrors.IsForbidden(err) {
			t.Errorf("error %v does not say that it is forbidden", err)
		}
	}
	log := &logged{}
	w.as(w.grant("watch persistentvolumes")).adapter(nil, k8sadapter.WithLogger(log.logger()))
	w.eventually("the log says why", func() bool { return log.has("forbidden") })
}

// A volume of a driver that attaches to nodes first is refused where only publishing works.
func TestPublishOnlyAsksWhetherTheDriverAttaches(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(func(c *k8sadapter.Config) { c.PublishOnly = true })
	pv := w.available("pv", corev1.ReadWriteMany)
	for _, attach := range []*bool{nil, flag(true), flag(false)} {
		_, err := w.drivers.Create(t.Context(), csiDriver(w.driver(), attach), metav1.CreateOptions{})
		must(t, err)
		_, err = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
		if attach == nil || *attach {
			reason(t, err, k8sadapter.NeedsStaging)
		} else {
			must(t, err)
		}
		must(t, w.drivers.Delete(t.Context(), w.driver(), metav1.DeleteOptions{}))
	}
}
