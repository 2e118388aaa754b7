package k8sadapter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/k8sadapter"
)

var _ e2bhttp.Volumes = (*k8sadapter.Tenant)(nil)

// handler serves the team and the other tenant, by their names as keys, under two prefixes.
func (w *world) handler(a *k8sadapter.Adapter) http.Handler {
	w.Helper()
	auth, err := e2bhttp.APIKeys(map[string]string{"e2b_team": w.team(), "e2b_other": w.other()})
	must(w.T, err)
	return e2bhttp.NewHandler(func(_ context.Context, tenant string) (e2bhttp.Volumes, error) {
		v, err := a.Tenant(tenant)
		if err != nil {
			return nil, err
		}
		return v, nil
	}, auth, e2bhttp.WithPrefix("/kruise/api"))
}

func call(h http.Handler, key, method, path, body string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-API-Key", key)
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	text, _ := io.ReadAll(rec.Body) // of a buffer
	return rec.Code, string(text)
}

// the four routes, native and below the prefix.
func TestTheVolumeRoutesServePVs(t *testing.T) {
	w := newWorld(t)
	h := w.handler(w.adapter(nil))
	for i, prefix := range []string{"", "/kruise/api"} {
		pv := w.available(fmt.Sprintf("pv%d", i))
		name := fmt.Sprintf("data%d", i)
		status, body := call(h, "e2b_team", "POST", prefix+"/volumes",
			fmt.Sprintf(`{"name":%q,"labels":{"pvName":%q}}`, name, pv.Name))
		var v struct{ VolumeID, Name string }
		if err := json.Unmarshal([]byte(body), &v); err != nil || status != 201 || v.VolumeID != pv.Name || v.Name != name {
			t.Fatalf("POST: %d %s", status, body)
		}
		for _, ref := range []string{name, pv.Name} {
			if status, body = call(h, "e2b_team", "GET", prefix+"/volumes/"+ref, ""); status != 200 {
				t.Errorf("GET %s: %d %s", ref, status, body)
			}
		}
		w.eventually("it is listed", func() bool {
			_, body := call(h, "e2b_team", "GET", prefix+"/volumes", "")
			return strings.Contains(body, pv.Name)
		})
		w.claimOf(w.team(), "c", pv.Name)
		if status, body = call(h, "e2b_team", "DELETE", prefix+"/volumes/"+name, ""); status != 409 ||
			!strings.Contains(body, "volume_in_use") {
			t.Errorf("DELETE while mounted: %d %s", status, body)
		}
		must(t, w.claims(w.team()).Delete(t.Context(), "c", deleteNow))
		if status, body = call(h, "e2b_team", "DELETE", prefix+"/volumes/"+name, ""); status != 204 {
			t.Errorf("DELETE: %d %s", status, body)
		}
		if status, _ = call(h, "e2b_team", "DELETE", prefix+"/volumes/"+name, ""); status != 404 {
			t.Errorf("DELETE again: %d", status)
		}
	}
	pv := w.available("plain")
	if status, body := call(h, "e2b_team", "POST", "/volumes", fmt.Sprintf(`{"name":%q}`, pv.Name)); status != 201 {
		t.Errorf("POST by the PersistentVolume's name: %d %s", status, body)
	}
	for body, want := range map[string]int{
		`{"name":"x","labels":{"pvName":"nothing"}}`:           404,
		`{"name":"x","labels":{"team":"a"}}`:                   400,
		`{"name":"x","sizeMB":1024}`:                           501,
		`{"name":"` + strings.Repeat("x", 64) + `"}`:           400,
		`{"name":"` + pv.Name + `","labels":{"pvName":"x y"}}`: 404,
	} {
		if status, got := call(h, "e2b_team", "POST", "/volumes", body); status != want {
			t.Errorf("POST %s: %d %s, want %d", body, status, got, want)
		}
	}
	for _, path := range []string{"/volumes/plain/fork", "/volumes/plain/snapshots"} {
		if status, got := call(h, "e2b_team", "POST", path, "{}"); status != 501 {
			t.Errorf("POST %s: %d %s", path, status, got)
		}
	}
}

// 404 and not 403, with the same body, for get and delete.
func TestForeignVolumesAreAnsweredAsMissing(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	h := w.handler(a)
	v := w.volume(a, "data")
	for _, method := range []string{"GET", "DELETE"} {
		var bodies []string
		for _, id := range []string{v.ID, "data", "missing", "no%5fid", "..%2fx"} {
			status, body := call(h, "e2b_other", method, "/volumes/"+id, "")
			if status != 404 {
				t.Errorf("%s %s: %d %s", method, id, status, body)
			}
			bodies = append(bodies, replace(replace(body, id, "ID"), "no_id", "ID"))
		}
		if bodies[0] != bodies[2] || bodies[1] != bodies[2] || bodies[3] != bodies[2] {
			t.Errorf("%s: bodies %q", method, bodies)
		}
	}
	pv, status := v.ID, 0
	if status, _ = call(h, "e2b_other", "POST", "/volumes", fmt.Sprintf(`{"name":"mine","labels":{"pvName":%q}}`, pv)); status != 404 {
		t.Errorf("POST of a foreign one: %d", status)
	}
}

// fromBody turns a request's body into mounts, as a host does.
func fromBody(body string) ([]k8sadapter.Mount, error) {
	entries, err := e2bhttp.MountRules{SubPaths: true}.Decode([]byte(body))
	if err != nil {
		return nil, err
	}
	var mounts []k8sadapter.Mount
	for _, e := range entries {
		m := k8sadapter.Mount{Where: e.Where, Path: e.Path, SubPath: e.SubPath, ReadOnly: e.ReadOnly, Mode: e.Mode, Fault: e.Fault()}
		for _, ref := range e.Refs {
			m.Refs = append(m.Refs, k8sadapter.Ref(ref))
		}
		mounts = append(mounts, m)
	}
	var metadata struct{ Metadata map[string]string }
	if err := json.Unmarshal([]byte(body), &metadata); err != nil {
		return nil, err
	}
	more, err := k8sadapter.ParseMetadata(metadata.Metadata)
	return k8sadapter.Merge(mounts, more), err
}

// every form in which a mount is asked for, by SDK or claim, becomes the same mount config.
func TestAllFormsOfAMountAreOne(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	v := w.volume(a, "my-data", corev1.ReadWriteMany)
	config := func(text string) string {
		quoted, err := json.Marshal(text)
		must(t, err)
		return fmt.Sprintf(`{"metadata":{%q:%s}}`, k8sadapter.VolumeConfig, quoted)
	}
	forms := map[string]string{
		"S1": `{"volumeMounts":[{"name":"my-data","path":"/mnt/data"}]}`,
		"S2": fmt.Sprintf(`{"volumeMounts":[{"name":%q,"path":"/mnt/data"}]}`, v.ID),
		"S3": fmt.Sprintf(`{"volumeMounts":{"/mnt/data":%q}}`, v.ID),
		"S4": `{"volumeMounts":{"/mnt/data":"my-data"}}`,
		"S5": fmt.Sprintf(`{"volumeMounts":{"/mnt/data":{"name":"my-data","volumeID":%q,"volumeId":%q,"token":"t"}}}`, v.ID, v.ID),
		"S6": fmt.Sprintf(`{"volume_mounts":[{"volumeID":%q,"mountPath":"/mnt/data","readOnly":false}]}`, v.ID),
		"S7": config(fmt.Sprintf(`[{"pvName":%q,"mountPath":"/mnt/data"}]`, v.ID)),
		"legacy": fmt.Sprintf(`{"metadata":{"e2b.agents.kruise.io/csi-volume-name":%q,`+
			`"e2b.agents.kruise.io/csi-mount-point":"/mnt/data"}}`, v.ID),
	}
	want := []k8sadapter.MountConfig{{PVName: v.ID, MountPath: "/mnt/data"}}
	for name, body := range forms {
		mounts, err := fromBody(body)
		must(t, err)
		r, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: mounts})
		must(t, err)
		if d := cmp.Diff(want, r.Mounts); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
		// And what a claim says, read back from the server.
		claim, err := w.claim(w.team(), "c"+strings.ToLower(name), r)
		must(t, err)
		mounts, err = k8sadapter.ParseClaim(claim)
		must(t, err)
		again, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: mounts})
		must(t, err)
		if d := cmp.Diff(r.Mounts, again.Mounts) + cmp.Diff(r.Annotation, again.Annotation); d != "" {
			t.Errorf("%s as a claim:\n%s", name, d)
		}
	}
	// The same in two places with different settings.
	for _, second := range []string{`"mountPath":"/mnt/data","readOnly":true`, `"mountPath":"/other"`} {
		body := fmt.Sprintf(`{"volumeMounts":[{"name":"my-data","path":"/mnt/data"}],"metadata":{%q:%q}}`, k8sadapter.VolumeConfig,
			fmt.Sprintf(`[{"pvName":%q,%s}]`, v.ID, second))
		mounts, err := fromBody(body)
		must(t, err)
		if _, err = a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: mounts}); err == nil {
			t.Errorf("%s is accepted", body)
		}
	}
}
