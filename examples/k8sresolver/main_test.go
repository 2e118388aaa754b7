package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/k8sadapter/kubetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fixture is a host before a real API server with two tenants and one shared PersistentVolume.
func fixture(t *testing.T) (*host, func(key, method, path, body string) (int, string)) {
	t.Helper()
	script, err := filepath.Abs("../../internal/tools/kube/build")
	must(t, err)
	dir, err := kubetest.Binaries(script)
	if errors.Is(err, kubetest.ErrNotBuilt) && os.Getenv("SANDVOL_REQUIRE_REAL") != "1" {
		t.Skip(err)
	}
	must(t, err)
	server, err := kubetest.Start(t.Context(), dir)
	must(t, err)
	t.Cleanup(server.Stop)
	core, err := coreclient.NewForConfig(server.Config())
	must(t, err)
	for _, ns := range []string{"team-a", "team-b", "sandbox-system"} {
		_, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(t, err)
	}
	pv, err := core.PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "shared-pv"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi-driver.example.com", VolumeHandle: "shared-pv"}},
		}}, metav1.CreateOptions{})
	must(t, err)
	pv.Status.Phase = corev1.VolumeAvailable // no controller does it here
	_, err = core.PersistentVolumes().UpdateStatus(t.Context(), pv, metav1.UpdateOptions{})
	must(t, err)
	h, err := newHost(server.Config(), settings{System: "sandbox-system", Log: slog.New(slog.DiscardHandler),
		Keys:    map[string]string{"e2b_a": "team-a", "e2b_b": "team-b"},
		Drivers: map[string]k8sadapter.Driver{"csi-driver.example.com": {SubPathAttribute: "path"}}})
	must(t, err)
	t.Cleanup(h.close)
	must(t, h.start(t.Context()))
	routes := h.routes()
	return h, func(key, method, path, body string) (int, string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("X-API-Key", key)
		rec := httptest.NewRecorder()
		routes.ServeHTTP(rec, r)
		text, _ := io.ReadAll(rec.Body) // of a buffer
		return rec.Code, string(bytes.TrimSpace(text))
	}
}

// register, mount below both prefixes, and delete, as two tenants.
func TestAHostServesPersistentVolumes(t *testing.T) {
	h, call := fixture(t)
	if status, body := call("e2b_a", "POST", "/volumes", `{"name":"data","labels":{"pvName":"shared-pv"}}`); status != 201 {
		t.Fatalf("register: %d %s", status, body)
	}
	var sandboxes []string
	for _, prefix := range []string{"", "/kruise/api"} {
		status, body := call("e2b_a", "POST", prefix+"/sandboxes",
			`{"templateID":"tmpl","volume_mounts":[{"volumeID":"shared-pv","mountPath":"/data","readOnly":true}]}`)
		var made struct{ SandboxID string }
		must(t, json.Unmarshal([]byte(body), &made))
		if status != 201 || made.SandboxID == "" {
			t.Fatalf("sandbox: %d %s", status, body)
		}
		sandboxes = append(sandboxes, made.SandboxID)
		claim, err := h.claims.Namespace("team-a").Get(t.Context(), made.SandboxID, metav1.GetOptions{})
		must(t, err)
		if got := fmt.Sprint(claim.Object["spec"].(map[string]any)["dynamicVolumesMount"]); got !=
			"[map[mountPath:/data pvName:shared-pv readOnly:true]]" {
			t.Errorf("claim: %s", got)
		}
	}
	if status, body := call("e2b_a", "DELETE", "/volumes/data", ""); status != 409 || !strings.Contains(body, sandboxes[0]) {
		t.Errorf("delete while mounted: %d %s", status, body)
	}
	for body, want := range map[string]int{
		`{"templateID":"tmpl","volumeMounts":[{"name":"data","path":"/data"}]}`:           404, // the other tenant's
		`{"templateID":"tmpl","volumeMounts":[{"name":"nothing","path":"/data"}]}`:        404,
		`{"templateID":"tmpl","volumeMounts":[{"name":"nothing","path":"relative"}]}`:     400,
		`{"templateID":"tmpl","metadata":{"e2b.agents.kruise.io/csi-volume-config":"x"}}`: 400,
		`{"templateID":"tmpl","volumeMounts":[{"name":"x","path":"/d","readOnly":"no"}]}`: 400, // not: mounted for writing
		`{"volumeMounts":[]}`:   400,
		`{"templateID":"tmpl"}`: 201,
	} {
		if status, got := call("e2b_b", "POST", "/sandboxes", body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, got, want)
		}
	}
	// The owner's own mistakes, all at once; nothing is mounted otherwise than it was asked for.
	status, body := call("e2b_a", "POST", "/sandboxes", `{"templateID":"tmpl","volumeMounts":[{"name":"data","path":"/d","mode":"ro"},
		{"name":"data","path":"relative"},{"name":"nothing","path":"/x"}]}`)
	for _, want := range []string{"volumeMounts[0]: unsupported_mode", "volumeMounts[1]: mount_path", `volumeMounts[2]: not found`} {
		if status != 400 || !strings.Contains(body, want) {
			t.Errorf("%d %s does not say %s", status, body, want)
		}
	}
	if status, body := call("e2b_a", "POST", "/volumes", `{"name":"other","labels":{"pvName":"shared-pv"}}`); status != 409 ||
		!strings.Contains(body, "name_taken") || !strings.Contains(body, `\"data\"`) || !strings.Contains(body, `\"other\"`) {
		t.Errorf("registered under another name: %d %s", status, body)
	}
	if status, _ := call("unknown", "POST", "/sandboxes", `{"templateID":"tmpl"}`); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", status)
	}
	for _, s := range sandboxes {
		must(t, h.claims.Namespace("team-a").Delete(t.Context(), s, metav1.DeleteOptions{}))
	}
	if status, body := call("e2b_a", "DELETE", "/volumes/data", ""); status != 204 {
		t.Errorf("delete: %d %s", status, body)
	}
}

func TestSettingsAreRead(t *testing.T) {
	table, err := driverTable("a.example.com=path, b.example.com")
	if err != nil || table["a.example.com"].SubPathAttribute != "path" || len(table) != 2 {
		t.Errorf("drivers %v, %v", table, err)
	}
	if _, err := driverTable(""); err == nil {
		t.Error("no driver is accepted")
	}
	if _, err := pairs("key"); err == nil {
		t.Error("a key without a namespace is accepted")
	}
}
