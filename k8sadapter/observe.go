package k8sadapter

import (
	"context"
	"errors"
	"time"

	"github.com/sandvol/sandvol/volume"
)

// The operations, as metrics name them.
const (
	OpRegister = "register"
	OpList     = "list"
	OpGet      = "get"
	OpDelete   = "delete"
	OpResolve  = "resolve"
	OpConfirm  = "confirm"
	OpRelease  = "release"
	// OpUse is a look for users of volumes; only ResultUnreadable is reported of it.
	OpUse = "use"
)

// Results that are not results of an operation but sightings during one.
const (
	// ResultForeign: a reference was the id of another namespace's volume. The caller was told that there is none.
	ResultForeign = "foreign"
	// ResultUnreadable: a claim or sandbox had mounts that cannot be read, and counts as a user.
	ResultUnreadable = "unreadable"
)

// Observation is one operation, for metrics. It names no volume and no namespace: both are the tenants' own.
type Observation struct {
	// Operation is one of the Op constants.
	Operation string
	// Result is "ok" or a class: invalid, not_found, conflict, unsupported, unavailable, error; or one of the Result
	// constants, which come beside the result of the operation.
	Result   string
	Duration time.Duration
}

// observed reports an operation; it is deferred with the error that the operation returns.
func (a *Adapter) observed(operation string, began time.Time, err *error) {
	a.observe(Observation{Operation: operation, Result: result(*err), Duration: a.now().Sub(began)})
}

func (a *Adapter) foreign(operation string) {
	a.observe(Observation{Operation: operation, Result: ResultForeign})
}

func result(err error) string {
	is := func(class error) bool { return errors.Is(err, class) }
	switch {
	case err == nil:
		return "ok"
	case is(volume.ErrInvalid):
		return "invalid"
	case is(volume.ErrNotFound):
		return "not_found"
	case is(volume.ErrUnsupported):
		return "unsupported"
	case is(volume.ErrUnavailable), is(context.Canceled), is(context.DeadlineExceeded):
		return "unavailable"
	case is(volume.ErrExists), is(volume.ErrNotReady), is(volume.ErrInUse), is(volume.ErrConflict):
		return "conflict"
	}
	return "error"
}
