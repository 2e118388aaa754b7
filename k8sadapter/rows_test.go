package k8sadapter_test

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// the adapter declares mounts. Of the cluster it touches PersistentVolumes and its leases; claims and sandboxes it
// lists, and nothing else is asked for, least of all a pod.
func TestTheAdapterOnlyDeclares(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	pv := w.available("pv")
	w.calls.take()
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name, Name: "data"})
	must(t, err)
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	must(t, a.Confirm(t.Context(), r.Token))
	must(t, a.Delete(t.Context(), w.team(), "data"))
	for what := range w.calls.take() {
		method, kind, _ := strings.Cut(what, " ")
		switch {
		case kind == "persistentvolumes", kind == "leases":
		case method == "GET" && (kind == "sandboxclaims" || kind == "sandboxes"):
		default:
			t.Errorf("a request %s was sent", what)
		}
	}
}

// what a completed claim's sandbox carries is, on the real server, exactly what was resolved: one mount path
// for each volume, and no attribute that would have a directory made or emptied.
func TestACompletedClaimsSandboxCarriesWhatWasResolved(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "data", corev1.ReadWriteMany)
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	claim, err := w.claim(w.team(), "c", r)
	must(t, err)
	must(t, a.Confirm(t.Context(), r.Token))
	// What the claim's controller does.
	stored, err := json.Marshal(claim.Object["spec"].(map[string]any)["dynamicVolumesMount"])
	must(t, err)
	w.sandbox(w.team(), "sbx", map[string]string{k8sadapter.VolumeConfig: string(stored),
		"agents.kruise.io/owner": string(claim.GetUID())})
	w.complete(claim)
	sandbox, err := w.sandboxes(w.team()).Get(t.Context(), "sbx", metav1.GetOptions{})
	must(t, err)
	mounts, err := k8sadapter.ParseVolumeConfig(sandbox.GetAnnotations()[k8sadapter.VolumeConfig])
	must(t, err)
	if len(mounts) != 1 || mounts[0].Path != "/data" || mounts[0].Refs[0].Ref != v.ID || len(mounts[0].Attributes) != 0 {
		t.Errorf("the sandbox carries %+v", mounts)
	}
	uses, err := a.InUse(t.Context(), w.team(), "data")
	must(t, err)
	if len(uses) == 0 || uses[0].Holder.Name != "sbx" {
		t.Errorf("uses %+v", uses)
	}
}

// a sandbox of a warm pool, one that is made because there is no stock, and one that is upgraded in place resolve
// alike: the request names no sandbox before it is taken, and a holder resolves to the same bytes again.
func TestHowASandboxComesToBeMakesNoDifference(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	unnamed, err := a.Resolve(t.Context(), w.team(), ask("data")) // from a pool: the sandbox is picked later
	must(t, err)
	must(t, a.Release(t.Context(), unnamed.Token))
	made := ask("data")
	made.Holder = k8sadapter.Holder{Kind: k8sadapter.Sandbox, Namespace: w.team(), Name: "sbx"}
	fresh, err := a.Resolve(t.Context(), w.team(), made)
	must(t, err)
	w.sandbox(w.team(), "sbx", map[string]string{k8sadapter.VolumeConfig: fresh.Annotation})
	must(t, a.Confirm(t.Context(), fresh.Token))
	upgraded, err := a.Resolve(t.Context(), w.team(), made)
	must(t, err)
	must(t, a.Confirm(t.Context(), upgraded.Token))
	if d := cmp.Diff(unnamed.Annotation, fresh.Annotation) + cmp.Diff(fresh.Annotation, upgraded.Annotation); d != "" {
		t.Error(d)
	}
}

// mounts are not restored from a checkpoint; a request that wants them says so, and is the only one that counts.
func TestMountsAreNotRestoredFromACheckpoint(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data", corev1.ReadWriteMany)
	w.volume(a, "other", corev1.ReadWriteMany)
	before, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	k := object("Checkpoint", w.team(), "cp", map[string]any{})
	k.SetAnnotations(map[string]string{k8sadapter.VolumeConfig: before.Annotation})
	_, err = w.dynamic.Resource(k8sadapter.Checkpoints).Namespace(w.team()).Create(t.Context(), k, metav1.CreateOptions{})
	must(t, err)
	none, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{})
	must(t, err)
	if none.Annotation != "" || len(none.Mounts) != 0 {
		t.Errorf("resolved %v", none.Mounts)
	}
	again, err := a.Resolve(t.Context(), w.team(), ask("other"))
	must(t, err)
	if len(again.Mounts) != 1 || again.Mounts[0].PVName != w.name("other") {
		t.Errorf("resolved %v", again.Mounts)
	}
}

// what is the template's and the pipeline's business is said where a host looks.
func TestTheDocumentationSaysWhatIsTheHosts(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	must(t, err)
	plain := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
	for row, want := range map[string]string{
		"A-151": `a template must enable the runtimes "csi" and "agent-runtime"`,
		"A-154": "the CSI sidecars of the sandbox make them",
		"A-161": "the mount path must be an empty directory there",
		"A-152": "storage must be reachable from the sandbox's node",
		"A-164": "a mount takes it extra time",
		"A-165": "a missing sub-directory is not created",
		"A-167": "Mounts are not restored from a checkpoint",
	} {
		if !strings.Contains(plain, want) {
			t.Errorf("%s: the package comment does not say %q", row, want)
		}
	}
}

// each operation is observed once, with its class; resolve and confirm apart from get, and a foreign reference
// beside.
func TestOperationsAreObserved(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var seen []string
	a := w.adapter(nil, k8sadapter.WithObserver(func(o k8sadapter.Observation) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, o.Operation+" "+o.Result)
	}))
	w.volume(a, "data")
	w.eventually("it is listed", func() bool {
		for range a.List(t.Context(), w.team(), volume.ListOptions{}) {
			return true
		}
		return false
	})
	mu.Lock()
	seen = nil
	mu.Unlock()
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	_, _ = a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, a.Confirm(t.Context(), r.Token))
	must(t, a.Release(t.Context(), r.Token))
	_, _ = a.Get(t.Context(), w.other(), w.name("data"))
	_, _ = a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: "x", Name: "-"})
	want := []string{"resolve ok", "resolve conflict", "confirm ok", "release ok", "get foreign", "get not_found",
		"register invalid"}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
