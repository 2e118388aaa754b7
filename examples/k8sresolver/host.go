package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/sandvol/sandvol/e2bhttp"
	e2bmetrics "github.com/sandvol/sandvol/e2bhttp/metrics"
	"github.com/sandvol/sandvol/k8sadapter"
	"github.com/sandvol/sandvol/k8sadapter/metrics"
)

// settings are the host's choices.
type settings struct {
	System  string
	Keys    map[string]string // API key to namespace
	Drivers map[string]k8sadapter.Driver
	Delete  k8sadapter.DeleteMode
	Log     *slog.Logger
}

// host is the sandbox manager.
type host struct {
	adapter *k8sadapter.Adapter
	volumes *e2bhttp.Handler
	claims  dynamic.NamespaceableResourceInterface
	log     *slog.Logger
	client  *http.Client
}

func newHost(config *rest.Config, s settings) (*host, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := coreclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	coordination, err := coordinationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	requests, err := e2bmetrics.New(registry)
	if err != nil {
		return nil, err
	}
	operations, err := metrics.New(registry, "")
	if err != nil {
		return nil, err
	}
	h := &host{claims: objects.Resource(k8sadapter.SandboxClaims), log: s.Log, client: client}
	h.adapter, err = k8sadapter.New(k8sadapter.Config{
		PersistentVolumes: core.PersistentVolumes(),
		Leases:            coordination.Leases(s.System),
		Usage:             k8sadapter.OpenKruise{Claims: h.claims, Sandboxes: objects.Resource(k8sadapter.Sandboxes)},
		Drivers:           s.Drivers, Delete: s.Delete, SecretNamespaces: []string{s.System},
	}, k8sadapter.WithLogger(s.Log), k8sadapter.WithObserver(operations.ObserveMounts))
	if err != nil {
		return nil, err
	}
	auth, err := e2bhttp.APIKeys(s.Keys)
	if err != nil {
		return nil, err
	}
	h.volumes = e2bhttp.NewHandler(h.tenant, auth, e2bhttp.WithPrefix("/kruise/api"), e2bhttp.WithLogger(s.Log),
		e2bhttp.WithObserver(requests.Observe))
	return h, nil
}

func (h *host) start(ctx context.Context) error { return h.adapter.Start(ctx) }

func (h *host) close() {
	h.adapter.Close()
	h.client.CloseIdleConnections()
}

// tenant is e2bhttp's way to a tenant's volumes.
func (h *host) tenant(_ context.Context, namespace string) (e2bhttp.Volumes, error) {
	v, err := h.adapter.Tenant(namespace)
	if err != nil {
		return nil, err // not v: a nil *Tenant would be a Volumes that is not nil
	}
	return v, nil
}

func (h *host) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h.volumes)
	create := h.volumes.Authenticate(http.HandlerFunc(h.createSandbox))
	for _, route := range []string{"POST /sandboxes", "POST /v2/sandboxes", "POST /kruise/api/sandboxes"} {
		mux.Handle(route, create)
	}
	return mux
}
