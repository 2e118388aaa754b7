package s3store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/sandvol/sandvol/volume/store/s3store"
	"github.com/sandvol/sandvol/volume/store/s3store/s3test"
)

// wire carries requests to a handler in this process, without a network, so that tests can run on a fake clock. Requests
// go wrong as its fault says.
type wire struct {
	handler http.Handler
	// fault returns what happens to a request, nil for nothing. It is called by one goroutine at a time.
	fault func(request) fault

	mu     sync.Mutex
	counts map[string]int
	log    []string
}

// request is what a fault is chosen by.
type request struct {
	*http.Request
	op string // "PUT", or "POST uploads" for what the query asks for
	n  int    // the n-th request of this op, from 1
}

// fault is an answer to a request. It calls send for what the server answers.
type fault func(r *http.Request, send func() *http.Response) (*http.Response, error)

func newWire(t testing.TB) *wire { return &wire{handler: s3test.NewHandler(t)} }

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // nothing of it is needed any more
	}
	send := func() *http.Response { return w.serve(r, body) }
	w.mu.Lock()
	op := opOf(r)
	if w.counts == nil {
		w.counts = map[string]int{}
	}
	w.counts[op]++
	w.log = append(w.log, op)
	var f fault
	if w.fault != nil {
		f = w.fault(request{r, op, w.counts[op]})
	}
	w.mu.Unlock()
	if f == nil {
		return send(), nil
	}
	return f(r, send)
}

// opOf names a request by its method and what its query asks for.
func opOf(r *http.Request) string {
	op := r.Method
	for _, what := range []string{"uploads", "uploadId", "list-type"} {
		if r.URL.Query().Has(what) {
			op += " " + what
		}
	}
	return op
}

func (w *wire) serve(r *http.Request, body []byte) *http.Response {
	in := r.Clone(context.WithoutCancel(r.Context()))
	in.Body = io.NopCloser(bytes.NewReader(body))
	in.RequestURI = r.URL.RequestURI()
	in.Header.Set("Content-Length", strconv.Itoa(len(body))) // as it is on a real wire
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, in)
	resp := rec.Result()
	resp.Request = r
	if r.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp
}

// count returns how many requests of an op were sent.
func (w *wire) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[op]
}

func (w *wire) ops() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *wire) config() s3store.Config {
	return s3store.Config{
		Bucket: s3test.Bucket, Region: "us-east-1", Endpoint: "http://s3.invalid", PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("access", "secret", ""),
	}
}

func (w *wire) open(t testing.TB) *s3store.Store {
	t.Helper()
	s, err := s3store.New(t.Context(), w.config(), s3store.WithoutProbe(), s3store.WithTransport(w))
	must(t, err)
	return s
}

// hit returns the plan that does f to the first n requests of an op.
func hit(op string, n int, f fault) func(request) fault {
	return func(r request) fault {
		if r.op == op && r.n <= n {
			return f
		}
		return nil
	}
}

var errReset = fmt.Errorf("read tcp: %w", syscall.ECONNRESET)

// lost: the request never arrives.
func lost(*http.Request, func() *http.Response) (*http.Response, error) { return nil, errReset }

// lostReply: the request takes effect, and its answer is lost.
func lostReply(_ *http.Request, send func() *http.Response) (*http.Response, error) {
	_ = send()
	return nil, errReset
}

// twice: something on the way sends the request twice and passes on the second answer.
func twice(_ *http.Request, send func() *http.Response) (*http.Response, error) {
	_ = send()
	return send(), nil
}

// hang: no answer, until the client gives up.
func hang(r *http.Request, _ func() *http.Response) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// answer: the request has no effect, and this is the answer. Headers are pairs.
func answer(status int, code string, headers ...string) fault {
	return func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
		body := ""
		if code != "" {
			body = "<Error><Code>" + code + "</Code><Message>injected</Message></Error>"
		}
		resp := &http.Response{
			StatusCode: status, Status: http.StatusText(status), Request: r, ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)),
		}
		for pair := range slices.Chunk(headers, 2) {
			resp.Header.Set(pair[0], pair[1])
		}
		return resp, nil
	}
}

// cut: the body breaks off after n bytes.
func cut(n int64, err error) fault {
	return bodied(func(_ *http.Request, body io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(body, n), readerFunc(func([]byte) (int, error) { return 0, err }))
	})
}

// stuck: the body stops after n bytes, until the client gives up.
func stuck(n int64) fault {
	return bodied(func(r *http.Request, body io.Reader) io.Reader {
		return io.MultiReader(io.LimitReader(body, n), readerFunc(func([]byte) (int, error) {
			<-r.Context().Done()
			return 0, r.Context().Err()
		}))
	})
}

// trickle: the body comes byte by byte, each after a pause.
func trickle(pause time.Duration) fault {
	return bodied(func(r *http.Request, body io.Reader) io.Reader {
		return readerFunc(func(p []byte) (int, error) {
			time.Sleep(pause)
			if err := r.Context().Err(); err != nil {
				return 0, err
			}
			return body.Read(p[:1])
		})
	})
}

func bodied(f func(*http.Request, io.Reader) io.Reader) fault {
	return func(r *http.Request, send func() *http.Response) (*http.Response, error) {
		resp := send()
		resp.Body = io.NopCloser(f(r, resp.Body))
		return resp, nil
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func wantIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// wantUnclear wants an error of no class: the caller must read back.
func wantUnclear(t testing.TB, err error, not ...error) {
	t.Helper()
	if err == nil {
		t.Error("no error, want one that promises nothing")
	}
	for _, class := range not {
		if errors.Is(err, class) {
			t.Errorf("%v is %v, want one that promises nothing", err, class)
		}
	}
}
