package k8sadapter_test

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/k8sadapter"
)

// An adapter on a cluster. Examples/k8sresolver is a whole host.
func ExampleNew() {
	config, err := rest.InClusterConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	objects := dynamic.NewForConfigOrDie(config)
	a, err := k8sadapter.New(k8sadapter.Config{
		PersistentVolumes: coreclient.NewForConfigOrDie(config).PersistentVolumes(),
		Leases:            v1.NewForConfigOrDie(config).Leases("sandbox-system"),
		Usage: k8sadapter.OpenKruise{Claims: objects.Resource(k8sadapter.SandboxClaims),
			Sandboxes: objects.Resource(k8sadapter.Sandboxes)},
		Drivers: map[string]k8sadapter.Driver{"nas.example.com": {SubPathAttribute: "path"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	if err := a.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	v, err := a.Register(context.Background(), "team-a", k8sadapter.Registration{PV: "pv-001", Name: "data"})
	fmt.Println(v.ID, v.Name, err)
}

// Resolve, store, confirm; and if anything fails, remove what was stored and release.
func ExampleAdapter_Resolve() {
	var a *k8sadapter.Adapter            // see New
	var claims dynamic.ResourceInterface // of the namespace
	var claim *unstructured.Unstructured // the SandboxClaim that the host is about to create
	create := func(ctx context.Context, mounts []k8sadapter.Mount) error {
		r, err := a.Resolve(ctx, "team-a", k8sadapter.Request{Mounts: mounts,
			Holder: k8sadapter.Holder{Kind: k8sadapter.Claim, Namespace: "team-a", Name: claim.GetName()}})
		if err != nil {
			return err
		}
		if err = r.Apply(claim); err == nil {
			_, err = claims.Create(ctx, claim, metav1.CreateOptions{})
		}
		if err == nil {
			err = a.Confirm(ctx, r.Token)
		}
		if err != nil {
			ctx = context.WithoutCancel(ctx)
			_ = claims.Delete(ctx, claim.GetName(), metav1.DeleteOptions{}) // it may not have been made
			return errors.Join(err, a.Release(ctx, r.Token))
		}
		return nil
	}
	_ = create
}

// The mounts of an E2B request, in any of its forms, as mounts for Resolve. Mode and Fault go along: without them something
// would be mounted that was not asked for.
func ExampleMount() {
	entries, err := e2bhttp.MountRules{SubPaths: true}.Decode([]byte(
		`{"volumeMounts":[{"name":"data","path":"/data"},{"name":"set","path":"/set","readOnly":"yes"}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range entries {
		m := k8sadapter.Mount{Where: e.Where, Path: e.Path, SubPath: e.SubPath, ReadOnly: e.ReadOnly, Mode: e.Mode, Fault: e.Fault()}
		for _, ref := range e.Refs {
			m.Refs = append(m.Refs, k8sadapter.Ref(ref))
		}
		fmt.Println(m.Where, m.Path, m.Fault)
	}
	// Output:
	// volumeMounts[0] /data <nil>
	// volumeMounts[1] /set readOnly: must be true or false
}

func ExampleParseVolumeConfig() {
	mounts, err := k8sadapter.ParseVolumeConfig(`[{"pvName": "shared-pv-1", "mountPath": "/data1"},
		{"pvName": "shared-pv-2", "mountPath": "/data2", "subPath": "sub/dir", "readOnly": true}]`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range mounts {
		fmt.Printf("%s at %s, directory %q\n", m.Refs[0].Ref, m.Path, m.SubPath)
	}
	// Output:
	// shared-pv-1 at /data1, directory ""
	// shared-pv-2 at /data2, directory "sub/dir"
}
