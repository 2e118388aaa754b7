package e2bhttp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// failing fails every call with one error.
type failing struct{ err error }

func (f failing) Create(context.Context, volume.CreateOptions) (volume.Volume, error) {
	return volume.Volume{}, f.err
}
func (f failing) Get(context.Context, string) (volume.Volume, error) { return volume.Volume{}, f.err }
func (f failing) Delete(context.Context, string) error               { return f.err }
func (f failing) List(context.Context, volume.ListOptions) iter.Seq2[volume.Volume, error] {
	return func(yield func(volume.Volume, error) bool) { yield(volume.Volume{}, f.err) }
}

// each class of errors has one status and code, whichever call it comes from, and the text of faults stays
// inside.
func TestErrorClassesBecomeStatuses(t *testing.T) {
	secret := "/var/lib/node-path"
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{volume.ErrExists, 409, wire.NameTaken},
		{volume.ErrUnsupported, 501, wire.Unsupported},
		{volume.ErrNotReady, 409, wire.VolumeNotReady},
		{&volume.StatusError{Kind: "volume", ID: "v", Status: volume.StatusUploading, Op: "x"}, 409, wire.VolumeNotReady},
		{&volume.StatusError{Kind: "volume", ID: "v", Status: volume.StatusFailed, Op: "x"}, 409, wire.VolumeFailed},
		{&volume.StatusError{Kind: "volume", ID: "v", Status: volume.StatusDeleting, Op: "x"}, 409, wire.VolumeDeleting},
		{&volume.InUseError{ID: "v", Holders: []volume.Holder{{Sandbox: "s", Node: "n"}}}, 409, wire.VolumeInUse},
		{&volume.ConflictError{Op: "acquire", Owner: "s"}, 409, wire.VolumeInUse},
		{volume.ErrFenced, 409, wire.VolumeInUse},
		{&volume.FlushUnavailableError{Volume: "v", Sandbox: "s", Node: "node-7"}, 409, wire.FlushUnavailable},
		{&volume.NotCleanError{Source: "volume v", Generation: 3}, 409, wire.NotClean},
		{&volume.TokenMismatchError{Name: "n", Volume: "v"}, 422, wire.IdempotencyMismatch},
		{e2bhttp.ErrQuota, 403, wire.QuotaExceeded},
		{fmt.Errorf("%s: %w", secret, volume.ErrUnreadable), 409, wire.UnreadableRecord},
		{fmt.Errorf("%s: %w", secret, volume.ErrCorrupt), 500, ""},
		{fmt.Errorf("%s: %w", secret, volume.ErrUnavailable), 503, wire.StoreUnavailable},
		{fmt.Errorf("%s: %w", secret, context.DeadlineExceeded), 503, wire.StoreUnavailable},
		{errors.New(secret), 503, wire.StoreUnavailable},
	} {
		wrapped := fmt.Errorf("operation: %w", c.err)
		a := serve(t, func(context.Context, string) (e2bhttp.Volumes, error) { return failing{wrapped}, nil })
		for _, r := range []answer{a.plain("GET", "/volumes/v", ""), a.plain("DELETE", "/volumes/v", ""), a.plain("GET", "/volumes", ""),
			a.plain("GET", "/volumes?limit=3", ""), a.plain("POST", "/volumes", `{"name":"v"}`)} {
			if r.status != c.status || r.error().ErrorCode != c.code || r.error().Code != c.status {
				t.Errorf("%v: %s: %d %s, want %d %s", c.err, r.what, r.status, r.body, c.status, c.code)
			}
			if slices.Contains([]int{500, 503}, c.status) && (r.error().Message == "" || strings.Contains(string(r.body), secret)) {
				t.Errorf("%v: %s: %s", c.err, r.what, r.body)
			}
			if (r.header.Get("Retry-After") != "") != (c.status == 503) {
				t.Errorf("%v: %s: Retry-After %q", c.err, r.what, r.header.Get("Retry-After"))
			}
		}
	}
}
