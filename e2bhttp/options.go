package e2bhttp

import (
	"context"
	"log/slog"
	"time"

	"github.com/sandvol/sandvol/volume"
)

// Option changes how a Handler works.
type Option func(*settings)

type settings struct {
	prefixes [][]string
	log      *slog.Logger
	observe  func(Observation)
	limits   func(ctx context.Context, tenant string) (Limits, error)
	images   func(ref string) (volume.Source, error)
	tokens   func(ctx context.Context, tenant string, v volume.Volume) string
	rules    MountRules
	maxBody  int64
	timeout  time.Duration
}

// Defaults of the limits on a request.
const (
	DefaultMaxBody = 1 << 20
	DefaultTimeout = 60 * time.Second
)

func defaults() settings {
	return settings{log: slog.New(slog.DiscardHandler), observe: func(Observation) {}, maxBody: DefaultMaxBody,
		timeout: DefaultTimeout, prefixes: [][]string{nil}}
}

// WithPrefix serves every route below a path prefix too, such as "/kruise/api". It may be given several times. A handler
// works below http.StripPrefix as well.
func WithPrefix(prefix string) Option {
	return func(s *settings) {
		if segments, ok := split(prefix); ok {
			s.prefixes = append(s.prefixes, segments)
		}
	}
}

// WithLogger logs each request, and what failed, without credentials. The default discards it.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// WithObserver calls f after each request to a known route. It must not block. Package e2bhttp/metrics has one that feeds
// Prometheus.
func WithObserver(f func(Observation)) Option { return func(s *settings) { s.observe = f } }

// WithLimits bounds what a tenant may have. The handler asks before it creates something and then counts by a listing;
// creations of one tenant through one handler take turns, those through several handlers may exceed a limit together.
func WithLimits(f func(ctx context.Context, tenant string) (Limits, error)) Option {
	return func(s *settings) { s.limits = f }
}

// WithImages makes source.image work: f turns an image reference into a source. Without it, it is answered 501.
func WithImages(f func(ref string) (volume.Source, error)) Option {
	return func(s *settings) { s.images = f }
}

// WithTokens fills the member token of create and get answers, which is empty otherwise. E2B's clients send it to the host
// of E2B's content API, so it must give no rights here.
func WithTokens(f func(ctx context.Context, tenant string, v volume.Volume) string) Option {
	return func(s *settings) { s.tokens = f }
}

// WithMountRules sets what Handler.Mounts accepts.
func WithMountRules(r MountRules) Option { return func(s *settings) { s.rules = r } }

// WithMaxBody bounds request bodies, in bytes; larger ones are answered 413. The default is DefaultMaxBody.
func WithMaxBody(n int64) Option { return func(s *settings) { s.maxBody = n } }

// WithTimeout bounds a request: its body must arrive within that time, its answer is worked on for that long, and each part
// of the answer must be taken by the client within it. The default is DefaultTimeout.
func WithTimeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }
