package e2bhttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// body reads a request's body, of at most the limit. A body may be chunked, so its length is not known before.
func (c *call) body() ([]byte, error) {
	// A client that sends a byte at a time holds nothing but its own connection, and that not for ever. It is of no concern
	// here if the connection has no deadlines.
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(c.began.Add(c.h.timeout))
	body, err := io.ReadAll(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, c.h.maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{status: http.StatusRequestEntityTooLarge,
			message: fmt.Sprintf("body: more than %d bytes", tooLarge.Limit)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &problem{status: http.StatusRequestTimeout, message: "body: did not arrive in time", cause: err}
	case err != nil:
		return nil, &problem{status: http.StatusBadRequest, message: "body: cannot be read", cause: err}
	}
	// The rest is not reading. Left as it is, the deadline would cancel the work on a request that was read in time.
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

// fields are the members of a JSON object that a client sent. Its methods take one member each and keep the first fault, so
// that a request is decoded without a branch for each member. Null is the same as absent.
type fields struct {
	members map[string]jsontext.Value
	fault   error
}

// fields reads the body's object. An empty body is an empty object where every member is optional.
func (c *call) fields(optional bool) (*fields, error) {
	body, err := c.body()
	if err != nil {
		return nil, err
	}
	if optional && len(bytes.TrimSpace(body)) == 0 {
		return &fields{}, nil
	}
	f, err := parseFields("body", body)
	if err == nil && f.members == nil && !optional {
		err = bad("", "body: must be a JSON object, not null")
	}
	return f, err
}

func parseFields(what string, object jsontext.Value) (*fields, error) {
	f := &fields{}
	if err := json.Unmarshal(object, &f.members); err != nil {
		return nil, &problem{status: http.StatusBadRequest, message: what + ": " + jsonFault(err), cause: err}
	}
	return f, nil
}

// jsonFault says what is wrong with a JSON text, without quoting it: it may hold a credential.
func jsonFault(err error) string {
	var syntax *jsontext.SyntacticError
	var shape *json.SemanticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return "a member is there twice"
	case errors.As(err, &syntax):
		return fmt.Sprintf("is not valid JSON at byte %d", syntax.ByteOffset)
	case errors.As(err, &shape):
		return "must be a JSON object"
	}
	return "must be one JSON object"
}

func (f *fields) fail(code, format string, args ...any) {
	if f.fault == nil {
		f.fault = bad(code, format, args...)
	}
}

// take returns a member, or false if it is absent.
func (f *fields) take(name string) (jsontext.Value, bool) {
	v, ok := f.members[name]
	return v, ok && v.Kind() != 'n'
}

// text returns a string, empty if absent.
func (f *fields) text(name, code string) (text string, given bool) {
	v, given := f.take(name)
	if given && json.Unmarshal(v, &text) != nil {
		f.fail(code, "%s: must be a string", name)
	}
	return text, given
}

func (f *fields) flag(name string) (set bool) {
	if v, ok := f.take(name); ok && json.Unmarshal(v, &set) != nil {
		f.fail("", "%s: must be true or false", name)
	}
	return set
}

// whole returns a whole number from low to high, or 0 if it is absent.
func (f *fields) whole(name, code string, low, high int64) int64 {
	v, ok := f.take(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if v.Kind() != '0' || err != nil || n < low || n > high {
		f.fail(code, "%s: must be a whole number from %d to %d", name, low, high)
	}
	return n
}

// texts returns an object of strings, nil if absent.
func (f *fields) texts(name string) (m map[string]string) {
	if v, ok := f.take(name); ok && json.Unmarshal(v, &m) != nil {
		f.fail("", "%s: must be an object of strings", name)
	}
	return m
}

// query returns a parameter that may be given once, and then not empty.
func (c *call) query(name string) (string, error) {
	values := c.r.URL.Query()[name]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || values[0] == "":
		return "", bad("", "query parameter %s: given without a value or more than once", name)
	}
	return values[0], nil
}
