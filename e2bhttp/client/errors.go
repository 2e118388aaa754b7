package client

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// Error classes, tested with errors.Is.
var (
	// ErrInvalid: the request is wrong (400, 413, 422).
	ErrInvalid = errors.New("invalid")
	// ErrUnauthenticated: the API key is not known (401).
	ErrUnauthenticated = errors.New("authentication failed")
	// ErrForbidden: not allowed, or the quota is used up (403).
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound: no such volume or snapshot (404).
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken (409 name_taken).
	ErrExists = errors.New("already exists")
	// ErrConflict: the volume is held or not ready, or the name is taken (409).
	ErrConflict = errors.New("conflict")
	// ErrUnsupported: the server cannot do that (501).
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: try again later (429, 503), or the server cannot be reached.
	ErrUnavailable = errors.New("unavailable")
)

// Error is what a server answered.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is one of the codes in package wire, or empty.
	Code    string
	Message string
	// RequestID finds the request in the server's log.
	RequestID string
}

// Error names the status and the server's message.
func (e *Error) Error() string {
	text := fmt.Sprintf("HTTP %d: %s", e.Status, e.Message)
	if e.RequestID != "" && e.Status >= http.StatusInternalServerError {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Is reports the classes of the status.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrInvalid:
		return e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge ||
			e.Status == http.StatusUnprocessableEntity
	case ErrUnauthenticated:
		return e.Status == http.StatusUnauthorized
	case ErrForbidden:
		return e.Status == http.StatusForbidden
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrExists:
		return e.Code == wire.NameTaken
	case ErrConflict:
		return e.Status == http.StatusConflict
	case ErrUnsupported:
		return e.Status == http.StatusNotImplemented
	case ErrUnavailable:
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
	}
	return false
}
