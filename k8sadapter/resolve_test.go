package k8sadapter_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/volume"
)

// what is resolved is stored by the real server as it is, as a claim's
// dynamicVolumesMount and as the sandbox's annotation, and nothing else about the claim changes.
func TestGoldenResolution(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "workspace")
	w.volume(a, "shared", corev1.ReadWriteMany)
	request := k8sadapter.Request{Mounts: []k8sadapter.Mount{
		{Refs: []k8sadapter.Ref{{Ref: "workspace"}}, Path: "/data"},
		{Refs: byPV(w.name("shared")), Path: "/models", SubPath: "sub/dir", ReadOnly: flag(true),
			Attributes: map[string]string{"b": "2", "a": "1"}, MountID: "m1"},
	}}
	r, err := a.Resolve(t.Context(), w.team(), request)
	must(t, err)
	want := fmt.Sprintf(`[{"pvName":%q,"mountPath":"/data"},{"mountID":"m1","pvName":%q,"mountPath":"/models",`+
		`"subPath":"sub/dir","readOnly":true,"attributes":{"a":"1","b":"2"}}]`, w.name("workspace"), w.name("shared"))
	if d := cmp.Diff(want, r.Annotation); d != "" {
		t.Errorf("annotation (-want +got):\n%s", d)
	}
	if v := r.Volumes[0]; v.Driver != w.driver() || v.Handle != w.name("workspace") || v.UID == "" {
		t.Errorf("volume %+v", v)
	}
	claim, err := w.claim(w.team(), "c", r)
	must(t, err)
	plain := object("SandboxClaim", w.team(), "c", map[string]any{"templateName": "shared-storage-template"})
	spec := claim.Object["spec"].(map[string]any)
	stored, err := json.Marshal(spec["dynamicVolumesMount"])
	must(t, err)
	var fromClaim, fromAnnotation []k8sadapter.MountConfig
	must(t, json.Unmarshal(stored, &fromClaim))
	must(t, json.Unmarshal([]byte(r.Annotation), &fromAnnotation))
	if d := cmp.Diff(r.Mounts, fromClaim) + cmp.Diff(r.Mounts, fromAnnotation); d != "" {
		t.Errorf("the claim and the annotation differ from the mounts:\n%s", d)
	}
	delete(spec, "dynamicVolumesMount")
	if d := cmp.Diff(plain.Object["spec"], claim.Object["spec"]); d != "" {
		t.Errorf("something else about the claim was changed:\n%s", d)
	}
	must(t, a.Confirm(t.Context(), r.Token))
	again, err := a.Resolve(t.Context(), w.team(), func() k8sadapter.Request {
		request.Holder = k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: w.team(), Name: "c"}
		return request
	}())
	must(t, err)
	if again.Annotation != r.Annotation {
		t.Errorf("resolved again it is %s", again.Annotation)
	}
}

// a request without mounts changes nothing and sends nothing.
func TestNoMountsChangeNothing(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	r, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{})
	must(t, err)
	claim := object("SandboxClaim", w.team(), "c", map[string]any{"templateName": "x"})
	before := claim.DeepCopy()
	must(t, r.Apply(claim))
	must(t, a.Confirm(t.Context(), r.Token))
	must(t, a.Release(t.Context(), r.Token))
	if d := cmp.Diff(before, claim); d != "" || r.Annotation != "" {
		t.Errorf("annotation %q, claim:\n%s", r.Annotation, d)
	}
	if sent := w.calls.take(); len(sent) != 0 {
		t.Errorf("requests %v", sent)
	}
}

// A token that was lost or badly decoded confirms nothing, and releases nobody's lease. A nil claim is told, not a crash.
func TestTokensAndClaimsThatAreMissingAreRefused(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for _, token := range []k8sadapter.Token{
		{}, {Namespace: "team"}, {Nonce: "n"}, {Grants: []k8sadapter.Grant{{PV: "pv", Lease: "somebody-else"}}},
	} {
		if err := a.Confirm(t.Context(), token); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("confirm %+v: %v, want ErrInvalid", token, err)
		}
		if err := a.Release(t.Context(), token); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("release %+v: %v, want ErrInvalid", token, err)
		}
	}
	if _, err := k8sadapter.ParseClaim(nil); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("nil claim: %v, want ErrInvalid", err)
	}
}

// the PersistentVolume must exist, and the error says which does not.
func TestAMissingVolumeIsNamed(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	_, err := a.Resolve(t.Context(), w.team(), ask("nothing"))
	is(t, err, volume.ErrNotFound)
	if !strings.Contains(err.Error(), "nothing") || !strings.Contains(err.Error(), "volumeMounts[0]") {
		t.Errorf("error %v", err)
	}
	// One that exists and is not registered is nobody's.
	_, err = a.Resolve(t.Context(), w.team(), ask(w.available("unregistered").Name))
	is(t, err, volume.ErrNotFound)
}

// What is wrong with several mounts is said at once: what they were read as, their paths, their volumes, and who has them.
func TestAllFaultyMountsAreNamed(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "once")
	w.volume(a, "twice")
	w.volume(a, "many", corev1.ReadWriteMany)
	mount := func(ref, path string) k8sadapter.Mount {
		return k8sadapter.Mount{Where: "at " + path, Refs: []k8sadapter.Ref{{Ref: ref}}, Path: path}
	}
	says := func(err error, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("error %v does not say %q", err, want)
			}
		}
	}
	unread := mount("many", "/unread")
	unread.Fault = fmt.Errorf("%w: readOnly: must be true or false", volume.ErrInvalid)
	moded := mount("many", "/moded")
	moded.Mode = string(volume.ReadOnly)
	_, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: []k8sadapter.Mount{
		mount("missing", "/missing"), mount("missing", "relative"), unread, moded, mount("once", "/good")}})
	is(t, err, volume.ErrInvalid)
	is(t, err, volume.ErrNotFound)
	says(err, `at /missing: not found: volume "missing"`, `at relative: mount_path: path "relative"`, "at /unread: ",
		"readOnly: must be", `at /moded: unsupported_mode: volume "`)
	if strings.Contains(err.Error(), "/good") {
		t.Errorf("error %v names one that is right", err)
	}
	held := k8sadapter.Request{Mounts: []k8sadapter.Mount{mount("once", "/1"), mount("twice", "/2"), mount("many", "/3")}}
	for name, mounts := range map[string][]k8sadapter.Mount{"c1": held.Mounts[:1], "c2": held.Mounts[1:2]} {
		r, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: mounts})
		must(t, err)
		_, err = w.claim(w.team(), name, r)
		must(t, errors.Join(err, a.Confirm(t.Context(), r.Token)))
	}
	_, err = a.Resolve(t.Context(), w.team(), held)
	is(t, err, volume.ErrConflict)
	says(err, "at /1: writer_exists", "c1", "at /2: writer_exists", "c2")
}

// What a request says about itself is checked before anything is looked up: a holder that is taken for another could
// take over what is not its own.
func TestARequestIsCheckedBeforeAnythingIsLookedUp(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	good := k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: w.team(), Name: "c"}
	for want, change := range map[string]func(*k8sadapter.Request){
		"Replicas -1":   func(r *k8sadapter.Request) { r.Replicas = -1 },
		`kind "pod"`:    func(r *k8sadapter.Request) { r.Holder.Kind = "pod" },
		`kind ""`:       func(r *k8sadapter.Request) { r.Holder.Kind = "" },
		w.other():       func(r *k8sadapter.Request) { r.Holder.Namespace = w.other() },
		`name ""`:       func(r *k8sadapter.Request) { r.Holder.Name = "" },
		`name "a/b"`:    func(r *k8sadapter.Request) { r.Holder.Name = "a/b" },
		`"relative"`:    func(r *k8sadapter.Request) { r.TemplatePaths = []string{"/a", "relative"} },
		"17 mounts":     func(r *k8sadapter.Request) { r.Mounts = make([]k8sadapter.Mount, 17) },
		`TemplatePaths`: func(r *k8sadapter.Request) { r.TemplatePaths = []string{""} },
	} {
		r := ask("data")
		r.Holder = good
		change(&r)
		_, err := a.Resolve(t.Context(), w.team(), r)
		is(t, err, volume.ErrInvalid)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %s", err, want)
		}
	}
	if sent := w.calls.take(); len(sent) != 0 {
		t.Errorf("requests %v", sent)
	}
}

func TestMountsFollowTheStateTable(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	claim := &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: w.team(), Name: "c"}
	elsewhere := &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: w.other(), Name: "c"}
	for i, c := range []struct {
		phase corev1.PersistentVolumePhase
		claim *corev1.ObjectReference
		want  k8sadapter.Reason
	}{
		{phase: corev1.VolumeAvailable},
		{phase: corev1.VolumePending, want: k8sadapter.NotReady},
		{phase: corev1.VolumeBound, claim: claim},
		{phase: corev1.VolumeBound, claim: elsewhere, want: k8sadapter.BoundElsewhere},
		{phase: corev1.VolumeReleased, claim: claim, want: k8sadapter.Released},
		{phase: corev1.VolumeFailed, want: k8sadapter.Failed},
	} {
		pv := w.spec(fmt.Sprintf("pv%d", i))
		pv.Spec.ClaimRef, pv.Status.Phase = c.claim, c.phase
		pv.Labels = map[string]string{k8sadapter.OwnerLabel: w.team(), k8sadapter.NameLabel: "n" + fmt.Sprint(i)}
		w.create(pv)
		w.eventually("it is known", func() bool { _, err := a.Get(t.Context(), w.team(), pv.Name); return err == nil })
		_, err := a.Resolve(t.Context(), w.team(), ask(pv.Name))
		if c.want == "" {
			must(t, err)
			continue
		}
		reason(t, err, c.want)
		var e *k8sadapter.VolumeError
		errors.As(err, &e)
		is(t, err, volume.ErrNotReady)
		if !e.Retryable() {
			t.Errorf("%s is not retryable", c.want)
		}
	}
}

func TestMountsThatTheDriverCannotDoAreRefused(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	for i, c := range []struct {
		change func(*corev1.PersistentVolume)
		want   k8sadapter.Reason
	}{
		{func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}
		}, k8sadapter.NotCSI},
		{func(pv *corev1.PersistentVolume) {
			block := corev1.PersistentVolumeBlock
			pv.Spec.VolumeMode = &block
		}, k8sadapter.BlockMode},
		{func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" }, k8sadapter.DriverRefused},
	} {
		pv := w.spec(fmt.Sprintf("pv%d", i))
		c.change(pv)
		pv.Labels = map[string]string{k8sadapter.OwnerLabel: w.team(), k8sadapter.NameLabel: pv.Name}
		w.create(pv)
		w.eventually("it is known", func() bool { _, err := a.Get(t.Context(), w.team(), pv.Name); return err == nil })
		_, err := a.Resolve(t.Context(), w.team(), ask(pv.Name))
		reason(t, err, c.want)
		is(t, err, volume.ErrInvalid)
	}
	w.volume(a, "data")
	runtimes := w.adapter(func(c *k8sadapter.Config) { c.CanMount = func(class, _ string) bool { return class != "gvisor" } })
	request := ask("data")
	request.RuntimeClass = "gvisor"
	_, err := runtimes.Resolve(t.Context(), w.team(), request)
	reason(t, err, k8sadapter.Unsupported)
}

// a sub-path works only with a driver that has one. Nothing creates the directory.
func TestSubPathsNeedADriverThatHasThem(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data", corev1.ReadWriteMany)
	whole := w.adapter(func(c *k8sadapter.Config) { c.Drivers = map[string]k8sadapter.Driver{w.driver(): {}} })
	request := ask("data")
	request.Mounts[0].SubPath = "dir"
	r, err := a.Resolve(t.Context(), w.team(), request)
	must(t, err)
	if r.Mounts[0].SubPath != "dir" {
		t.Errorf("mount %v", r.Mounts[0])
	}
	_, err = whole.Resolve(t.Context(), w.team(), request)
	reason(t, err, k8sadapter.SubPath)
	if !strings.Contains(err.Error(), "whole volumes only") {
		t.Errorf("error %v", err)
	}
}

// secrets are passed on by name and never read or logged, and so are the nodes that reach the storage.
func TestSecretsAreReferences(t *testing.T) {
	w := newWorld(t)
	log := &logged{}
	checked := errInjected
	a := w.adapter(func(c *k8sadapter.Config) {
		c.CheckSecret = func(_ context.Context, ref corev1.SecretReference) error { return checked }
	}, k8sadapter.WithLogger(log.logger()))
	pv := w.spec("pv", corev1.ReadWriteMany)
	pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "sandbox-system", Name: "the-secret"}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}}}}
	w.create(pv)
	_, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
	must(t, err)
	_, err = a.Resolve(t.Context(), w.team(), ask(pv.Name))
	reason(t, err, k8sadapter.SecretMissing)
	if strings.Contains(err.Error(), "the-secret") || strings.Contains(err.Error(), "sandbox-system") {
		t.Errorf("error %v names the secret", err)
	}
	checked = nil
	w.calls.take()
	r, err := a.Resolve(t.Context(), w.team(), ask(pv.Name))
	must(t, err)
	if ref := r.Volumes[0].SecretRef; ref == nil || ref.Name != "the-secret" || r.Volumes[0].NodeAffinity == nil {
		t.Errorf("volume %+v", r.Volumes[0])
	}
	if sent := w.calls.take(); sent["GET other"] != 0 {
		t.Errorf("requests %v: something else was read", sent)
	}
	if strings.Contains(r.Annotation, "secret") || log.has("secret-share") {
		t.Error("the annotation or the log has what is secret")
	}
}

func TestAMountNamesOneVolume(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "a", corev1.ReadWriteMany)
	w.volume(a, "b", corev1.ReadWriteMany)
	refs := func(refs ...k8sadapter.Ref) error {
		_, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: []k8sadapter.Mount{{Refs: refs, Path: "/d"}}})
		return err
	}
	must(t, refs(k8sadapter.Ref{Ref: "a"}, k8sadapter.Ref{Ref: w.name("a"), ID: true}))
	is(t, refs(k8sadapter.Ref{Ref: "a"}, k8sadapter.Ref{Ref: "b"}), volume.ErrInvalid)
	is(t, refs(k8sadapter.Ref{Ref: "a", ID: true}), volume.ErrNotFound) // a name where an id is wanted
	is(t, refs(), volume.ErrInvalid)
}

// One volume at two paths of one sandbox: reading, yes; writing, only separate directories of what many may write.
func TestOneVolumeAtTwoPaths(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "once")
	w.volume(a, "many", corev1.ReadWriteMany)
	w.volume(a, "pod", corev1.ReadWriteOncePod)
	for _, c := range []struct {
		volume     string
		ro1, ro2   bool
		sub1, sub2 string
		ok         bool
	}{
		{"once", true, true, "", "", true}, {"once", true, false, "", "", false}, {"once", false, false, "a", "b", false},
		{"many", true, true, "", "", true}, {"many", false, false, "", "", false}, {"many", false, false, "a", "b", true},
		{"many", false, false, "a", "a/b", false}, {"many", false, true, "a", "", false}, {"pod", true, true, "", "", false},
	} {
		r, err := a.Resolve(t.Context(), w.team(), k8sadapter.Request{Mounts: []k8sadapter.Mount{
			{Refs: []k8sadapter.Ref{{Ref: c.volume}}, Path: "/1", ReadOnly: &c.ro1, SubPath: c.sub1},
			{Refs: []k8sadapter.Ref{{Ref: c.volume}}, Path: "/2", ReadOnly: &c.ro2, SubPath: c.sub2}}})
		if c.ok {
			must(t, err)
			must(t, a.Release(t.Context(), r.Token))
			continue
		}
		reason(t, err, k8sadapter.MountedTwice)
	}
}

// the access modes decide who may be beside whom. A-160: not asking for read-only is asking to write where that can
// be.
func TestAccessModesDecideWhoMayShare(t *testing.T) {
	const rwo, rwx, rox, pod = corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOncePod
	modes := func(m ...corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode { return m }
	yes, no := flag(true), flag(false)
	for i, c := range []struct {
		modes  []corev1.PersistentVolumeAccessMode
		strict bool
		first  *bool
		second *bool
		want   k8sadapter.Reason // of the second; empty: both are mounted
		failed k8sadapter.Reason // of the first
		ro     bool              // the first's
	}{
		{modes: modes(rwo), first: nil, second: nil, want: k8sadapter.WriterExists},
		{modes: modes(rwo), first: no, second: yes},
		{modes: modes(rwo), first: yes, second: no, ro: true},
		{modes: modes(rwo), first: yes, second: yes, ro: true},
		{modes: modes(pod), first: nil, second: yes, want: k8sadapter.WriterExists},
		{modes: modes(pod), first: yes, second: yes, want: k8sadapter.WriterExists, ro: true},
		{modes: modes(rox), first: nil, second: nil, ro: true},
		{modes: modes(rox), first: no, failed: k8sadapter.WriteRefused},
		{modes: modes(rwx), first: nil, second: nil},
		{modes: modes(rwx), first: nil, second: no, strict: true, want: k8sadapter.WriterExists},
		{modes: modes(rwx), first: nil, second: yes, strict: true},
		{modes: modes(rwx, rox), first: nil, second: nil},
		{modes: modes(rwo, rox), first: nil, second: nil, want: k8sadapter.WriterExists},
		{modes: modes(rwo, rox), first: nil, second: yes},
	} {
		t.Run(fmt.Sprintf("%d %v strict=%t", i, c.modes, c.strict), func(t *testing.T) {
			w := newWorld(t)
			a := w.adapter(func(cfg *k8sadapter.Config) { cfg.Strict = c.strict })
			w.volume(a, "data", c.modes...)
			with := func(name string, readOnly *bool) (k8sadapter.Resolution, error) {
				r := ask("data")
				r.Mounts[0].ReadOnly = readOnly
				res, err := a.Resolve(t.Context(), w.team(), r)
				if err == nil {
					_, err = w.claim(w.team(), name, res)
					must(t, errors.Join(err, a.Confirm(t.Context(), res.Token)))
				}
				return res, err
			}
			r, err := with("first", c.first)
			if c.failed != "" {
				reason(t, err, c.failed)
				return
			}
			must(t, err)
			if r.Mounts[0].ReadOnly != c.ro {
				t.Errorf("the first is read-only: %t, want %t", r.Mounts[0].ReadOnly, c.ro)
			}
			_, err = with("second", c.second)
			if c.want == "" {
				must(t, err)
				return
			}
			reason(t, err, c.want)
			is(t, err, volume.ErrConflict)
			if !strings.Contains(err.Error(), "first") {
				t.Errorf("error %v does not say who writes", err)
			}
		})
	}
}

// A volume that its driver publishes read-only is only read, whatever its access modes.
func TestADriverCanBeReadOnly(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	pv := w.spec("pv", corev1.ReadWriteMany)
	pv.Spec.CSI.ReadOnly = true
	w.create(pv)
	v, err := a.Register(t.Context(), w.team(), k8sadapter.Registration{PV: pv.Name})
	must(t, err)
	r, err := a.Resolve(t.Context(), w.team(), ask(pv.Name))
	must(t, err)
	if v.Mode != volume.ReadOnly || !r.Mounts[0].ReadOnly {
		t.Errorf("mode %q, mount %v", v.Mode, r.Mounts[0])
	}
	_, err = a.Resolve(t.Context(), w.team(), ask(pv.Name, false))
	reason(t, err, k8sadapter.WriteRefused)
}

// One writer by driver and handle, across tenants and PersistentVolumes; the other tenant is not named.
func TestTwoPVsOfOneHandleHaveOneWriter(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	// The second manager's cache knows of no alias: what it learns, it learns from the lease.
	b := w.adapter(func(c *k8sadapter.Config) { c.PersistentVolumes = deaf{w.pvs} })
	w.volume(a, "data")
	alias := w.spec("alias")
	alias.Spec.CSI.VolumeHandle = w.name("data")
	w.create(alias)
	_, err := b.Register(t.Context(), w.other(), k8sadapter.Registration{PV: alias.Name, Name: "mine"})
	must(t, err)
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	open := func() {
		_, err := b.Resolve(t.Context(), w.other(), ask("mine"))
		reason(t, err, k8sadapter.WriterExists)
		if strings.Contains(err.Error(), w.team()) || strings.Contains(err.Error(), "the-claim") {
			t.Errorf("error %v names another tenant's", err)
		}
	}
	open()
	c, err := w.claim(w.team(), "the-claim", r)
	must(t, err)
	open()
	must(t, a.Confirm(t.Context(), r.Token))
	open()
	open() // a refused resolution forgets nothing
	must(t, w.claims(w.team()).Delete(t.Context(), c.GetName(), metav1.DeleteOptions{}))
	// Nothing has to be released: the use is over when what used it is gone.
	r, err = b.Resolve(t.Context(), w.other(), ask("mine"))
	must(t, err)
	must(t, b.Confirm(t.Context(), r.Token))
}

// What only one may write is kept from others while it is resolved, and until two minutes of their own time are over.
func TestAnUnconfirmedResolutionLapses(t *testing.T) {
	w := newWorld(t)
	mine, theirs := newClock(), newClock()
	a := w.adapter(nil, k8sadapter.WithClock(mine.Now))
	b := w.adapter(nil, k8sadapter.WithClock(theirs.Now))
	w.volume(a, "data")
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	theirs.add(time.Hour) // their clock is wrong: it decides nothing, since they have not seen the resolution before
	_, err = b.Resolve(t.Context(), w.team(), ask("data"))
	reason(t, err, k8sadapter.WriterExists)
	theirs.add(k8sadapter.ConfirmTime - time.Second)
	_, err = b.Resolve(t.Context(), w.team(), ask("data"))
	reason(t, err, k8sadapter.WriterExists)
	is(t, b.Delete(t.Context(), w.team(), "data"), volume.ErrInUse)
	theirs.add(time.Second)
	second, err := b.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	err = a.Confirm(t.Context(), r.Token) // its own clock says that there is time
	reason(t, err, k8sadapter.Replaced)
	must(t, a.Release(t.Context(), r.Token)) // of what is not its any more: nothing
	must(t, b.Confirm(t.Context(), second.Token))
	must(t, b.Confirm(t.Context(), second.Token)) // again

	// And by its own clock, if nobody else came.
	r, err = a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	mine.add(k8sadapter.ConfirmTime)
	reason(t, a.Confirm(t.Context(), r.Token), k8sadapter.Lapsed)
}

func TestReleaseLetsOthersIn(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	r, err := a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	must(t, a.Release(t.Context(), r.Token))
	must(t, a.Release(t.Context(), r.Token))
	_, err = a.Resolve(t.Context(), w.team(), ask("data"))
	must(t, err)
	reason(t, a.Confirm(t.Context(), r.Token), k8sadapter.Replaced)
}

// A holder that asks again, for its pause and resume or because an answer was lost, is not in its own way.
func TestAHolderResolvesAgain(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "data")
	request := ask("data")
	request.Holder = k8sadapter.Holder{Kind: k8sadapter.Sandbox, Namespace: w.team(), Name: "sbx"}
	first, err := a.Resolve(t.Context(), w.team(), request)
	must(t, err)
	second, err := a.Resolve(t.Context(), w.team(), request)
	must(t, err)
	reason(t, a.Confirm(t.Context(), first.Token), k8sadapter.Replaced)
	w.sandbox(w.team(), "sbx", map[string]string{k8sadapter.VolumeConfig: second.Annotation})
	must(t, a.Confirm(t.Context(), second.Token))
	_, err = a.Resolve(t.Context(), w.team(), request)
	must(t, err)
	request.Holder.Name = "other"
	_, err = a.Resolve(t.Context(), w.team(), request)
	reason(t, err, k8sadapter.WriterExists)
}

// If one mount of several fails, none is kept from others.
func TestAFailedResolutionKeepsNothing(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "a")
	w.volume(a, "b")
	busy, err := a.Resolve(t.Context(), w.team(), ask("b"))
	must(t, err)
	both := k8sadapter.Request{Mounts: []k8sadapter.Mount{
		{Refs: []k8sadapter.Ref{{Ref: "a"}}, Path: "/a"}, {Refs: []k8sadapter.Ref{{Ref: "b"}}, Path: "/b"}}}
	_, err = a.Resolve(t.Context(), w.team(), both)
	reason(t, err, k8sadapter.WriterExists)
	only, err := a.Resolve(t.Context(), w.team(), ask("a"))
	must(t, err)
	must(t, errors.Join(a.Release(t.Context(), only.Token), a.Release(t.Context(), busy.Token)))
	_, err = a.Resolve(t.Context(), w.team(), both)
	must(t, err)
	blind := w.adapter(func(c *k8sadapter.Config) { c.Usage = usage{err: errInjected} })
	_, err = blind.Resolve(t.Context(), w.team(), ask("a"))
	is(t, errors.Join(err), volume.ErrConflict) // still resolved by the request before
	w.volume(a, "c")
	_, err = blind.Resolve(t.Context(), w.team(), ask("c"))
	is(t, err, volume.ErrUnavailable)
	_, err = a.Resolve(t.Context(), w.team(), ask("c"))
	must(t, err)
}

func TestAClaimOfSeveralSandboxesCannotWriteAlone(t *testing.T) {
	w := newWorld(t)
	a := w.adapter(nil)
	w.volume(a, "once")
	w.volume(a, "many", corev1.ReadWriteMany)
	for name, ok := range map[string]bool{"once": false, "many": true} {
		r := ask(name)
		r.Replicas = 2
		_, err := a.Resolve(t.Context(), w.team(), r)
		if ok {
			must(t, err)
		} else {
			reason(t, err, k8sadapter.ManyWriters)
		}
	}
	r := ask("once", true)
	r.Replicas = 2
	_, err := a.Resolve(t.Context(), w.team(), r)
	must(t, err)
}

// The real server stores a lease once, whoever asks: of twenty resolutions one is made.
func TestTwentyRacersForOneWriterHaveOneWinner(t *testing.T) {
	w := newWorld(t)
	a, b := w.adapter(nil), w.adapter(nil)
	w.volume(a, "data")
	errs := make(chan error)
	for i := range 20 {
		go func() {
			_, err := []*k8sadapter.Adapter{a, b}[i%2].Resolve(t.Context(), w.team(), ask(w.name("data")))
			errs <- err
		}()
	}
	won := 0
	for range 20 {
		if err := <-errs; err == nil {
			won++
		} else {
			reason(t, err, k8sadapter.WriterExists)
		}
	}
	if won != 1 {
		t.Errorf("%d winners", won)
	}
}
