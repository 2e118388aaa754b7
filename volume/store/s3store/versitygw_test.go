package s3store_test

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/storetest"
)

// versitygwBinary returns the path of the server. SANDVOL_VERSITYGW names it, or says "build": then it is built here,
// or waited for while someone else builds it. Without that, one that was built before is used.
func versitygwBinary(t *testing.T) string {
	t.Helper()
	script, err := filepath.Abs("../../../internal/tools/versitygw/build")
	must(t, err)
	path := os.Getenv("SANDVOL_VERSITYGW")
	switch path {
	case "":
		out, err := exec.Command(script, "-cached").Output()
		if err != nil {
			t.Skip("versitygw is not built: run internal/tools/versitygw/build, once, for tests with a real S3 server")
		}
		return strings.TrimSpace(string(out))
	case "build":
		out, err := exec.Command(script).Output()
		if err != nil {
			t.Fatalf("build of versitygw: %v", err)
		}
		return strings.TrimSpace(string(out))
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("SANDVOL_VERSITYGW: %v", err)
	}
	return path
}

// versitygw is a running server over a directory.
type versitygw struct {
	endpoint  string
	transport *http.Transport
}

func (v *versitygw) config(bucket, prefix string) s3store.Config {
	return s3store.Config{
		Bucket: bucket, Prefix: prefix, Region: "us-east-1", Endpoint: v.endpoint, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("access", "secret-of-the-test", ""),
	}
}

func (v *versitygw) open(t testing.TB, bucket, prefix string, opts ...s3store.Option) *s3store.Store {
	t.Helper()
	s, err := s3store.New(t.Context(), v.config(bucket, prefix), append(opts, s3store.WithTransport(v.transport))...)
	must(t, err)
	return s
}

// client returns a plain client, for what a Store does not do.
func (v *versitygw) client() *s3.Client {
	cfg := v.config("", "")
	return s3.New(s3.Options{
		Region: cfg.Region, Credentials: cfg.Credentials, BaseEndpoint: &v.endpoint, UsePathStyle: true,
		HTTPClient: &http.Client{Transport: v.transport},
	})
}

// startVersitygw starts a server that ends with the test.
func startVersitygw(t *testing.T) *versitygw {
	t.Helper()
	binary := versitygwBinary(t)
	dir := t.TempDir()
	for _, d := range []string{"data", "versions"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	address := freeAddress(t)
	var output bytes.Buffer
	cmd := exec.Command(binary, "--port", address, "--access", "access", "--secret", "secret-of-the-test",
		"--keep-alive", "--quiet", "--health", "/health",
		"posix", "--versioning-dir", filepath.Join(dir, "versions"), filepath.Join(dir, "data"))
	cmd.Stdout, cmd.Stderr = &output, &output
	done := run(t, cmd)
	v := &versitygw{"http://" + address, &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(func() {
		v.transport.CloseIdleConnections()
		_ = cmd.Process.Kill() // it may have ended already
		<-done
	})
	for range 100 {
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

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// run starts a process that dies with this one, and returns what is closed when it has ended.
func run(t *testing.T, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
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

func (v *versitygw) healthy(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.endpoint+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := v.transport.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// a real server, with the probe before each store.
func TestS3storeOverVersitygwIsAStore(t *testing.T) {
	t.Parallel()
	v := startVersitygw(t)
	v.createBucket(t, "plain")
	storetest.RunQuick(t, prefixes(func(t testing.TB, prefix string) *s3store.Store {
		return v.open(t, "plain", prefix)
	}))
	t.Run("Parts", func(t *testing.T) { partsOverVersitygw(t, v) })
	t.Run("ProbeLeavesNothing", func(t *testing.T) { probeOverVersitygw(t, v) })
	t.Run("VersionedBucketIsRefused", func(t *testing.T) { versionsOverVersitygw(t, v) })
}

func (v *versitygw) createBucket(t *testing.T, name string) {
	t.Helper()
	_, err := v.client().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name})
	must(t, err)
}

// probeOverVersitygw looks for what the probes of all the stores before it left.
func probeOverVersitygw(t *testing.T, v *versitygw) {
	v.open(t, "plain", "probed/")
	out, err := v.client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{
		Bucket: aws.String("plain"), Prefix: aws.String("probed/"),
	})
	must(t, err)
	if len(out.Contents) > 0 {
		t.Errorf("the probe left %s", *out.Contents[0].Key)
	}
	v.wantUploads(t, 0)
}

// versionsOverVersitygw: this server takes the marker that a delete leaves in a bucket with versions for an object, and
// refuses the next write. AWS does not.
func versionsOverVersitygw(t *testing.T, v *versitygw) {
	v.createBucket(t, "versioned")
	_, err := v.client().PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket:                  aws.String("versioned"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	must(t, err)
	_, err = s3store.New(t.Context(), v.config("versioned", ""), s3store.WithTransport(v.transport))
	var unfit *s3store.UnfitError
	if !errors.As(err, &unfit) || !errors.Is(err, s3store.ErrUnfit) || !strings.Contains(unfit.Advice, "versions") {
		t.Errorf("%v, want an *UnfitError about versions", err)
	}
}

// partsOverVersitygw stores a blob in parts of the size that is used, and loses against it.
func partsOverVersitygw(t *testing.T, v *versitygw) {
	s := v.open(t, "plain", "parts/")
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	copy(data[len(data)/2:], "the middle")
	must(t, s.PutBlob(t.Context(), "blob", store.BytesSource(data)))
	b, err := s.OpenBlob(t.Context(), "blob")
	must(t, err)
	got := make([]byte, len(data))
	if n, err := b.ReadRange(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v, or other ones", n, len(data), err)
	}
	v.wantUploads(t, 0)
}

// wantUploads counts the uploads in parts that are neither completed nor aborted.
func (v *versitygw) wantUploads(t *testing.T, want int) {
	t.Helper()
	out, err := v.client().ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String("plain")})
	must(t, err)
	if len(out.Uploads) != want {
		t.Errorf("%d uploads are left, want %d", len(out.Uploads), want)
	}
}
