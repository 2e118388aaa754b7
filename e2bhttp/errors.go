package e2bhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// Errors for hooks that a host plugs in, tested with errors.Is.
var (
	// ErrUnauthenticated: the request does not say, or not credibly, who sends it. It is answered 401.
	ErrUnauthenticated = errors.New("e2bhttp: unauthenticated")
	// ErrForbidden: the caller is known and may not do this. It is answered 403.
	ErrForbidden = errors.New("e2bhttp: forbidden")
	// ErrQuota: the tenant has as much as it may have. It is answered 403.
	ErrQuota = volume.ErrQuota
)

// ErrMounts is the class of every *MountsError.
var ErrMounts = errors.New("e2bhttp: invalid mounts")

// problem is an answer that is not a success. Its message is for the caller, its cause for the log alone.
type problem struct {
	status  int
	code    string // one of the closed list, or empty
	message string
	cause   error
}

func (p *problem) Error() string {
	if p.cause == nil {
		return p.message
	}
	return p.message + ": " + p.cause.Error()
}

func (p *problem) Unwrap() error { return p.cause }

func (p *problem) body() wire.Error {
	return wire.Error{Code: p.status, Message: redact(p.message), ErrorCode: p.code}
}

func bad(code, format string, args ...any) error {
	return &problem{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

func unsupported(message string) error {
	return &problem{status: http.StatusNotImplemented, code: wire.Unsupported, message: message}
}

// The kinds of things that can be missing.
const (
	kindVolume   = "volume"
	kindSnapshot = "snapshot"
)

// missing is the answer about something that is not there, be it unknown, deleted or another tenant's: one text for all.
func missing(kind, ref string) *problem {
	code := wire.VolumeNotFound
	if kind == kindSnapshot {
		code = wire.SnapshotNotFound
	}
	p := &problem{status: http.StatusNotFound, code: code, message: kind + " not found"}
	if wellFormed(ref) {
		p.message = fmt.Sprintf("%s %q not found", kind, ref)
	}
	return p
}

// lookup turns the errors of looking up ref into an answer. An id of a form that these volumes never have is as unknown as
// any other: ids are opaque, and E2B's clients expect 404 for them.
func lookup(err error, kind, ref string) error {
	if errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrInvalid) {
		return missing(kind, ref)
	}
	return err
}

// gone is lookup where the form of ref is known to be right: what is invalid then is something else.
func gone(err error, kind, ref string) error {
	if errors.Is(err, volume.ErrNotFound) {
		return missing(kind, ref)
	}
	return err
}

// taken says which name is, in words that E2B's callers look for. An error that is a conflict too says more than that.
func taken(err error, name string) error {
	if errors.Is(err, volume.ErrExists) && !errors.Is(err, volume.ErrConflict) {
		return &problem{status: http.StatusConflict, code: wire.NameTaken, cause: err,
			message: fmt.Sprintf("volume %q already exists", name)}
	}
	return err
}

// explain is the one place where errors become answers.
func explain(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var mounts *MountsError
	if errors.As(err, &mounts) {
		return mounts.problem()
	}
	// A request that is wrong is not made right by waiting, so that comes first where several things are wrong.
	if !errors.Is(err, volume.ErrInvalid) {
		p = explainHeld(err)
	}
	if p == nil {
		p = explainClass(err)
	}
	p.cause = err
	return p
}

// explainHeld is about volumes that are in somebody's hands or in a state that does not allow something.
func explainHeld(err error) *problem {
	var (
		inUse    *volume.InUseError
		conflict *volume.ConflictError
		status   *volume.StatusError
		flush    *volume.FlushUnavailableError
		unclean  *volume.NotCleanError
	)
	held := &problem{status: http.StatusConflict}
	switch {
	case errors.As(err, &inUse):
		held.code, held.message = wire.VolumeInUse, "volume "+inUse.ID+" is in use by "+holders(inUse.Holders)
	case errors.As(err, &conflict) && conflict.Owner != "":
		held.code = wire.VolumeInUse
		held.message = fmt.Sprintf("volume is in use by sandbox %s (%s)", conflict.Owner, conflict.Phase)
	case errors.As(err, &flush):
		held.code, held.message = wire.FlushUnavailable, flush.Error()
	case errors.As(err, &unclean):
		held.code, held.message = wire.NotClean, unclean.Error()
	case errors.As(err, &status) && !errors.Is(status, volume.ErrNotFound):
		held.code, held.message = statusCode(status.Status), status.Error()
	default:
		return nil
	}
	return held
}

func holders(all []volume.Holder) string {
	names := make([]string, 0, len(all))
	for _, h := range all {
		names = append(names, "sandbox "+h.Sandbox)
	}
	return strings.Join(names, ", ")
}

// statusCode is the error code for a volume that is not ready.
func statusCode(s volume.Status) string {
	switch s {
	case volume.StatusFailed:
		return wire.VolumeFailed
	case volume.StatusDeleting:
		return wire.VolumeDeleting
	case volume.StatusUnreadable:
		return wire.UnreadableRecord
	}
	return wire.VolumeNotReady
}

func explainClass(err error) *problem {
	var mismatch *volume.TokenMismatchError
	p := &problem{message: err.Error()}
	switch {
	case errors.As(err, &mismatch):
		p.status, p.code, p.message = http.StatusUnprocessableEntity, wire.IdempotencyMismatch, mismatch.Error()
	case errors.Is(err, ErrUnauthenticated):
		// What a hook says about a credential can hold the credential.
		p.status, p.message = http.StatusUnauthorized, "missing or unknown API key"
	case errors.Is(err, ErrForbidden):
		p.status, p.message = http.StatusForbidden, "not allowed"
	case errors.Is(err, ErrQuota):
		p.status, p.code = http.StatusForbidden, wire.QuotaExceeded
	case errors.Is(err, volume.ErrInvalid):
		p.status = http.StatusBadRequest
	case errors.Is(err, volume.ErrUnsupported):
		p.status, p.code = http.StatusNotImplemented, wire.Unsupported
	case errors.Is(err, volume.ErrNotFound):
		p.status, p.message = http.StatusNotFound, "not found"
	case errors.Is(err, volume.ErrExists):
		p.status, p.code = http.StatusConflict, wire.NameTaken
		if !errors.Is(err, volume.ErrConflict) {
			p.message = "a volume of that name already exists"
		}
	case errors.Is(err, volume.ErrNotReady):
		p.status, p.code = http.StatusConflict, wire.VolumeNotReady
	case errors.Is(err, volume.ErrInUse), errors.Is(err, volume.ErrConflict), errors.Is(err, volume.ErrFenced):
		p.status, p.code = http.StatusConflict, wire.VolumeInUse
	default:
		return explainFault(err)
	}
	return p
}

// statusClientGone is only logged: there is nobody to answer.
const statusClientGone = 499

// explainFault is about what the caller can do nothing about. What happened is in the log, under the request's id.
func explainFault(err error) *problem {
	switch {
	case errors.Is(err, errClientGone):
		return &problem{status: statusClientGone, message: "the client has gone"}
	case errors.Is(err, volume.ErrUnreadable):
		return &problem{status: http.StatusConflict, code: wire.UnreadableRecord,
			message: "the record was written by a newer version or is damaged; it is left alone"}
	case errors.Is(err, volume.ErrCorrupt):
		return &problem{status: http.StatusInternalServerError, message: "stored data contradicts its digest"}
	case errors.Is(err, context.Canceled):
		return &problem{status: http.StatusServiceUnavailable, code: wire.StoreUnavailable, message: "the request was cancelled"}
	}
	// An error of no class is a fault of a disk or a network, and may be tried again: see package volume.
	return &problem{status: http.StatusServiceUnavailable, code: wire.StoreUnavailable,
		message: "the volume store does not answer; try again"}
}
