package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandvol/sandvol/mount"
)

// Defaults of a Client.
const (
	DefaultPatchPath   = "/patch/drives"
	DefaultTimeout     = 10 * time.Second // of one request
	DefaultFreezeLimit = 30 * time.Second
)

const (
	tries    = 4
	backOff  = 200 * time.Millisecond // before the second try, doubled for each more
	maxReply = 4 << 10                // bytes of a reply that are quoted
)

// Client is the agent of one sandbox. It implements mount.Guest.
type Client struct {
	base    string
	patch   string
	http    *http.Client
	header  http.Header
	timeout time.Duration
	limit   time.Duration
	device  func(mount.Drive) string
}

// Option changes a Client.
type Option func(*Client)

// WithPatchPath sets the path of the request that mounts drives, DefaultPatchPath by default.
func WithPatchPath(p string) Option { return func(c *Client) { c.patch = p } }

// WithHTTPClient sets the transport, such as one that dials a vsock.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithHeader adds a header to every request, such as an access token. It is never in an error.
func WithHeader(name, value string) Option { return func(c *Client) { c.header.Add(name, value) } }

// WithTimeout bounds one request; the context bounds a call with its retries.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithFreezeLimit sets after how long, in whole seconds, the agent thaws by itself what nobody has thawed.
func WithFreezeLimit(d time.Duration) Option { return func(c *Client) { c.limit = d } }

// WithDevice sets under which name the guest sees a drive, such as /dev/vdb. Without it the agent has to find the device of a
// volume by itself.
func WithDevice(f func(mount.Drive) string) Option { return func(c *Client) { c.device = f } }

// New returns the client of the agent at base, an http URL without a trailing slash.
func New(base string, opts ...Option) *Client {
	c := &Client{base: strings.TrimRight(base, "/"), patch: DefaultPatchPath, http: http.DefaultClient, header: http.Header{},
		timeout: DefaultTimeout, limit: DefaultFreezeLimit, device: func(mount.Drive) string { return "" }}
	for _, o := range opts {
		o(c)
	}
	return c
}

// Drive is a drive as the agent gets it.
type Drive struct {
	Path       string `json:"path"`
	Device     string `json:"device,omitempty"`
	VolumeID   string `json:"volumeID"`
	Generation uint64 `json:"generation"`
	ReadOnly   bool   `json:"readOnly"`
}

// PatchRequest is the body of the request that mounts drives.
type PatchRequest struct {
	Drives []Drive `json:"drives"`
}

// FreezeRequest is the body of a freeze, and without Seconds that of a thaw.
type FreezeRequest struct {
	Paths   []string `json:"paths"`
	Seconds int64    `json:"seconds,omitempty"`
}

// PatchDrives implements mount.Guest. It is repeated, within the context, while the agent cannot be reached.
func (c *Client) PatchDrives(ctx context.Context, drives []mount.Drive) error {
	body := PatchRequest{Drives: make([]Drive, len(drives))}
	for i, d := range drives {
		body.Drives[i] = Drive{Path: d.Path, Device: c.device(d), VolumeID: d.Volume, Generation: d.Epoch, ReadOnly: d.ReadOnly}
	}
	return c.call(ctx, c.patch, body)
}

// Freeze implements mount.Guest. Drives that the guest may not write have nothing to freeze.
func (c *Client) Freeze(ctx context.Context, drives []mount.Drive) (thaw func() error, err error) {
	body := FreezeRequest{Paths: []string{}, Seconds: int64(c.limit / time.Second)}
	if body.Seconds < 1 {
		return nil, fmt.Errorf("%w: freeze limit %v: must be at least 1 s", mount.ErrInvalid, c.limit)
	}
	for _, d := range drives {
		if !d.ReadOnly {
			body.Paths = append(body.Paths, d.Path)
		}
	}
	thaw = func() error {
		// The call that froze may be over, and its context with it.
		ctx, cancel := context.WithTimeout(context.Background(), tries*c.timeout)
		defer cancel()
		return c.call(ctx, "/thaw", FreezeRequest{Paths: body.Paths})
	}
	if err := c.call(ctx, "/freeze", body); err != nil {
		if errors.Is(err, mount.ErrUnsupported) {
			return nil, err
		}
		// Some of it may be frozen. A thaw of what is not says so, which is of no interest here.
		_ = thaw()
		return nil, err
	}
	return thaw, nil
}

// StatusError is an answer that is not a success.
type StatusError struct {
	Path   string
	Status int
	Body   string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("guest agent: %s answers %d %s: %q", e.Path, e.Status, http.StatusText(e.Status), e.Body)
}

// Is reports the class of the answer.
func (e *StatusError) Is(target error) bool {
	switch e.Status {
	case http.StatusNotFound:
		return target == mount.ErrUnsupported
	case http.StatusConflict:
		return target == mount.ErrConflict
	}
	return false
}

// call sends one request, again while the agent is not there: all of them may be repeated.
func (c *Client) call(ctx context.Context, path string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	wait := backOff
	for try := 1; ; try++ {
		again, err := c.once(ctx, path, raw)
		if err == nil || !again || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(wait):
		}
		wait *= 2
	}
}

func (c *Client) once(ctx context.Context, path string, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("%w: guest agent: %w", mount.ErrInvalid, err)
	}
	req.Header = c.header.Clone()
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return true, fmt.Errorf("guest agent: %w", err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	switch {
	case resp.StatusCode/100 == 2:
		return false, nil
	case err != nil:
		said = []byte(err.Error())
	}
	again = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusBadGateway
	return again, &StatusError{Path: path, Status: resp.StatusCode, Body: string(said)}
}

var _ mount.Guest = (*Client)(nil)
