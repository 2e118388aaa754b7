package s3test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandvol/sandvol/volume/store/s3store"
)

// Versitygw is a real S3 server over a directory, in a process of its own. Make one with StartVersitygw.
type Versitygw struct {
	// URL is the endpoint, for path-style requests.
	URL string
	// Transport keeps connections to it.
	Transport *http.Transport
}

// StartVersitygw starts a server without buckets that ends with the test. SANDVOL_VERSITYGW names its program, or says "build":
// then it is built, or waited for while somebody else builds it. Without that, one that was built before is used; where there
// is none the test is skipped, or fails if real parts are required.
func StartVersitygw(t testing.TB) *Versitygw {
	t.Helper()
	program := versitygwProgram(t)
	dir := t.TempDir()
	data, versions := filepath.Join(dir, "data"), filepath.Join(dir, "versions")
	for _, d := range []string{data, versions} {
		must(t, os.Mkdir(d, 0o700))
	}
	address := freeAddress(t)
	var output bytes.Buffer
	cmd := exec.Command(program, "--port", address, "--access", "access", "--secret", "secret-of-the-test",
		"--keep-alive", "--quiet", "--health", "/health", "posix", "--versioning-dir", versions, data)
	cmd.Stdout, cmd.Stderr = &output, &output
	done := startToDieWithTest(t, cmd)
	v := &Versitygw{"http://" + address, &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(func() {
		v.Transport.CloseIdleConnections()
		_ = cmd.Process.Kill() // it may have ended already
		<-done
	})
	for range 200 {
		if v.healthy(t.Context()) {
			return v
		}
		select {
		case <-done:
			t.Fatalf("versitygw ended: %s", output.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("versitygw does not answer")
	return nil
}

func versitygwProgram(t testing.TB) string {
	t.Helper()
	program := os.Getenv("SANDVOL_VERSITYGW")
	args := []string{"-cached"}
	switch program {
	case "":
	case "build":
		args = nil
	default:
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("SANDVOL_VERSITYGW: %v", err)
		}
		return program
	}
	out, err := exec.Command(filepath.Join(moduleRoot(t), "internal/tools/versitygw/build"), args...).Output()
	switch {
	case err == nil:
	case program == "build", os.Getenv("SANDVOL_REQUIRE_REAL") == "1":
		t.Fatalf("build of versitygw: %v", err)
	default:
		t.Skip("versitygw is not built: run internal/tools/versitygw/build, once, for tests with a real S3 server")
	}
	return strings.TrimSpace(string(out))
}

// moduleRoot is the directory of go.mod, from wherever below it a test runs.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	must(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

// startToDieWithTest starts a process that ends when this one does, and returns what is closed when it has ended.
func startToDieWithTest(t testing.TB, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		// The signal is sent when the thread that started the process ends, so it must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	must(t, <-started)
	return done
}

func (v *Versitygw) healthy(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.URL+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := v.Transport.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // nothing of it is read
	return resp.StatusCode == http.StatusOK
}

// Config returns the configuration for keys below a prefix of a bucket.
func (v *Versitygw) Config(bucket, prefix string) s3store.Config {
	return s3store.Config{
		Bucket: bucket, Prefix: prefix, Region: "us-east-1", Endpoint: v.URL, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("access", "secret-of-the-test", ""),
	}
}

// Open returns a store below a prefix of a bucket, which is probed.
func (v *Versitygw) Open(t testing.TB, bucket, prefix string, opts ...s3store.Option) *s3store.Store {
	t.Helper()
	s, err := s3store.New(t.Context(), v.Config(bucket, prefix), append(opts, s3store.WithTransport(v.Transport))...)
	must(t, err)
	return s
}

// Client returns a plain client, for what a Store does not do.
func (v *Versitygw) Client() *s3.Client {
	cfg := v.Config("", "")
	return s3.New(s3.Options{
		Region: cfg.Region, Credentials: cfg.Credentials, BaseEndpoint: &v.URL, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: v.Transport},
	})
}

// CreateBucket makes an empty bucket.
func (v *Versitygw) CreateBucket(t testing.TB, name string) {
	t.Helper()
	_, err := v.Client().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name})
	must(t, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
