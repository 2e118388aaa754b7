package e2bhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
)

type mountsKey struct{}

// MountsFrom returns the mounts that Handler.Mounts has found in a request, nil if it asks for none.
func MountsFrom(ctx context.Context) []SandboxMount {
	mounts, _ := ctx.Value(mountsKey{}).([]SandboxMount)
	return mounts
}

// Mounts wraps a host's route that creates sandboxes, whatever its path: E2B's SDK posts to /sandboxes or to /v2/sandboxes,
// depending on its version. It authenticates the request, decodes and resolves the mounts in its body, and answers it if
// something is wrong with them; otherwise next finds them with MountsFrom, the tenant with TenantFrom, and the body as it
// was.
func (h *Handler) Mounts(next http.Handler) http.Handler {
	return h.wrap("sandbox creation", OpMount, func(c *call) (context.Context, error) {
		body, err := c.body()
		if err != nil {
			return nil, err
		}
		ctx := c.r.Context()
		c.r.Body = io.NopCloser(bytes.NewReader(body))
		var mounts []SandboxMount
		// A creation without a body is the host's to judge.
		if len(bytes.TrimSpace(body)) > 0 {
			entries, err := h.rules.Decode(body)
			if err == nil {
				mounts, err = h.rules.Resolve(ctx, c.volumes, entries, "")
			}
			if err != nil {
				return nil, err
			}
		}
		return context.WithValue(ctx, mountsKey{}, mounts), nil
	}, next)
}

// Authenticate wraps any other route of a host: next finds the tenant with TenantFrom.
func (h *Handler) Authenticate(next http.Handler) http.Handler {
	return h.wrap("host", "", func(c *call) (context.Context, error) { return c.r.Context(), nil }, next)
}

// wrap serves a host's route once before has nothing against it.
func (h *Handler) wrap(route, op string, before func(*call) (context.Context, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var passed *http.Request
		h.serve(w, r, func(c *call) error {
			c.route, c.op = route, op
			if err := c.authenticate(); err != nil {
				return err
			}
			ctx, err := before(c)
			if err != nil {
				return err
			}
			// What comes next is the host's work: it has the host's time limit, not that of the checks.
			ctx = context.WithValue(ctx, tenantKey{}, c.tenant)
			passed = c.r.WithContext(joined{Context: r.Context(), values: ctx})
			return nil
		})
		if passed != nil {
			next.ServeHTTP(w, passed)
		}
	})
}

// joined ends with one context and has the values of another.
type joined struct {
	context.Context
	values context.Context
}

// Value looks a value up.
func (j joined) Value(key any) any { return j.values.Value(key) }

// ShowMounts returns the member volumeMounts of a sandbox answer: an array, empty if there are no mounts.
func ShowMounts(mounts []SandboxMount) []wire.VolumeMount {
	shown := make([]wire.VolumeMount, 0, len(mounts))
	for _, m := range mounts {
		shown = append(shown, wire.VolumeMount{Name: nameOf(m.Volume), Path: m.Path, VolumeID: m.Volume.ID, ReadOnly: m.ReadOnly})
	}
	return shown
}

// ShowDrives returns the member volumeMounts for a drive set: that of a sandbox at any later time, under the volumes'
// present names. A volume that is gone is shown by its id.
func ShowDrives(ctx context.Context, volumes Volumes, set mount.DriveSet) ([]wire.VolumeMount, error) {
	shown := make([]wire.VolumeMount, 0, len(set.Drives))
	for _, d := range set.Drives {
		v, err := volumes.Get(ctx, d.Volume)
		if errors.Is(err, volume.ErrNotFound) {
			v, err = volume.Volume{ID: d.Volume}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("show drive %s: %w", d.Path, err)
		}
		shown = append(shown, wire.VolumeMount{Name: nameOf(v), Path: d.Path, VolumeID: d.Volume, ReadOnly: d.ReadOnly})
	}
	return shown, nil
}

// AddMounts sets the member volumeMounts of a sandbox answer, which is a JSON object. The other members stay as they are.
func AddMounts(answer []byte, mounts []wire.VolumeMount) ([]byte, error) {
	if mounts == nil {
		mounts = []wire.VolumeMount{} // E2B's clients want an array
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(answer, &members); err != nil || members == nil {
		return nil, fmt.Errorf("%w: sandbox answer: must be a JSON object", volume.ErrInvalid)
	}
	list, err := json.Marshal(mounts)
	if err != nil {
		return nil, err
	}
	members["volumeMounts"] = list
	return json.Marshal(members, json.Deterministic(true))
}
