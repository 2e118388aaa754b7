package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandvol/sandvol/e2bhttp/wire"
)

// Config is what a client cannot do without.
type Config struct {
	// URL is where the API is, a path prefix included. It must not hold a user or password.
	URL string
	// APIKey is sent as X-API-Key.
	APIKey string
}

// Client calls the volume API. Its methods may be called concurrently.
type Client struct {
	base string
	key  string
	settings
}

// Option changes how a Client works.
type Option func(*settings)

type settings struct {
	http    *http.Client
	tries   int
	longest time.Duration
	agent   string
}

// Defaults.
const (
	// DefaultTries is how often a request is sent at most.
	DefaultTries = 4
	// DefaultLongestWait is the longest wait between two tries. A server that asks for more gets no further one.
	DefaultLongestWait = 30 * time.Second
)

// WithHTTPClient sets the client that sends the requests. The default has a time limit of two minutes.
func WithHTTPClient(c *http.Client) Option { return func(s *settings) { s.http = c } }

// WithTries sets how often a request is sent at most, and the longest wait between two tries.
func WithTries(n int, longestWait time.Duration) Option {
	return func(s *settings) { s.tries, s.longest = n, longestWait }
}

// WithUserAgent sets the header User-Agent.
func WithUserAgent(agent string) Option { return func(s *settings) { s.agent = agent } }

// New returns a client. It sends no request.
func New(cfg Config, opts ...Option) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		// Without the URL: what cannot be parsed may hold a password.
		return nil, fmt.Errorf("%w: URL: must be of the form http://host/prefix or https://host/prefix", ErrInvalid)
	case u.User != nil:
		return nil, fmt.Errorf("%w: URL: must not hold a user or password", ErrInvalid)
	case cfg.APIKey == "":
		return nil, fmt.Errorf("%w: APIKey: is missing", ErrInvalid)
	}
	s := settings{http: &http.Client{Timeout: 2 * time.Minute}, tries: DefaultTries, longest: DefaultLongestWait,
		agent: "sandvol-client"}
	for _, opt := range opts {
		opt(&s)
	}
	// A redirect would take the key to another host: only Authorization and cookies are held back by net/http.
	own := *s.http
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.http = &own
	s.tries = max(1, s.tries)
	u.RawQuery, u.Fragment = "", ""
	return &Client{base: strings.TrimRight(u.String(), "/"), key: cfg.APIKey, settings: s}, nil
}

// Create makes a volume.
func (c *Client) Create(ctx context.Context, v wire.NewVolume) (wire.VolumeAndToken, error) {
	return send[wire.VolumeAndToken](ctx, c, request{method: "POST", path: "/volumes", body: v})
}

// Get returns a volume, by id or name.
func (c *Client) Get(ctx context.Context, ref string) (wire.VolumeAndToken, error) {
	return send[wire.VolumeAndToken](ctx, c, request{method: "GET", path: "/volumes/" + url.PathEscape(ref)})
}

// Delete deletes a volume, by id or name.
func (c *Client) Delete(ctx context.Context, ref string) error {
	_, err := send[none](ctx, c, request{method: "DELETE", path: "/volumes/" + url.PathEscape(ref)})
	return err
}

// Fork makes copy-on-write children of a volume. Each result is a volume or an error; an error of the call means that none
// was made.
func (c *Client) Fork(ctx context.Context, ref string, f wire.Fork) ([]wire.ForkResult, error) {
	return send[[]wire.ForkResult](ctx, c, request{method: "POST", path: "/volumes/" + url.PathEscape(ref) + "/fork", body: f})
}

// Restore makes a volume from a snapshot of the volume ref.
func (c *Client) Restore(ctx context.Context, ref string, r wire.Restore) (wire.VolumeAndToken, error) {
	return send[wire.VolumeAndToken](ctx, c,
		request{method: "POST", path: "/volumes/" + url.PathEscape(ref) + "/restore", body: r})
}

// Snapshot keeps the last published state of a volume.
func (c *Client) Snapshot(ctx context.Context, ref string, s wire.NewSnapshot) (wire.VolumeSnapshot, error) {
	return send[wire.VolumeSnapshot](ctx, c,
		request{method: "POST", path: "/volumes/" + url.PathEscape(ref) + "/snapshots", body: s})
}

// GetSnapshot returns a snapshot.
func (c *Client) GetSnapshot(ctx context.Context, id string) (wire.VolumeSnapshot, error) {
	return send[wire.VolumeSnapshot](ctx, c, request{method: "GET", path: "/volume-snapshots/" + url.PathEscape(id)})
}

// DeleteSnapshot deletes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	_, err := send[none](ctx, c, request{method: "DELETE", path: "/volume-snapshots/" + url.PathEscape(id)})
	return err
}
