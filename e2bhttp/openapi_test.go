package e2bhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
)

var loadDocument = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(e2bhttp.OpenAPI())
	if err == nil {
		err = doc.Validate(context.Background())
	}
	return doc, err
})

// documented is a transport that holds each exchange against the document. A request that the document does not allow may be
// sent, and must then not succeed; an answer that it does not allow is a fault.
func documented(t testing.TB, next http.RoundTripper) http.RoundTripper {
	t.Helper()
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &validator{t, router, next}
}

type validator struct {
	t      testing.TB
	router routers.Router
	next   http.RoundTripper
}

// RoundTrip sends the request and validates both sides.
func (v *validator) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body)))
		r.ContentLength = -1
	}
	res, err := v.next.RoundTrip(r)
	if err != nil || res.StatusCode == http.StatusNotModified {
		return res, err
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(answer))
	if err := v.check(r, body, res, answer); err != nil {
		v.t.Errorf("%s %s: %s -> %d %s: not as the document says: %v", r.Method, r.URL.RequestURI(), body, res.StatusCode, answer, err)
	}
	return res, nil
}

func (v *validator) check(r *http.Request, body []byte, res *http.Response, answer []byte) error {
	route, params, err := v.router.FindRoute(r)
	if err != nil {
		return nil // no path of the document: such as one with doubled slashes
	}
	in := r.Clone(context.Background())
	in.Body = io.NopCloser(bytes.NewReader(body))
	in.ContentLength = int64(len(body))
	if len(body) == 0 {
		in.Body = http.NoBody
	}
	input := &openapi3filter.RequestValidationInput{Request: in, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true}}
	if res.StatusCode < 400 {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			return fmt.Errorf("request: %w", err)
		}
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(answer)),
		Options: input.Options})
}

// the document is served as it is embedded, without credentials, and is valid.
func TestDocumentIsServedAndValid(t *testing.T) {
	a := newAPI(t)
	got := a.do("GET", "/openapi.json", "", header{"X-API-Key": ""}).is(200)
	if !bytes.Equal(got.body, e2bhttp.OpenAPI()) || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("served another document, of type %q", got.header.Get("Content-Type"))
	}
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("version %q", doc.OpenAPI)
	}
	a.do("POST", "/openapi.json", "").is(405)
}

// each documented operation is served, and answers 401 before anything else to a caller without a key.
func TestEveryDocumentedOperationIsServed(t *testing.T) {
	a := newAPI(t)
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		path = strings.NewReplacer("{volumeID}", "v", "{snapshotID}", "s").Replace(path)
		for method := range item.Operations() {
			a.do(method, path, "", header{"X-API-Key": ""}).is(401)
		}
		allow := a.do("OPTIONS", path, "").is(204).header.Get("Allow")
		for _, method := range strings.Split(allow, ", ") {
			if _, ok := item.Operations()[method]; !ok && method != "OPTIONS" && method != "HEAD" {
				t.Errorf("%s %s is served and not documented", method, path)
			}
		}
	}
}

func TestErrorCodesAreThoseOfTheDocument(t *testing.T) {
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, v := range doc.Components.Schemas["Error"].Value.Properties["error_code"].Value.Enum {
		documented = append(documented, v.(string))
	}
	if codes := wire.ErrorCodes(); !slices.Equal(codes, documented) {
		t.Errorf("codes %q, documented %q", codes, documented)
	}
}
