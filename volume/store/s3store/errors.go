package s3store

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/sandvol/sandvol/volume/store"
)

// ErrUnfit is the class of errors about a bucket, or its server, that cannot be a store. Each is an *UnfitError.
var ErrUnfit = errors.New("s3store: bucket cannot be used")

// UnfitError says what a bucket or its server does wrong. It answers errors.Is for ErrUnfit.
type UnfitError struct {
	Fault  string // what was seen
	Advice string // what would help
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("bucket cannot be used: %s; %s", e.Fault, e.Advice)
}

// Is reports whether target is ErrUnfit.
func (e *UnfitError) Is(target error) bool { return target == ErrUnfit }

// bodyError is a body that broke off.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading the answer: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// Codes of answers, which are the same on all servers.
const (
	codeNoSuchKey    = "NoSuchKey"
	codeNoSuchUpload = "NoSuchUpload"
	codePrecondition = "PreconditionFailed"
	codeConflict     = "ConditionalRequestConflict"
	codeAborted      = "OperationAborted"
)

// passing are the codes of faults that may pass, whatever status they come with: the completion of an upload can fail
// with status 200. When the clocks differ, the client takes the server's from the answer, for the next try.
var passing = []string{
	"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "ThrottlingException",
	"RequestLimitExceeded", "RequestTimeTooSkewed", codeConflict, codeAborted,
}

// stale are the codes by which credentials are refused that others may replace. The last two are what an answer without
// a body, to HEAD, is called.
var stale = []string{
	"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId",
	"BadRequest", "Forbidden",
}

// code returns the code of a server's answer, or "".
func code(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// response returns the HTTP response in an error, or nil when there was none.
func response(err error) *http.Response {
	var e *smithyhttp.ResponseError
	if errors.As(err, &e) && e.Response != nil {
		return e.Response.Response
	}
	return nil
}

func status(err error) int {
	if r := response(err); r != nil {
		return r.StatusCode
	}
	return 0
}

func expired(err error) bool { return slices.Contains(stale, code(err)) }

// transient reports whether a fault may pass, and whether the request may have taken effect all the same: there was no
// answer, or one that says that the server is in trouble.
func transient(err error) bool {
	var unsent *smithyhttp.RequestSendError
	var unread *smithy.DeserializationError
	var body *bodyError
	if errors.Is(err, errStalled) || errors.As(err, &unsent) || errors.As(err, &unread) || errors.As(err, &body) {
		return true
	}
	if slices.Contains(passing, code(err)) {
		return true
	}
	switch n := status(err); {
	case n == http.StatusNotImplemented:
		return false
	case n == http.StatusConflict:
		// Two requests got in each other's way. Gateways over a file system have codes of their own for that.
		return true
	case n >= 500, n == http.StatusTooManyRequests, n == http.StatusRequestTimeout:
		return true
	case n >= 300:
		return false
	case n >= 200:
		// The answer broke off. If it was whole it has a code, and says what is wrong.
		return code(err) == ""
	}
	return false
}

// refused reports whether a condition did not hold.
func refused(err error) bool {
	return status(err) == http.StatusPreconditionFailed || code(err) == codePrecondition
}

// notStored gives the absence of an object its class. Only the code counts: a bucket that is missing has status 404 too,
// and nothing in it may be taken for absent.
func notStored(err error) error {
	if code(err) == codeNoSuchKey {
		return store.ErrNotExist
	}
	return err
}

func opError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	// An invalid key is in its own error, shortened if need be.
	if errors.Is(err, store.ErrInvalidKey) {
		return fmt.Errorf("s3store: %s: %w", op, err)
	}
	return fmt.Errorf("s3store: %s %s: %w", op, key, err)
}
