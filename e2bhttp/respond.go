package e2bhttp

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"

	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// retryAfter is what a 503 asks a client to wait, in whole seconds: the only form that E2B's SDK obeys.
const retryAfter = "1"

// WriteError answers a request with an error of this package, of package volume or of package mount, in E2B's form. It is
// what a host uses in its own routes, so that they answer as these do. What the caller is not to know is left out.
func WriteError(w http.ResponseWriter, err error) { writeProblem(w, explain(err)) }

// ErrorBody returns the answer that WriteError gives.
func ErrorBody(err error) wire.Error { return explain(err).body() }

func writeProblem(w http.ResponseWriter, p *problem) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	writeJSON(w, p.status, p.body())
}

// writeJSON answers with a whole body. The body is small, and an error in making it is one of the program.
func writeJSON(w http.ResponseWriter, status int, body any) {
	// One buffer, so that net/http sends a Content-Length.
	var out bytes.Buffer
	if err := json.MarshalWrite(&out, body, json.Deterministic(true)); err != nil {
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(out.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // the client has gone: nobody is left to tell
}
