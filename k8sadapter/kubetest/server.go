package kubetest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
)

// Server is a running Kubernetes API. Its methods may be called concurrently.
type Server struct {
	dir       string
	etcd      *process
	apiserver *process
	config    *rest.Config
}

// attempts is how often other ports are tried: a free one can be taken before the server binds it.
const attempts = 3

// readyTime bounds the start of one process. On a busy machine it takes many times the usual five seconds.
const readyTime = 3 * time.Minute

// Start starts a server with the binaries in a directory, and installs the resources of OpenKruise.
func Start(ctx context.Context, binaries string) (s *Server, err error) {
	for range attempts {
		if s, err = start(ctx, binaries); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if err := s.install(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Config returns the configuration of a client that may do anything. Each call returns its own.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	s.apiserver.stop()
	s.etcd.stop()
	_ = os.RemoveAll(s.dir) // what stays is in the directory for temporary files
}

func start(ctx context.Context, binaries string) (*Server, error) {
	dir, err := os.MkdirTemp("", "sandvol-kube-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.run(ctx, binaries); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) run(ctx context.Context, binaries string) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	s.etcd, err = spawn(filepath.Join(binaries, "etcd"), "--data-dir", filepath.Join(s.dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--unsafe-no-fsync=true", "--log-level=error") // the data need not outlive the process
	if err != nil {
		return err
	}
	if err := s.etcd.wait(ctx, &rest.Config{Host: client}, "/health"); err != nil {
		return err
	}
	token, err := s.credentials()
	if err != nil {
		return err
	}
	s.apiserver, err = spawn(filepath.Join(binaries, "kube-apiserver"), "--etcd-servers", client,
		"--cert-dir", filepath.Join(s.dir, "certs"), "--bind-address", "127.0.0.1", "--secure-port", ports[2],
		"--advertise-address", "127.0.0.1", "--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
		"--token-auth-file", s.file("tokens.csv"), "--service-account-issuer", "https://localhost",
		"--service-account-key-file", s.file("key.pem"), "--service-account-signing-key-file", s.file("key.pem"),
		"--disable-admission-plugins", "ServiceAccount,StorageObjectInUseProtection")
	if err != nil {
		return err
	}
	// The certificate is the server's own, made when it starts, and the connection never leaves the machine.
	s.config = &rest.Config{Host: "https://127.0.0.1:" + ports[2], BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	return s.apiserver.wait(ctx, s.config, "/readyz")
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

// credentials writes the administrator's token and the key for tokens of service accounts.
func (s *Server) credentials() (token string, err error) {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	token = hex.EncodeToString(random)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return token, errors.Join(os.WriteFile(s.file("key.pem"), text, 0o600),
		os.WriteFile(s.file("tokens.csv"), []byte(token+",admin,admin,system:masters\n"), 0o600))
}

// freePorts returns ports that are free now, all different.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("kubetest: %w", err)
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}
