package e2bhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// Handler serves the volume API. Its methods may be called concurrently.
type Handler struct {
	tenants Tenants
	auth    Authenticator
	settings
	turns turns
}

// NewHandler returns the handler of the tenants' volumes. Both arguments are needed; nil is a mistake in the program and
// panics, as http.Handle does.
func NewHandler(tenants Tenants, auth Authenticator, opts ...Option) *Handler {
	if tenants == nil || auth == nil {
		panic("e2bhttp: NewHandler needs tenants and an authenticator")
	}
	s := defaults()
	for _, opt := range opts {
		opt(&s)
	}
	return &Handler{tenants: tenants, auth: auth, settings: s}
}

// Observation is one request to a known route, for metrics.
type Observation struct {
	// Operation is one of the Op constants.
	Operation string
	// Result is "ok" or a class: invalid, denied, not_found, conflict, unsupported, unavailable, error.
	Result   string
	Duration time.Duration
}

// Result returns the class of an error as an Observation has it, "ok" for nil.
func Result(err error) string {
	if err == nil {
		return "ok"
	}
	return result(explain(err).status)
}

func result(status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "denied"
	case http.StatusNotFound:
		return "not_found"
	case http.StatusConflict:
		return "conflict"
	case http.StatusNotImplemented:
		return "unsupported"
	case http.StatusServiceUnavailable:
		return "unavailable"
	}
	switch {
	case status < http.StatusBadRequest:
		return "ok"
	case status < http.StatusInternalServerError:
		return "invalid"
	}
	return "error"
}

// call is one request under way.
type call struct {
	h       *Handler
	w       *recorder
	r       *http.Request
	op      string
	route   string
	tenant  string
	volumes Volumes
	id      string // the one in the path
	began   time.Time
	failure *problem
}

// ServeHTTP serves the API, and answers everything else in its form too: E2B's Python client fails on an answer that is not
// JSON.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, (*call).dispatch)
}

// serve runs one request: with its id, its time limit, its log line, and an answer even if do panics.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, do func(*call) error) {
	ctx, cancel := context.WithTimeout(r.Context(), h.timeout)
	defer cancel()
	c := &call{h: h, w: &recorder{ResponseWriter: w}, r: r.WithContext(ctx), began: time.Now()}
	id := requestID(r)
	c.w.Header().Set(requestIDHeader, id)
	defer c.finish(id)
	c.answer(do(c))
}

// answer writes the answer for an error, unless an answer is under way already: then the connection is cut, so that the
// client does not take a part for the whole.
func (c *call) answer(err error) {
	if err == nil {
		return
	}
	c.failure = explain(err)
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeProblem(c.w, c.failure)
}

// finish is deferred: it logs and counts the request, and answers for one that panicked.
func (c *call) finish(id string) {
	broken := recover()
	// Whatever was written before is not the whole answer: the client must not take it for that.
	abort := broken == http.ErrAbortHandler || broken != nil && c.w.status != 0
	if broken != nil && broken != http.ErrAbortHandler {
		c.failure = &problem{status: http.StatusInternalServerError, message: "internal error",
			cause: fmt.Errorf("panic: %v\n%s", broken, debug.Stack())}
		if c.w.status == 0 {
			writeProblem(c.w, c.failure)
		}
	}
	status := c.w.status
	if broken != nil && c.failure != nil {
		status = c.failure.status
	}
	took := time.Since(c.began)
	if status != 0 { // else a host's route goes on with the request, and logs it
		c.log(id, status, took)
	}
	if c.op != "" {
		c.h.observe(Observation{Operation: c.op, Result: result(status), Duration: took})
	}
	if abort {
		panic(http.ErrAbortHandler)
	}
}

// log writes one line. It holds the route, not the path, and no header or body: what is secret is not in reach.
func (c *call) log(id string, status int, took time.Duration) {
	level := slog.LevelInfo
	if c.failure != nil && status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	if !c.h.settings.log.Enabled(c.r.Context(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("request", id), slog.String("method", c.r.Method), slog.String("route", c.route),
		slog.String("tenant", c.tenant), slog.Int("status", status), slog.Duration("took", took)}
	if c.failure != nil {
		attrs = append(attrs, slog.String("code", c.failure.code), slog.String("error", redactFor(c.r, c.failure.Error())))
	}
	c.h.settings.log.LogAttrs(c.r.Context(), level, "volume request", attrs...)
}

// dispatch finds the route and runs it.
func (c *call) dispatch() error {
	// A client that takes the answer a byte at a time is cut off in the end. Writers that have no deadlines, such as those
	// of tests, have no such clients.
	_ = http.NewResponseController(c.w).SetWriteDeadline(c.began.Add(2 * c.h.timeout))
	segments, ok := split(c.r.URL.EscapedPath())
	if !ok {
		return bad("", "path: not a valid percent-encoding")
	}
	for _, rest := range within(segments, c.h.prefixes) {
		if len(rest) > 0 && rest[0] == contentRoot {
			return c.content()
		}
		if len(rest) == 1 && rest[0] == documentPath {
			return c.document()
		}
		if rt, id, ok := match(rest); ok {
			return c.run(rt, id)
		}
	}
	return &problem{status: http.StatusNotFound, message: "no such route"}
}

func (c *call) run(rt route, id string) error {
	c.route, c.id = "/"+rt.path, id
	if c.r.Method == http.MethodOptions {
		return c.options(rt.allow())
	}
	m, ok := rt.method(c.r.Method)
	if !ok {
		return c.notAllowed(rt.allow())
	}
	c.op = m.op
	if err := c.authenticate(); err != nil {
		return err
	}
	return m.do(c)
}

func (c *call) options(allow string) error {
	c.w.Header().Set("Allow", allow)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) notAllowed(allow string) error {
	c.w.Header().Set("Allow", allow)
	return &problem{status: http.StatusMethodNotAllowed, message: "method not allowed, try " + allow}
}

// authenticate finds the tenant and its volumes.
func (c *call) authenticate() error {
	tenant, err := c.h.auth(c.r)
	switch {
	case err == nil && tenant == "":
		return fmt.Errorf("%w: the authenticator named no tenant", ErrUnauthenticated)
	case err == nil, errors.Is(err, ErrForbidden), errors.Is(err, volume.ErrUnavailable):
	default:
		return fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if err != nil {
		return err
	}
	c.tenant = tenant
	if c.volumes, err = c.h.tenants(c.r.Context(), tenant); err != nil {
		if errors.Is(err, volume.ErrInvalid) {
			// The caller did not choose the tenant's name: it cannot be blamed for it.
			return &problem{status: http.StatusInternalServerError, message: "internal error", cause: err}
		}
		return err
	}
	return nil
}

// content answers for E2B's content API, whose errors have a string for a code. Not 404: the SDK's exists would say false.
func (c *call) content() error {
	c.route = "/" + contentRoot
	writeJSON(c.w, http.StatusNotImplemented, wire.ContentError{Code: wire.Unsupported,
		Message: "files of a volume are reached through a sandbox that mounts it"})
	return nil
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
