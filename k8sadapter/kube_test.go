package k8sadapter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	storageclient "k8s.io/client-go/kubernetes/typed/storage/v1"
	"k8s.io/client-go/rest"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/k8sadapter/kubetest"
	"github.com/sandvol/sandvol/volume"
)

// server is the API server of all tests of the package, started by the first that needs it.
var server struct {
	once sync.Once
	s    *kubetest.Server
	http *http.Client
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.s != nil {
		server.http.CloseIdleConnections()
		server.s.Stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is fails unless err is of a class.
func is(t testing.TB, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error %v, want one that is %v", err, class)
	}
}

// reason fails unless err is a VolumeError of a reason.
func reason(t testing.TB, err error, want k8sadapter.Reason) {
	t.Helper()
	var e *k8sadapter.VolumeError
	if !errors.As(err, &e) || e.Reason != want {
		t.Fatalf("error %v, want reason %s", err, want)
	}
}

func realServer(t testing.TB) *kubetest.Server {
	t.Helper()
	server.once.Do(func() {
		var dir string
		if dir, server.err = kubetest.Binaries(absolute("../internal/tools/kube/build")); server.err == nil {
			server.s, server.err = kubetest.Start(context.Background(), dir)
		}
		if server.err == nil {
			server.http, server.err = rest.HTTPClientFor(server.s.Config())
		}
	})
	if errors.Is(server.err, kubetest.ErrNotBuilt) && os.Getenv("SANDVOL_REQUIRE_REAL") != "1" {
		t.Skip(server.err)
	}
	must(t, server.err)
	return server.s
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return abs
}

// calls counts the requests to the API server by method and resource. Long polls of the watch are not counted.
type calls struct {
	mu    sync.Mutex
	next  http.RoundTripper
	count map[string]int
}

func (c *calls) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(r.URL.Path, "/")
	kind := "other"
	for _, k := range []string{"persistentvolumes", "leases", "sandboxclaims", "sandboxes"} {
		for _, p := range parts {
			if p == k {
				kind = k
			}
		}
	}
	if r.URL.Query().Get("watch") == "" {
		c.mu.Lock()
		c.count[r.Method+" "+kind]++
		c.mu.Unlock()
	}
	return c.next.RoundTrip(r)
}

// take returns what was counted since the last call.
func (c *calls) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := maps.Clone(c.count)
	clear(c.count)
	return taken
}

// world is what one test works in: names of its own on the shared server.
type world struct {
	*testing.T
	id      string
	pvs     coreclient.PersistentVolumeInterface
	secrets coreclient.CoreV1Interface
	leases  coordinationclient.LeaseInterface
	drivers storageclient.CSIDriverInterface
	dynamic dynamic.Interface
	calls   *calls
}

// team and other are tenants. The server's namespaces are made for each test.
func (w *world) team() string   { return "team-" + w.id }
func (w *world) other() string  { return "other-" + w.id }
func (w *world) system() string { return "system-" + w.id }
func (w *world) driver() string { return "csi-" + w.id + ".example.com" }
func (w *world) name(base string) string {
	return base + "-" + w.id
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := realServer(t)
	w := &world{T: t, id: uuid.NewString()[:8]}
	w.connect(s.Config())
	for _, ns := range []string{w.team(), w.other(), w.system()} {
		_, err := w.secrets.Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(t, err)
	}
	w.calls.take()
	return w
}

// connect makes clients whose requests are counted.
func (w *world) connect(config *rest.Config) {
	w.calls = &calls{count: map[string]int{}, next: server.http.Transport}
	if config.Impersonate.UserName != "" {
		impersonating, err := rest.HTTPWrappersForConfig(config, server.http.Transport)
		must(w.T, err)
		w.calls.next = impersonating
	}
	client := &http.Client{Transport: w.calls}
	core, err := coreclient.NewForConfigAndClient(config, client)
	must(w.T, err)
	coordination, err := coordinationclient.NewForConfigAndClient(config, client)
	must(w.T, err)
	storage, err := storageclient.NewForConfigAndClient(config, client)
	must(w.T, err)
	w.dynamic, err = dynamic.NewForConfigAndClient(config, client)
	must(w.T, err)
	w.secrets, w.pvs, w.leases, w.drivers = core, core.PersistentVolumes(), coordination.Leases(w.system()), storage.CSIDrivers()
}

func (w *world) config() k8sadapter.Config {
	return k8sadapter.Config{
		PersistentVolumes: w.pvs, Leases: w.leases, CSIDrivers: w.drivers,
		Usage:   k8sadapter.OpenKruise{Claims: w.dynamic.Resource(k8sadapter.SandboxClaims), Sandboxes: w.dynamic.Resource(k8sadapter.Sandboxes)},
		Drivers: map[string]k8sadapter.Driver{w.driver(): {SubPathAttribute: "path"}},
	}
}

// adapter starts an adapter that ends with the test.
func (w *world) adapter(change func(*k8sadapter.Config), opts ...k8sadapter.Option) *k8sadapter.Adapter {
	w.Helper()
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}
	a, err := k8sadapter.New(cfg, append([]k8sadapter.Option{k8sadapter.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	must(w.T, err)
	w.Cleanup(a.Close)
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	must(w.T, a.Start(ctx))
	w.calls.take()
	return a
}

// spec is a PersistentVolume as the guide for on-demand mounts shows it.
func (w *world) spec(base string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	filesystem := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.name(base)}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50Gi")},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, VolumeMode: &filesystem,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: w.driver(), VolumeHandle: w.name(base), VolumeAttributes: map[string]string{"share": "secret-share"},
		}},
	}}
}

// create creates a PersistentVolume and makes it available, as a cluster's controller would.
func (w *world) create(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	w.Helper()
	phase := pv.Status.Phase
	if phase == "" {
		phase = corev1.VolumeAvailable
	}
	created, err := w.pvs.Create(w.Context(), pv, metav1.CreateOptions{})
	must(w.T, err)
	w.Cleanup(func() {
		_ = w.pvs.Delete(context.Background(), pv.Name, metav1.DeleteOptions{}) // the test may have done so
	})
	created.Status.Phase = phase
	updated, err := w.pvs.UpdateStatus(w.Context(), created, metav1.UpdateOptions{})
	must(w.T, err)
	return updated
}

func (w *world) available(base string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	w.Helper()
	return w.create(w.spec(base, modes...))
}

// volume creates a PersistentVolume and registers it for the team.
func (w *world) volume(a *k8sadapter.Adapter, base string, modes ...corev1.PersistentVolumeAccessMode) volume.Volume {
	w.Helper()
	pv := w.available(base, modes...)
	v, err := a.Register(w.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: base})
	must(w.T, err)
	return v
}

// eventually waits until the watch has brought what a test did.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.Fatalf("never: %s", what)
}

func (w *world) claims(ns string) dynamic.ResourceInterface {
	return w.dynamic.Resource(k8sadapter.SandboxClaims).Namespace(ns)
}

func (w *world) sandboxes(ns string) dynamic.ResourceInterface {
	return w.dynamic.Resource(k8sadapter.Sandboxes).Namespace(ns)
}

func object(kind, ns, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "agents.kruise.io/v1alpha1", "kind": kind,
		"metadata": map[string]any{"namespace": ns, "name": name}, "spec": spec,
	}}
}

// claim stores a SandboxClaim with the mounts of a resolution.
func (w *world) claim(ns, name string, r k8sadapter.Resolution) (*unstructured.Unstructured, error) {
	c := object("SandboxClaim", ns, name, map[string]any{"templateName": "shared-storage-template"})
	if err := r.Apply(c); err != nil {
		return nil, err
	}
	return w.claims(ns).Create(w.Context(), c, metav1.CreateOptions{})
}

// claimOf stores a SandboxClaim that mounts a PersistentVolume, as somebody does who does not use the adapter.
func (w *world) claimOf(ns, name, pv string) *unstructured.Unstructured {
	w.Helper()
	c, err := w.claim(ns, name, k8sadapter.Resolution{Mounts: []k8sadapter.MountConfig{{PVName: pv, MountPath: "/data"}}})
	must(w.T, err)
	return c
}

func (w *world) complete(c *unstructured.Unstructured) {
	w.Helper()
	must(w.T, unstructured.SetNestedField(c.Object, "Completed", "status", "phase"))
	_, err := w.claims(c.GetNamespace()).UpdateStatus(w.Context(), c, metav1.UpdateOptions{})
	must(w.T, err)
}

// sandbox stores a Sandbox with annotations.
func (w *world) sandbox(ns, name string, annotations map[string]string) *unstructured.Unstructured {
	w.Helper()
	s := object("Sandbox", ns, name, map[string]any{})
	s.SetAnnotations(annotations)
	created, err := w.sandboxes(ns).Create(w.Context(), s, metav1.CreateOptions{})
	must(w.T, err)
	return created
}

// ask is a request for one mount at /data.
func ask(ref string, readOnly ...bool) k8sadapter.Request {
	m := k8sadapter.Mount{Where: "volumeMounts[0]", Refs: []k8sadapter.Ref{{Ref: ref}}, Path: "/data"}
	if len(readOnly) > 0 {
		m.ReadOnly = &readOnly[0]
	}
	return k8sadapter.Request{Mounts: []k8sadapter.Mount{m}}
}

// clock is a clock that only moves when it is told to.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
