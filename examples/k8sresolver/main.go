// Command k8sresolver shows how a sandbox manager on Kubernetes offers PersistentVolumes over E2B's HTTP API. It serves the
// volume routes and POST /sandboxes, which makes an OpenKruise SandboxClaim with the mounts that the request asks for, both
// also below /kruise/api.
//
//	K8SRESOLVER_KEYS=e2b_0123=team-a,e2b_4567=team-b \
//	k8sresolver -kubeconfig ~/.kube/config -drivers nas.example.com=path,oss.example.com
//
// A key's namespace is the tenant. What it shows is host.go: decode, resolve, store, confirm, and what to undo.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandvol/sandvol/k8sadapter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "k8sresolver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file; empty inside a cluster")
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve on")
	system := flag.String("system-namespace", "sandbox-system", "namespace for leases, which no tenant may write")
	drivers := flag.String("drivers", "", "CSI drivers that may be mounted: name or name=sub-path-attribute, comma separated")
	remove := flag.Bool("delete-pv", false, "deleting a volume deletes its PersistentVolume")
	flag.Parse()
	keys, err := pairs(os.Getenv("K8SRESOLVER_KEYS"))
	if err != nil {
		return fmt.Errorf("K8SRESOLVER_KEYS: %w", err)
	}
	table, err := driverTable(*drivers)
	if err != nil {
		return fmt.Errorf("-drivers: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	s := settings{System: *system, Keys: keys, Drivers: table, Log: slog.New(slog.NewJSONHandler(os.Stderr, nil))}
	if *remove {
		s.Delete = k8sadapter.DeletePV
	}
	return serve(ctx, config, *listen, s)
}

// serve serves until ctx ends.
func serve(ctx context.Context, config *rest.Config, listen string, s settings) error {
	h, err := newHost(config, s)
	if err != nil {
		return err
	}
	defer h.close()
	if err := h.start(ctx); err != nil {
		return err
	}
	server := &http.Server{Addr: listen, Handler: h.routes(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Requests under way are finished: each may have stored something that it has yet to confirm.
	rest, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = server.Shutdown(rest)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// pairs reads key=value,key=value.
func pairs(text string) (map[string]string, error) {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || k == "" || v == "" {
			return nil, errors.New("must be key=value, comma separated")
		}
		all[k] = v
	}
	return all, nil
}

func driverTable(text string) (map[string]k8sadapter.Driver, error) {
	table := map[string]k8sadapter.Driver{}
	for entry := range strings.SplitSeq(text, ",") {
		name, attribute, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if name == "" {
			return nil, errors.New("at least one driver is needed")
		}
		table[name] = k8sadapter.Driver{SubPathAttribute: attribute}
	}
	return table, nil
}
