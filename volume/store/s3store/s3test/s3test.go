package s3test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/sandvol/sandvol/volume/store/s3store"
)

// Bucket is the bucket of a Server.
const Bucket = "bucket"

// Server is an S3 server in memory with one empty bucket. Make one with New.
type Server struct {
	// URL is the endpoint, for path-style requests.
	URL string
	// Handler is what answers behind the URL, for tests that want no network.
	Handler http.Handler

	transport *http.Transport
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	handler := NewHandler(t)
	srv := httptest.NewServer(handler)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	return &Server{URL: srv.URL, Handler: handler, transport: transport}
}

// NewHandler returns the handler of a new server, with an empty bucket.
func NewHandler(t testing.TB) http.Handler {
	t.Helper()
	return &conditional{inner: Unconditional(t)}
}

// Unconditional returns a handler that is unfit for a store: an upload in parts that is completed replaces an object
// whatever its condition says. gofakes3 is like this.
func Unconditional(t testing.TB) http.Handler {
	t.Helper()
	backend := s3mem.New()
	must(t, backend.CreateBucket(Bucket))
	return gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithTimeSkewLimit(0)).Server()
}

// Config returns the configuration for keys below a prefix of the server's bucket.
func (s *Server) Config(prefix string) s3store.Config {
	return s3store.Config{
		Bucket: Bucket, Prefix: prefix, Region: "us-east-1", Endpoint: s.URL, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("access", "secret", ""),
	}
}

// Open returns a store below a prefix of the server's bucket. The bucket was not probed: it is known.
func (s *Server) Open(t testing.TB, prefix string, opts ...s3store.Option) *s3store.Store {
	t.Helper()
	opts = append([]s3store.Option{s3store.WithoutProbe(), s3store.WithTransport(s.transport)}, opts...)
	st, err := s3store.New(t.Context(), s.Config(prefix), opts...)
	must(t, err)
	return st
}

// Latency returns a transport to the server on which every request takes d longer, or until its context ends.
func (s *Server) Latency(d time.Duration) http.RoundTripper { return latency{d, s.transport} }

type latency struct {
	d    time.Duration
	next http.RoundTripper
}

func (l latency) RoundTrip(r *http.Request) (*http.Response, error) {
	t := time.NewTimer(l.d)
	defer t.Stop()
	select {
	case <-t.C:
		return l.next.RoundTrip(r)
	case <-r.Context().Done():
		if r.Body != nil {
			_ = r.Body.Close() // a transport must, also when it fails
		}
		return nil, r.Context().Err()
	}
}

// conditional adds to gofakes3 what it lacks: the condition of a completed upload.
type conditional struct {
	mu    sync.RWMutex // a completion excludes all other writes between its check and its effect
	inner http.Handler
}

func (c *conditional) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	complete := r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
	switch {
	case complete && r.Header.Get("If-None-Match") == "*":
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.exists(r) {
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = w.Write([]byte("<Error><Code>PreconditionFailed</Code></Error>")) // the client may be gone
			return
		}
	case r.Method == http.MethodPut && !r.URL.Query().Has("uploadId"):
		c.mu.RLock()
		defer c.mu.RUnlock()
	}
	c.inner.ServeHTTP(w, r)
}

func (c *conditional) exists(r *http.Request) bool {
	head := httptest.NewRequest(http.MethodHead, r.URL.Path, nil).WithContext(r.Context())
	rec := httptest.NewRecorder()
	c.inner.ServeHTTP(rec, head)
	return rec.Code == http.StatusOK
}
