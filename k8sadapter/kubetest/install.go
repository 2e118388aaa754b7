package kubetest

import (
	"bytes"
	"context"
	_ "embed" // crds.yaml
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

//go:embed crds.yaml
var crds []byte

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// install creates the resources of OpenKruise and waits until they are served.
func (s *Server) install(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	client, err := dynamic.NewForConfigAndClient(s.config, httpClient)
	if err != nil {
		return err
	}
	objects, err := Decode(crds)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if _, err := client.Resource(crdResource).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("kubetest: create %s: %w", o.GetName(), err)
		}
		plural, _, _ := unstructured.NestedString(o.Object, "spec", "names", "plural")
		if err := served(ctx, client.Resource(schema.GroupVersionResource{Group: "agents.kruise.io", Version: "v1alpha1",
			Resource: plural})); err != nil {
			return fmt.Errorf("kubetest: %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// served waits until a resource can be listed.
func served(ctx context.Context, r dynamic.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		_, err := r.List(ctx, metav1.ListOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Decode reads the objects of a manifest, which are separated by lines of three dashes.
func Decode(manifest []byte) (objects []*unstructured.Unstructured, err error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("kubetest: manifest: %w", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}
